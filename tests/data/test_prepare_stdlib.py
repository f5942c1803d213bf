"""The quickstart's text: the standard library's sources, split the same way everywhere."""

import json
import sysconfig
from pathlib import Path

import pytest

from data.records import read_records, record_count
from scripts import prepare_stdlib


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "library"
    for place in ("", "json", "test", "json/tests", "site-packages/x", "encodings"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for number in range(120 if place == "" else 2):
            name = f"module{number}.py"
            (folder / place / name).write_text(f"# {place} {name}\n" + "x = 1\n" * 40)
    (folder / "latin.py").write_bytes("# -*- coding: latin-1 -*-\n# é\n".encode("latin-1"))
    return folder


def test_sources_without_tests_and_packages(library):
    names = [path.relative_to(library).as_posix() for path in prepare_stdlib.source_files(library)]
    assert len(names) == 123
    assert {Path(name).parent.as_posix() for name in names} == {".", "json"}


def test_this_machine_has_enough_sources():
    files = prepare_stdlib.source_files(Path(sysconfig.get_paths()["stdlib"]))
    assert sum(path.stat().st_size for path in files) > 5e6


def test_python_without_sources_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"at least 100 source files; got 0 in .*Use a Python"):
        prepare_stdlib.source_files(tmp_path)


def test_split_has_every_file_once(library, tmp_path):
    paths = prepare_stdlib.write_documents(library, tmp_path)
    texts = {
        split: [json.loads(line)["text"] for line in path.read_text().splitlines()]
        for split, path in paths.items()
    }
    assert len(texts["train"]) + len(texts["eval"]) == 123
    assert not set(texts["train"]) & set(texts["eval"])
    assert 0 < len(texts["eval"]) < 20
    assert any("é" in text for text in texts["train"] + texts["eval"])
    assert prepare_stdlib.is_held_out("argparse.py") is prepare_stdlib.is_held_out("argparse.py")


def test_records_are_made_once(library, tmp_path, monkeypatch, capsys):
    output = tmp_path / "records"
    monkeypatch.setattr(prepare_stdlib, "OUTPUT_DIR", output)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    assert prepare_stdlib.main([]) == 0
    files = sorted(output.glob("*.tfrecords"))
    assert [path.name.split("_")[0] for path in files] == ["eval", "train"]
    records = list(read_records(str(files[0])))
    assert len(records) == record_count(files[0].name)
    assert {len(record) for record in records} == {prepare_stdlib.CHUNK_SIZE + 1}
    capsys.readouterr()
    assert prepare_stdlib.main([]) == 0
    assert "there already" in capsys.readouterr().out
    assert sorted(output.glob("*.tfrecords")) == files


def test_arguments_are_refused(capsys):
    assert prepare_stdlib.main(["x"]) == 2
    assert "takes no arguments" in capsys.readouterr().err
