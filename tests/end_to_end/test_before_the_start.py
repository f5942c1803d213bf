"""What is refused before anything slow begins, and how main.py ends when it is not listened to."""

import io
import json
import os
import subprocess
import sys

import pytest

from tests.end_to_end.workshop import ROOT, STEPS
from utils.run_lock import TrainingLock

# Runs several command lines and tells of each: exit code, whether TensorFlow, which takes
# seconds, was imported, and what it wrote to stderr.
SEVERAL = """
import contextlib, io, json, sys
import main
for words in json.loads(sys.argv[1]):
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        code = main.main(words)
    print(json.dumps([code, "tensorflow" in sys.modules, err.getvalue()]))
"""


def start(folder, code, *words, **options):
    return subprocess.Popen(
        [sys.executable, *(["-c", code] if code else [str(ROOT / "main.py")]), *map(str, words)],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_what_can_be_told_without_tensorflow_is(trained, workshop):
    train = ["--model", "trained.json", "--set", f"train_steps={STEPS + 1}"]
    evaluate = ["--model", "trained.json", "--eval"]
    predict = ["--model", "trained.json", "--predict"]
    (workshop.folder / "a_file").write_text("")
    dataset = json.loads((workshop.folder / "base.json").read_text())["datasets"][0][0]
    nowhere = dataset | {"eval_path": "nowhere/eval_*"}
    keys = {"model_path": "runs/trained", "datasets": [[nowhere, None, None, None]]}
    workshop.config("no_eval_files", **keys)
    cases = [
        (["--model", workshop.config("untrained"), "--eval"], "model_path must hold a checkpoint"),
        (["--model", workshop.config("untrained"), "--predict"], "model_path must hold a checkp"),
        (["--model", "no_eval_files.json", "--eval"], "dataset tiny must match at least one rec"),
        ([*predict, "--prompt", "absent.txt"], "--prompt must be a readable UTF-8 text file"),
        ([*predict, "--out", "runs"], "--out must name a file; got the folder runs"),
        ([*predict, "--set", "n_head=7"], "the model must stay that of runs/trained/config.json"),
        ([*train, "--set", "n_head=7"], "the model must stay that of runs/trained/config.json"),
        ([*train, "--new"], "--new must be confirmed; got no terminal to ask on"),
        ([*train, "--prompt", "absent.txt"], "--prompt must come with --predict, or with pred"),
        ([*train, "--set", "predict_steps=1", "--prompt", "absent.txt"], "--prompt must be a rea"),
        ([*train, "--set", "model_path=a_file"], "model_path must be a folder; got a_file"),
        ([*evaluate, "--sacred_id", "a/b"], "--sacred_id must be 1 to 100 characters without /"),
    ]
    with TrainingLock(str(workshop.run_folder("locked"))):
        workshop.config("locked")
        words = json.dumps([case for case, _ in cases] + [["--model", "locked.json"]])
        process = start(workshop.folder, SEVERAL, words, stdin=subprocess.DEVNULL)
        out, err = process.communicate(timeout=60)
    assert err == ""
    results = [json.loads(line) for line in out.splitlines()]
    messages = [message for _, message in cases] + ["model_path must be trained by one process at"]
    assert len(results) == len(messages)
    for (code, imported, text), message in zip(results, messages):
        assert text.splitlines()[-1].startswith(f"main.py: error: {message}")
        assert "Traceback" not in text
        assert code == 2
        assert not imported, message


@pytest.mark.parametrize("words", [["--predict", "--prompt", "-"], ["--new"]])
def test_closed_standard_input_is_one_line(trained, program, monkeypatch, words):
    monkeypatch.setattr(sys, "stdin", None)
    result = program("--model", "trained.json", *words)
    assert result.code == 2
    message = {
        "-": "--prompt must be a readable UTF-8 text file; got standard input (it is closed). ",
        "--new": "--new must be confirmed; got no terminal to ask on. Add --yes to delete ",
    }[words[-1]]
    assert result.err.splitlines()[-1].startswith(f"main.py: error: {message}")
    assert "Traceback" not in result.err


def test_a_prompt_on_standard_input_must_be_utf_8(trained, program, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once \xff")))
    result = program("--model", "trained.json", "--predict", "--prompt", "-")
    assert result.code == 2
    assert "byte 0xff in position 5" in result.err


class Terminal(io.StringIO):
    """Standard input of somebody who answers."""

    buffer = io.BytesIO()

    def isatty(self):
        return True


@pytest.mark.parametrize("answer", ["n\n", "", "no\n", "yess\n"])
def test_new_asks_first(trained, workshop, program, monkeypatch, answer):
    before = sorted(workshop.run_folder("trained").iterdir())
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    result = program("--model", "trained.json", "--new")
    assert result.code == 2
    assert "Delete the run in runs/trained and start fresh? [y/N] " in result.err
    assert "--new must be confirmed; got no. Leave it out to resume the run." in result.err
    assert sorted(workshop.run_folder("trained").iterdir()) == before


def test_a_refused_run_leaves_no_folder(workshop, program):
    config = workshop.config("refused", train_batch_size=24, model_path="runs/deep/refused")
    assert program("--model", config).code == 2
    assert not (workshop.folder / "runs" / "deep").exists()


def test_two_processes_do_not_train_in_one_folder(trained, workshop, program):
    with TrainingLock(str(workshop.run_folder("trained"))):
        result = program("--model", "trained.json")
        assert result.code == 2
        assert f"got runs/trained, which process {os.getpid()} on " in result.err
        assert program("--model", "trained.json", "--eval", "--sacred_id", "9").code == 0


# ---- output that nobody reads, and Ctrl-C ------------------------------------------------------


# As a dataset report that has errors: the error comes after the output.
REPORT_THEN_FAIL = """
import sys
import main
def run(arguments):
    print("report")
    raise ValueError("the data must be right; got wrong.")
main.run = run
sys.exit(main.main(["--model", "tiny"]))
"""


@pytest.mark.parametrize(
    ("code", "flag", "written"),
    [
        (None, "--print_config", ""),
        (None, "--help", ""),
        (REPORT_THEN_FAIL, "", "main.py: error: the data must be right; got wrong.\n"),
    ],
)
def test_a_reader_that_has_gone_is_no_error(workshop, code, flag, written):
    process = start(workshop.folder, code, "--model", workshop.config("some"), flag)
    process.stdout.close()
    assert process.stderr.read() == written
    # argparse does not always say whether its help was read.
    assert process.wait(timeout=60) in ((0, 141) if flag == "--help" else (141,))
    process.stderr.close()


# Ctrl-C while each of these is imported, one after another.
INTERRUPTED_IMPORTS = """
import sys
import main
pending = ["utils.command_line", "configs.load", "pydantic", "configs.rules", "utils.run_log"]
class Interrupt:
    def find_spec(self, name, *unused):
        if name in pending:
            pending.remove(name)
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
while pending:
    print(main.main(["--model", "tiny", "--eval"]))
"""


def test_ctrl_c_during_the_imports_is_no_traceback(workshop):
    process = start(workshop.folder, INTERRUPTED_IMPORTS)
    out, err = process.communicate(timeout=60)
    assert out == "130\n" * 5
    assert err == "main.py: interrupted\n" * 5
