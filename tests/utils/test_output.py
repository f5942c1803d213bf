"""Where stdout is ASCII, as with LC_ALL=C, a result is printed with escapes and not lost."""

import contextlib
import importlib
import io
import json
import logging

import pytest

from inspection import dataset_check
from utils import run_log


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
