"""Where stdout is ASCII, as with LC_ALL=C, a result is printed with escapes and not lost."""

import contextlib
import importlib
import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from inspection import dataset_check
from utils import run_log

ROOT = Path(run_log.__file__).resolve().parents[1]


def printed(main, *arguments):
    """What a command prints; pytest puts its own stdout back after fixtures."""
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    with contextlib.redirect_stdout(stream):
        assert main(list(arguments)) == 0
    stream.flush()
    return stream.buffer.getvalue().decode("ascii")


@pytest.fixture(autouse=True)
def root_logger(monkeypatch):
    """The root logger as it is, put back afterwards."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    level = root.level
    yield root
    root.setLevel(level)


def test_main(monkeypatch, tmp_path):
    main = importlib.import_module("main")
    monkeypatch.setattr(run_log, "LOG_FOLDER", str(tmp_path / "logs"))
    report = dataset_check.DatasetReport("⟦eos⟧ caf\udce9", 0)
    monkeypatch.setattr(dataset_check, "dataset_report", lambda config: report)
    assert (
        printed(main.main, "--model", "tiny", "--check_dataset") == "\\u27e6eos\\u27e7 caf\\udce9\n"
    )


@pytest.mark.parametrize("name", ["create_tfrecords", "create_tfrecords_beam"])
def test_commands_that_make_records(monkeypatch, name):
    command = importlib.import_module(f"data.{name}")
    if name.endswith("beam"):
        monkeypatch.setattr(command, "parse_beam_arguments", lambda arguments: (Options, None))
    else:
        monkeypatch.setattr(command, "parse_arguments", lambda arguments: Options)
    monkeypatch.setattr(command, "create_records", lambda *options: Options)
    assert printed(command.main, "--some", "option") == "\\u2026\n"


class Options:
    """Stands for options and for an account."""

    repack_epochs = 1

    @staticmethod
    def summary(epochs):
        return "…"


def test_a_tokenizer_is_summed_up(tmp_path):
    command = importlib.import_module("data.train_tokenizer")
    (tmp_path / "café.txt").write_text("one two three " * 20)
    arguments = ["--input_dir", str(tmp_path), "--output_dir", str(tmp_path / "café")]
    last = printed(command.main, *arguments, "--vocab_size", "300").splitlines()[-1]
    assert last.startswith(f"tokenizer: {tmp_path}/caf\\xe9/byte-level-bpe")
    [path] = (tmp_path / "café").iterdir()
    assert json.loads(path.read_text(encoding="utf-8"))["model"]["type"] == "BPE"


def test_the_log_file_takes_every_character(tmp_path, monkeypatch, root_logger):
    monkeypatch.setattr(run_log, "LOG_FOLDER", str(tmp_path))
    monkeypatch.setattr(io, "text_encoding", lambda encoding, level=2: encoding or "ascii")
    run_log.set_up_logging("model", debug=True)
    logging.getLogger("test").warning("⟦é\udce9⟧")
    [handler] = [item for item in root_logger.handlers if isinstance(item, logging.FileHandler)]
    handler.close()
    assert (tmp_path / "model.log").read_text(encoding="utf-8").endswith("⟦é\\udce9⟧\n")


def test_what_stderr_cannot_take_ends_nothing():
    script = (
        "import os, sys, logging; from utils.output import keep_going_without_stderr\n"
        "keep_going_without_stderr()\n"
        "for _ in range(2000): print('é' * 50, file=sys.stderr); sys.stderr.write('x' * 99)\n"
        "print('done')"
    )
    words = [sys.executable, "-c", script]
    with open("/dev/full", "w") as full:
        result = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, cwd=ROOT, text=True)
    assert (result.returncode, result.stdout) == (0, "done\n")
    result = subprocess.run(words, capture_output=True, cwd=ROOT, text=True)
    assert result.stderr == ("é" * 50 + "\n" + "x" * 99) * 2000


def test_a_log_file_on_a_full_disk_is_given_up_once(tmp_path, monkeypatch, root_logger, capfd):
    monkeypatch.setattr(run_log, "LOG_FOLDER", str(tmp_path))
    (tmp_path / "model.log").symlink_to("/dev/full")
    run_log.set_up_logging("model", debug=True)
    for number in range(3):
        logging.getLogger("test").warning("line %d", number)
    first, notice, *others = [line[9:] for line in capfd.readouterr().err.splitlines()]
    assert notice.startswith(f"{tmp_path}/model.log is not written on: ")
    assert "No space left" in notice
    assert [first, *others] == ["line 0", "line 1", "line 2"]
