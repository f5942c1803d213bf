"""Interruptions of data/create_tfrecords.py, and going on after them."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from data import progress, token_store
from data.create_tfrecords import main
from data.manifest import manifest_path, read_manifest
from tests.data.preparation_support import (
    CHUNKS,
    TEXTS,
    arguments,
    complaint,
    files_of,
    make,
    train_tokenizer,
)

pytestmark = pytest.mark.usefixtures("small")

RESUMED = {
    "documents": [],
    "documents shuffled": ["--seed", "3"],
    "chunks": [*CHUNKS],
    "chunks shuffled": [*CHUNKS, "--seed", "3"],
    "epochs": [*CHUNKS, "--repack_epochs", "3", "--min_unique_tokens", "5"],
    "epochs in order": [*CHUNKS, "--repack_epochs", "2", "--preserve_data_order"],
    "compressed": [*CHUNKS, "--seed", "3", "--compress"],
}


def snapshots(monkeypatch, output, target):
    """Keeps a copy of the output folder as it is after each state of the work."""
    save = progress.Work.save
    taken = []

    def save_and_copy(self, make_state, force=False):
        save(self, make_state, force)
        taken.append(target / str(len(taken)))
        shutil.copytree(output, taken[-1])

    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(progress.Work, "save", save_and_copy)
    return taken


def add_what_was_lost(work):
    """Appends to all files that are still open what was written after the state."""
    writer = json.loads((work / "state.json").read_text())["writer"]
    parts = len(writer["open_parts"])
    file = len(writer["counts"]) - 1
    appended = [work / f".set_{file}.tfrecords.{part}.partial" for part in (parts - 1, parts)]
    appended += [*work.glob("*/*.index"), *work.glob("*/*.tokens")]
    for path in appended[parts == 0 :]:
        with path.open("ab") as opened:
            opened.write(b"garbage" * 9)


@pytest.mark.parametrize("case", RESUMED)
def test_goes_on_from_every_state_to_the_same_bytes(folder, tmp_path, monkeypatch, case):
    options = [*RESUMED[case], "--processes", "1"]
    output = tmp_path / "out"
    with monkeypatch.context() as patches:
        taken = snapshots(patches, output, tmp_path / "snapshots")
        make(folder, output, *options)
    expected = files_of(output)
    assert len(taken) >= 9
    for snapshot in taken:
        add_what_was_lost(snapshot / ".set.unfinished")
        assert main(arguments(folder, snapshot, *options, "--resume")) == 0, snapshot
        assert files_of(snapshot) == expected, snapshot
        assert not (snapshot / ".set.unfinished").exists()


def test_what_was_read_is_removed_only_when_no_state_speaks_of_it(folder, tmp_path, monkeypatch):
    """However seldom states are written, one is at the end of each stage."""
    options = [*CHUNKS, "--repack_epochs", "2"]
    make(folder, tmp_path / "whole", *options)
    remove = token_store.TokenStore.remove

    def stop(self):
        remove(self)
        if self._depth == 0:
            raise KeyboardInterrupt

    argv = arguments(folder, tmp_path / "out", *options)
    stops = 0
    with monkeypatch.context() as patches:
        patches.setattr(token_store.TokenStore, "remove", stop)
        while main([*argv, "--resume"]) == 130:
            stops += 1
    assert stops == 4  # documents and sequences of two epochs
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


@pytest.fixture
def interrupted(folder, tmp_path, monkeypatch):
    """Work that was stopped by Ctrl-C after its second state, on files of its own."""
    for name in ("own.json", "in"):
        (shutil.copytree if name == "in" else shutil.copy)(folder / name, tmp_path / name)
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    interrupt_at(monkeypatch, 2)
    assert main(arguments(tmp_path, tmp_path / "out", *CHUNKS)) == 130
    monkeypatch.undo()
    assert (tmp_path / "out" / ".set.unfinished" / "state.json").exists()
    return tmp_path


def interrupt_at(monkeypatch, count):
    save = progress.Work.save
    saved = []

    def stop(self, make_state, force=False):
        save(self, make_state, force)
        saved.append(1)
        if len(saved) == count:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress.Work, "save", stop)


def test_interrupted_work_is_gone_on_with_or_replaced_when_asked(interrupted, capsys, tmp_path):
    argv = arguments(interrupted, interrupted / "out", *CHUNKS)
    assert "must hold no unfinished work on 'set'; got" in complaint(capsys, argv)
    make(interrupted, tmp_path / "whole", *CHUNKS)
    shutil.copytree(interrupted / "out", tmp_path / "copy")
    assert main([*argv, "--overwrite"]) == 0
    assert main([*arguments(interrupted, tmp_path / "copy", *CHUNKS), "--resume"]) == 0
    assert (
        files_of(interrupted / "out") == files_of(tmp_path / "copy") == files_of(tmp_path / "whole")
    )


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (["--chunk_size", "9"], "chunk_size was 5 and is 9"),
        (["--seed", "1"], "seed was None and is 1"),
        (["--compress"], "compress was False and is True"),
        (["--minimum_size", "3"], "minimum_size was 1 and is 3"),
        (["--text_key", "content"], "text_key was 'text' and is 'content'"),
        (
            ["--ftfy", "--files_per", "7"],
            "files_per was 50 and is 7; normalize_with_ftfy was False",
        ),
    ],
)
def test_other_options_do_not_go_on(interrupted, capsys, options, difference):
    argv = [*arguments(interrupted, interrupted / "out", *CHUNKS), *options, "--resume"]
    assert difference in complaint(capsys, argv)
    # Nothing was lost by it.
    assert main([*arguments(interrupted, interrupted / "out", *CHUNKS), "--resume"]) == 0


def test_other_files_do_not_go_on(interrupted, capsys):
    argv = [*arguments(interrupted, interrupted / "out", *CHUNKS), "--resume"]
    text = interrupted / "in" / "c.txt"
    new, old = interrupted / "in" / "d.txt", text.read_text()
    new.write_text("new")
    assert f"{new} is new" in complaint(capsys, argv)
    new.unlink()
    text.write_text(old + "more")
    assert f"{text} has changed" in complaint(capsys, argv)
    text.unlink()
    assert f"{text} is missing" in complaint(capsys, argv)
    train_tokenizer(interrupted / "own.json", 290)
    text.write_text(old)
    assert "tokenizer was" in complaint(capsys, argv)


def test_skipping_is_not_given_up_on_the_way(folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "own.json").write_bytes((folder / "own.json").read_bytes())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("{\n" + "\n".join(json.dumps(t) for t in TEXTS))
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    argv = arguments(tmp_path, tmp_path / "out")
    with monkeypatch.context() as patches:
        interrupt_at(patches, 2)
        assert main([*argv, "--skip_bad"]) == 130
    assert "--skip_bad must be given again" in complaint(capsys, [*argv, "--resume"])
    assert main([*argv, "--resume", "--skip_bad"]) == 0
    assert "61 read = 60 kept + 1 dropped" in capsys.readouterr().out


def test_records_may_go_to_another_file_system(folder, tmp_path, monkeypatch):
    """Unfinished work stays here, in the folder for temporary files."""
    monkeypatch.setattr(progress.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    options = [*CHUNKS, "--seed", "1"]
    remote = f"ram://{tmp_path.name}/out"
    with monkeypatch.context() as patches:
        interrupt_at(patches, 12)
        assert main(arguments(folder, remote, *options)) == 130
    [work] = tmp_path.iterdir()
    assert (work / "state.json").exists()
    assert make(folder, remote, *options, "--resume") == make(folder, tmp_path / "out", *options)
    assert read_manifest(manifest_path(remote, "set")) == read_manifest(
        manifest_path(str(tmp_path / "out"), "set")
    )
    assert not work.exists()


def test_one_process_at_a_time(interrupted, capsys):
    other = progress.Work(str(interrupted / "out" / ".set.unfinished"))
    other._take()
    argv = [*arguments(interrupted, interrupted / "out", *CHUNKS), "--resume"]
    assert "made by one process at a time; got another that works in" in complaint(capsys, argv)
    other.release()
    assert main(argv) == 0


def test_nothing_to_resume_is_a_start(folder, tmp_path, caplog):
    caplog.set_level("INFO")
    make(folder, tmp_path / "out", "--resume")
    assert "There is no unfinished work on 'set'; it starts now." in caplog.text
    assert "interrupted" not in caplog.text


def test_work_of_which_nothing_was_saved_starts_again(folder, tmp_path, caplog):
    """A process that is killed cannot remove what it began."""
    caplog.set_level("INFO")
    killed = progress.Work(progress.work_folder(str(tmp_path / "out"), "set"))
    killed.start({})
    killed.release()
    make(folder, tmp_path / "out", "--resume")
    assert (
        "The work on 'set' was interrupted before a first state was saved in "
        f"{killed.folder}; it starts again." in caplog.text
    )
    assert "no unfinished work" not in caplog.text


def test_complete_records_are_no_work_to_resume(folder, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    make(folder, tmp_path / "out")
    argv = arguments(folder, tmp_path / "out", "--resume")
    assert "must hold no records of the name 'set'" in complaint(capsys, argv)
    assert "starts" not in caplog.text


KILLED = """
import os, signal, sys
from data import encoding, progress
from data.create_tfrecords import main
if __name__ == "__main__":
    encoding._BATCH_TEXTS, progress.SAVE_SECONDS = 7, 0.0
    save, saved = progress.Work.save, []
    def kill(self, make_state, force=False):
        save(self, make_state, force)
        saved.append(1)
        if len(saved) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
    progress.Work.save = kill
    main(sys.argv[1:])
"""


def test_a_killed_process_is_gone_on_with(folder, tmp_path, repo_root, caplog):
    """It has processes of its own, which end with it."""
    caplog.set_level("INFO")
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    argv = arguments(folder, tmp_path / "out", *CHUNKS, "--processes", "2")
    done = subprocess.run(
        [sys.executable, str(script), *argv],
        env=os.environ | {"PYTHONPATH": str(repo_root)},
        capture_output=True,  # returns only when all processes that hold the pipes are gone
        timeout=120,
    )
    assert done.returncode == -9, done.stderr
    assert files_of(tmp_path / "out") == {}
    make(folder, tmp_path / "out", *CHUNKS, "--resume")
    assert "going on with document" in caplog.text
    make(folder, tmp_path / "whole", *CHUNKS)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
