"""The lock of a run's folder: two holders, and what is left afterwards."""

import os
import subprocess
import sys

import pytest

from utils.run_lock import LOCK_FILE, TrainingLock


def test_a_second_holder_is_refused_with_the_first_ones_number(tmp_path):
    with TrainingLock(str(tmp_path)):
        with pytest.raises(ValueError) as caught, TrainingLock(str(tmp_path)):
            pass
        with TrainingLock(str(tmp_path / "other")):
            pass
    text = str(caught.value)
    assert text.startswith(
        f"model_path must be trained by one process at a time; got {tmp_path}, which process "
        f"{os.getpid()} on "
    )
    assert text.endswith(" is training. Wait for its end, stop it, or use another model_path.")


def test_nothing_is_left(tmp_path):
    folder = tmp_path / "runs" / "new"
    for _ in range(2):
        with TrainingLock(str(folder)):
            assert (folder / LOCK_FILE).exists()
        assert list(tmp_path.iterdir()) == []
    folder.mkdir(parents=True)
    with TrainingLock(str(folder)):
        pass
    assert list(folder.iterdir()) == []  # it was there before


def test_a_folder_that_cannot_be_made_is_named():
    with pytest.raises(ValueError) as caught:
        TrainingLock("/proc/none/run").__enter__()
    assert str(caught.value) == (
        "model_path must be a folder that can be made and written; got /proc/none/run (No such "
        "file or directory). Change its permissions, or name another folder."
    )


def test_a_folder_with_a_run_in_it_stays(tmp_path):
    folder = tmp_path / "run"
    with TrainingLock(str(folder)):
        (folder / "checkpoint").write_text("")
    assert [file.name for file in folder.iterdir()] == ["checkpoint"]


def test_an_error_gives_the_lock_back(tmp_path):
    with pytest.raises(RuntimeError), TrainingLock(str(tmp_path)):
        raise RuntimeError
    with TrainingLock(str(tmp_path)):
        pass


HOLDER = """
import os, signal, sys
from utils.run_lock import TrainingLock
with TrainingLock(sys.argv[1]):
    print(os.getpid(), flush=True)
    signal.pause()
"""


def test_a_killed_process_leaves_no_lock(tmp_path, repo_root):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=repo_root, stdout=subprocess.PIPE, text=True) as holder:
        number = holder.stdout.readline().strip()
        with (
            pytest.raises(ValueError, match=f"which process {number} on .* is training"),
            TrainingLock(str(tmp_path)),
        ):
            pass
        holder.kill()
    assert (tmp_path / LOCK_FILE).exists()
    with TrainingLock(str(tmp_path)):
        assert (tmp_path / LOCK_FILE).read_text().startswith(f"process {os.getpid()} on ")


def test_a_file_that_its_holder_has_removed_locks_nothing(tmp_path, monkeypatch):
    """The holder ends while another process waits between opening the file and locking it."""
    first = TrainingLock(str(tmp_path))
    first.__enter__()
    open_file = os.open

    def open_then_end_the_first(*arguments):
        descriptor = open_file(*arguments)
        monkeypatch.setattr("utils.run_lock.os.open", open_file)
        first.__exit__()
        return descriptor

    monkeypatch.setattr("utils.run_lock.os.open", open_then_end_the_first)
    with TrainingLock(str(tmp_path)):
        assert (tmp_path / LOCK_FILE).exists()
        with pytest.raises(ValueError, match="one process at a time"), TrainingLock(str(tmp_path)):
            pass


def test_a_file_system_without_locks_is_no_error(tmp_path, monkeypatch, caplog):
    def no_locks(*unused):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("utils.run_lock.fcntl.flock", no_locks)
    with TrainingLock(str(tmp_path)):
        assert list(tmp_path.iterdir()) == []
    assert "has no file locks (Operation not supported): nothing keeps a second" in caplog.text


def test_remote_folders_have_no_lock(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with TrainingLock("gs://bucket/run"):
        assert list(tmp_path.iterdir()) == []
