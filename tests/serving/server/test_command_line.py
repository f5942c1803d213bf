"""What serve.py refuses, before it loads anything; and its --help."""

import socket
import subprocess
import sys

import pytest

import serve
from serving.server.command_line import build_parser, parse_arguments
from tests.serving.server.running import ROOT


@pytest.fixture
def run(capfd, monkeypatch, tmp_path):
    """Calls serve.py in an empty folder; returns its code and the last line of stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr("utils.run_log.set_up_logging", lambda name, debug: None)
        code = serve.main([str(word) for word in words])
        captured = capfd.readouterr()
        assert captured.out == ""
        return code, captured.err.splitlines()[-1]

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: --model"),
        (["--model", "tiny", "--prot", "1"], "unrecognized arguments: --prot 1"),
        (["--model", "tiny", "--port", "70000"], "must be at most 65535; got '70000'"),
        (["--model", "tiny", "--most_waiting", "0"], "must be a whole number of at least 1"),
        (
            ["--model", "tiny", "--tpu", "a", "--gpu_ids", "0"],
            "--tpu must not be combined with --gpu_ids; got both. Remove one of them.",
        ),
        (["--model", "tiny", "--gpu_ids", "x"], "--gpu_ids must be device numbers or names"),
        (
            ["--model", "tiny", "--api_key_file", "none"],
            "--api_key_file must be a readable text file; got none",
        ),
        (["--model", "tiny"], "model_path must hold a checkpoint; got none in runs/tiny"),
    ],
)
def test_wrong_flags(run, words, message):
    code, line = run(*words)
    assert code == 2
    assert line.startswith("serve.py: error: ") and message in line


def test_a_wrong_config(run):
    code, line = run("--model", "tiny", "--set", "n_head=3")
    assert code == 2 and line.startswith("  n_embd: must be a multiple of n_head 3")


@pytest.mark.parametrize("content", ["", " \n", "two words", "schlüssel"])
def test_a_file_without_a_key(run, tmp_path, content):
    (tmp_path / "key").write_text(content, encoding="utf-8")
    code, line = run("--model", "tiny", "--api_key_file", "key")
    assert code == 2
    assert "--api_key_file must hold one key of ASCII characters without space; got key" in line


def test_an_address_that_is_taken_or_not_ours(run, model_config):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, line = run("--model", model_config, "--port", port)
    assert code == 2
    assert f"--host and --port must be a free address of this machine; got 127.0.0.1:{port}" in line
    code, line = run("--model", model_config, "--host", "192.0.2.1")
    assert code == 2 and "got 192.0.2.1:8000 (Cannot assign requested address)" in line


def test_a_masked_model_is_refused(run, model_config):
    words = ("--set", "mlm_training=true", "--set", "mlm_mask_id=3")
    code, line = run("--model", model_config, *words)
    assert code == 2 and "masked" in line


def test_defaults_are_safe():
    arguments = parse_arguments(["--model", "tiny"])
    assert (arguments.host, arguments.port) == ("127.0.0.1", 8000)
    assert arguments.gpu_ids == () and arguments.most_waiting == 64
    assert parse_arguments(["--model", "a", "--gpu_ids", "1"]).gpu_ids == ("device:GPU:1",)


def test_help_answers_at_once_and_says_each_default():
    """Without TensorFlow."""
    code = "import sys, serve\ntry:\n serve.main(['--help'])\nfinally:\n"
    code += " assert not {'tensorflow', 'fastapi'} & set(sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    for action in build_parser()._actions:
        assert action.dest == "help" or "(default: " in action.help
        assert action.option_strings[-1] in shown.stdout
