"""Damaged records end every command with one line that names the file."""

import gzip
import json

import pytest


@pytest.fixture
def damaged(trained, workshop):
    """A copy of the trained run, with compressed records; the last files of them are damaged."""
    folder = workshop.folder / "damaged"
    if not folder.exists():
        folder.mkdir()
        for path in (workshop.folder / "records").glob("*.tfrecords"):
            content = bytearray(gzip.compress(path.read_bytes()))
            if path.name in ("train_2_5.tfrecords", "eval_1_1.tfrecords"):
                content[len(content) // 2 :] = b""
            (folder / f"{path.name}.gz").write_bytes(content)
    [[dataset, *rest]] = json.loads((workshop.folder / "base.json").read_text())["datasets"]
    dataset |= {key: f"damaged/{key_of}_*.gz" for key, key_of in PATTERNS.items()}
    keys = {"train_steps": 310, "lr_decay_end": 310, "shuffle_input_filenames": False}
    return lambda name: workshop.copy_run("trained", name, datasets=[[dataset, *rest]], **keys)


PATTERNS = {"path": "train", "eval_path": "eval"}


def test_training_and_evaluation_say_which_file_is_damaged(damaged, program):
    config = damaged("damaged_run")
    for words, file in (((), "train_2_5"), (("--eval",), "eval_1_1")):
        result = program("--model", config, *words)
        assert (result.code, result.out) == (1, ""), result.err
        assert "Traceback" not in result.err
        *_, last = result.err.splitlines()
        assert last.startswith(
            f"main.py: error: record file damaged/{file}.tfrecords.gz must be whole and hold "
            f"{file[-1]} records, as its name says; got none that can be read after record "
        )


def test_the_report_says_which_files_are_damaged(damaged, program):
    result = program("--model", damaged("damaged_check"), "--check_dataset")
    assert result.code == 2
    for file in ("train_2_5", "eval_1_1"):
        start = f"  ERROR      record file must exist and be whole; got damaged/{file}.tfrecords.gz"
        assert [line for line in result.out.splitlines() if line.startswith(start)]
    assert result.err.splitlines()[-1] == (
        "main.py: error: datasets must be free of errors; got 2 in the report. Mend what its ERROR "
        "lines say."
    )
