"""Writing goes on from any state to the same bytes; files appear only at the end."""

import gzip
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from data import record_writer
from data.record_writer import RecordWriter
from data.records import record_files

RECORDS = [np.arange(n, n + 3 + n % 4, dtype=np.int32) for n in range(11)]


def contents(folder):
    return {os.path.basename(path): Path(path).read_bytes() for path in record_files(folder, "x")}


@pytest.fixture
def expected(tmp_path):
    with RecordWriter(str(tmp_path / "whole"), "x", files_per=4) as writer:
        writer.write_all(RECORDS)
    return contents(str(tmp_path / "whole"))


@pytest.mark.parametrize("written", range(len(RECORDS) + 1))
def test_goes_on_from_any_state(tmp_path, expected, written):
    output, work = str(tmp_path / "out"), str(tmp_path / "work")
    killed = RecordWriter(output, "x", files_per=4, work_dir=work)
    killed.write_all(RECORDS[:written])
    state = json.loads(json.dumps(killed.state()))
    killed.write_all(RECORDS[5:9])  # lost: not in the state
    killed.state()
    once_more = RecordWriter(output, "x", files_per=4, work_dir=work)
    once_more.restore(state)
    once_more.write_all(RECORDS[written : written + 1])
    state = json.loads(json.dumps(once_more.state()))
    last = RecordWriter(output, "x", files_per=4, work_dir=work)
    last.restore(state)
    last.write_all(RECORDS[written + 1 :])
    assert contents(output) == {}
    paths = last.close()
    assert contents(output) == expected
    assert [os.path.basename(path) for path in paths] == list(expected) == list(last.files)


def compressed(files):
    made = {}
    for name, content in files.items():
        file = io.BytesIO()
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as target:
            target.write(content)
        made[f"{name}.gz"] = file.getvalue()
    return made


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("published", range(3))
def test_closing_goes_on(tmp_path, expected, published, monkeypatch, compress):
    output, work = str(tmp_path / "out"), str(tmp_path / "work")
    expected = compressed(expected) if compress else expected
    killed = RecordWriter(output, "x", files_per=4, work_dir=work, compress=compress)
    killed.write_all(RECORDS)
    killed.end_file()
    state = killed.state()
    publish = record_writer.join_parts
    calls = []

    def stop(parts, path):
        if len(calls) == published:
            raise KeyboardInterrupt
        calls.append(path)
        publish(parts, path)

    monkeypatch.setattr(record_writer, "join_parts", stop)
    with pytest.raises(KeyboardInterrupt):
        killed.close()
    monkeypatch.undo()
    assert len(contents(output)) == published
    last = RecordWriter(output, "x", files_per=4, work_dir=work, compress=compress)
    last.restore(state)
    last.close()
    assert contents(output) == expected
    assert os.listdir(work) == []


@pytest.mark.parametrize(
    ("place", "before"),
    [("rename", 0), ("rename", 2), ("remove", 0), ("remove", 3), ("remove", 6)],
)
def test_compressing_goes_on(tmp_path, expected, monkeypatch, place, before):
    """Also where a file is compressed, and its parts are not or not all removed."""
    output, work = str(tmp_path / "out"), str(tmp_path / "work")
    killed = RecordWriter(output, "x", files_per=4, work_dir=work, compress=True)
    for record in RECORDS:
        killed.write(record)
        killed.end_file()  # each file has several parts
    state = killed.state()
    plain, calls = getattr(tf.io.gfile, place), []

    def stop(*arguments, **options):
        if len(calls) == before:
            raise KeyboardInterrupt
        calls.append(arguments)
        plain(*arguments, **options)

    monkeypatch.setattr(tf.io.gfile, place, stop)
    with pytest.raises(KeyboardInterrupt):
        killed.close()
    monkeypatch.undo()
    last = RecordWriter(output, "x", files_per=4, work_dir=work, compress=True)
    last.restore(state)
    last.compress(threads=2)
    assert contents(output) == {}
    last.close()
    assert contents(output) == compressed(expected)
    assert os.listdir(work) == []


def test_another_file_system(tmp_path, expected, monkeypatch):
    monkeypatch.setattr("data.record_parts._is_rename", lambda *folders: False)
    output, work = str(tmp_path / "out"), str(tmp_path / "work")
    with RecordWriter(output, "x", files_per=4, work_dir=work) as writer:
        writer.write_all(RECORDS)
    assert contents(output) == expected
    assert sorted(os.listdir(output)) == list(expected)
    assert os.listdir(work) == []
