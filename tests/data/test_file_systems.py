"""What the commands say where a file system fails, or the input does not stay as it is."""

import contextlib
import os
import resource
import shutil

import pytest

from data import documents, progress
from data.create_tfrecords import main
from tests.data.preparation_support import CHUNKS, arguments, complaint, files_of, make


@contextlib.contextmanager
def largest_file(size):
    """Writing fails beyond so many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def corpus(folder, tmp_path):
    """A folder with the tokenizer and an input that may be changed."""
    shutil.copytree(folder / "in", tmp_path / "in")
    shutil.copy(folder / "own.json", tmp_path)
    return tmp_path


@pytest.mark.parametrize("change", ["grows", "goes"])
def test_input_that_changes_while_it_is_read_is_refused(corpus, capsys, monkeypatch, change):
    read_entries = documents.read_entries

    def read_and_change(path):
        yield from read_entries(path)
        if path.endswith("a.jsonl"):
            if change == "goes":
                os.remove(path)
            else:
                with open(path, "a") as file:
                    file.write('{"text": "late"}\n')

    monkeypatch.setattr(documents, "read_entries", read_and_change)
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    message = complaint(capsys, arguments(corpus, corpus / "out"))
    assert "input files must stay as they are while they are read" in message
    assert f"{corpus}/in/a.jsonl {'is missing' if change == 'goes' else 'has changed'}" in message
    # Nothing of it can be gone on with.
    assert not (corpus / "out").exists()


def failed(capsys, argv):
    """Runs a command that the file system does not let through, and gives its last line."""
    capsys.readouterr()
    assert main(argv) == 1
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err and captured.out == ""
    return captured.err.strip().splitlines()[-1]


@pytest.mark.parametrize("options", [[], ["--seed", "3"], [*CHUNKS, "--compress"]])
def test_a_full_disk_is_one_line(folder, tmp_path, capsys, options):
    argv = arguments(folder, tmp_path / "out", *options)
    with largest_file(600):
        message = failed(capsys, argv)
    assert message.startswith("create_tfrecords.py: files must be readable, or writable with room")
    assert str(tmp_path / "out") in message and "File too large" in message
    assert main([*argv, "--overwrite"]) == 0


@pytest.mark.usefixtures("small")
def test_a_disk_that_is_full_for_a_time_costs_nothing(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    with largest_file(2000):
        failed(capsys, arguments(folder, tmp_path / "out"))
    assert (tmp_path / "out" / ".set.unfinished" / "state.json").exists()
    make(folder, tmp_path / "out", "--resume")
    make(folder, tmp_path / "whole")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("path", ["/proc/none.json", "file/none.json", "file/new/none.json"])
def test_a_dataset_config_that_cannot_be_written_is_refused_first(folder, tmp_path, capsys, path):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / path)  # an absolute one stays as it is
    message = complaint(capsys, arguments(folder, tmp_path / "o", "--write_dataset_config", path))
    assert f"dataset config must be a file that can be written; got {path} (" in message
    assert os.listdir(tmp_path) == ["file"]
