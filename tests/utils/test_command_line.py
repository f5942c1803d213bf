"""The flags are frozen, and what cannot work is one line and exit code 2."""

import re

import pytest

from utils.command_line import build_parser, parse_arguments, parse_gpu_ids

FLAGS = {
    "--auto_layout",
    "--auto_layout_and_mesh_shape",
    "--check_dataset",
    "--cluster",
    "--cluster_timeout",
    "--debug",
    "--dry_run",
    "--entmax_sampling",
    "--eval",
    "--export",
    "--fit_mesh",
    "--fresh_opt",
    "--gpu_ids",
    "--help",
    "--init_from",
    "--max_new_tokens",
    "--model",
    "--new",
    "--num_samples",
    "--out",
    "--predict",
    "--print_config",
    "--prompt",
    "--repetition_penalty",
    "--sacred_id",
    "--seed",
    "--set",
    "--steps_per_checkpoint",
    "--stop",
    "--task",
    "--temperature",
    "--top_k",
    "--top_p",
    "--tpu",
    "--yes",
    "-h",
}


def error_of(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        parse_arguments(words)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.strip().removeprefix("main.py: error: ")


def test_flags_are_frozen():
    options = {option for action in build_parser()._actions for option in action.option_strings}
    assert options == FLAGS


def test_help_states_the_default_of_every_switch(capsys):
    for action in build_parser()._actions:
        if action.dest != "help":
            assert re.search(r" \(default: .+\)$", action.help), action.option_strings
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--help"])
    assert caught.value.code == 0
    assert "(default: 5000)" in capsys.readouterr().out


def test_defaults():
    namespace = parse_arguments(["--model", "tiny"])
    assert namespace.mode == "train"
    assert (namespace.steps_per_checkpoint, namespace.gpu_ids, namespace.overrides) == (
        5000,
        (),
        [],
    )
    assert (namespace.tpu, namespace.sacred_id, namespace.prompt) == (None, None, None)
    assert (namespace.temperature, namespace.top_k, namespace.seed) == (None, None, None)


@pytest.mark.parametrize(
    ("flag", "mode"),
    [
        ("--predict", "predict"),
        ("--eval", "eval"),
        ("--export", "export"),
        ("--check_dataset", "check_dataset"),
        ("--dry_run", "dry_run"),
        ("--print_config", "print_config"),
        ("--auto_layout", "auto_layout"),
        ("--auto_layout_and_mesh_shape", "auto_layout"),
    ],
)
def test_modes(flag, mode):
    assert parse_arguments(["--model", "tiny", flag]).mode == mode


def test_overrides_and_sampling():
    words = "--model a.json --set lr=1 --set n_ctx=8 --predict --prompt - --temperature 0 --top_k 3"
    namespace = parse_arguments([*words.split(), "--top_p", "0.9", "--seed", "7", "--out", "x"])
    assert namespace.overrides == ["lr=1", "n_ctx=8"]
    assert (namespace.prompt, namespace.temperature, namespace.top_k) == ("-", 0.0, 3)
    assert (namespace.top_p, namespace.seed, namespace.out) == (0.9, 7, "x")


@pytest.mark.parametrize(
    "values",
    [
        ["0,1"],
        ["0", "1"],
        ["0,", "1"],
        ["GPU:0", "gpu:1"],
        ["device:GPU:0", "device:GPU:1"],
        ["device:GPU:0,device:GPU:1"],
        ["/device:GPU:0", "1"],
    ],
)
def test_gpu_ids_mean_the_same(values):
    assert parse_gpu_ids(values) == ("device:GPU:0", "device:GPU:1")
    assert parse_arguments(["--model", "a", "--gpu_ids", *values]).gpu_ids == parse_gpu_ids(values)


def test_virtual_cpu_devices():
    assert parse_gpu_ids(["device:CPU:0", "CPU:1"]) == ("device:CPU:0", "device:CPU:1")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "--gpu_ids must name at least one device; got none. Write --gpu_ids 0."),
        (
            ["gpu0"],
            "--gpu_ids must be device numbers or names; got 'gpu0'. "
            "Write 0 1, or device:GPU:0 device:GPU:1.",
        ),
        (["-1"], "--gpu_ids must be device numbers or names; got '-1'. "),
        (["TPU:0"], "--gpu_ids must be device numbers or names; got 'TPU:0'. "),
        (
            ["0", "device:GPU:0"],
            "--gpu_ids must name each device once; got device:GPU:0 twice. Remove one.",
        ),
        (
            ["0", "CPU:1"],
            "--gpu_ids must be all GPUs or all CPUs; got device:GPU:0 device:CPU:1. "
            "Choose one kind.",
        ),
    ],
)
def test_wrong_gpu_ids(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_gpu_ids(values)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--model must be given; got none. Name a shipped config or a JSON file."),
        ("--modle x", "--modle is not a flag of main.py. Did you mean --model?"),
        ("--model x --dry-run", "--dry-run is not a flag of main.py. Did you mean --dry_run?"),
        ("--model x -predict", "-predict is not a flag of main.py. Did you mean --predict?"),
        (
            "--model x --run_mode sample",
            "--run_mode is not a flag of main.py. Did you mean --predict?",
        ),
        ("--model x --bogus", "--bogus is not a flag of main.py. See --help for all flags."),
        ("--model x --dry", "--dry is not a flag of main.py. Did you mean --dry_run?"),
        ("--model x --pred", "--pred is not a flag of main.py. Did you mean --predict?"),
        ("--model x --zzz", "--zzz is not a flag of main.py. See --help for all flags."),
        ("--model x stray", "every value must follow its flag; got stray. Remove it."),
        (
            "--model x --tpu=",
            "--tpu must name a TPU; got an empty name. Write its name, grpc://HOST:PORT, local or "
            "colab, or leave it out.",
        ),
        (
            "--model x --tpu t --gpu_ids 0",
            "--tpu must not be combined with --gpu_ids; got both. Remove one of them.",
        ),
        (
            "--model x --predict --eval",
            "the mode of a run must be one; got --predict and --eval. Keep one of them.",
        ),
        (
            "--model x --top_k 3",
            "--top_k is for --predict only; got no --predict. Add it.",
        ),
        (
            "--model x --eval --prompt p --out o --entmax_sampling",
            "--prompt, --entmax_sampling, --out are for --predict only; got no --predict. Add it.",
        ),
        (
            "--model x --eval --out o",
            "--out is for --predict and --export only; got neither. Add one of them.",
        ),
        (
            "--model x --export --gpu_ids 0",
            "--gpu_ids must not be combined with --export, since a SavedModel names no devices; "
            "got both. Remove one of them.",
        ),
        (
            "--model x --new --eval",
            "--new must not be combined with --eval; got both. Remove one of them.",
        ),
        (
            "--model x --fit_mesh --auto_layout_and_mesh_shape",
            "--fit_mesh must not be combined with --auto_layout_and_mesh_shape; got both. Remove "
            "one of them.",
        ),
        (
            "--model x --check_dataset --fit_mesh",
            "--fit_mesh must not be combined with --check_dataset; got both. Remove one of them.",
        ),
        (
            "--model x --cluster a:1 b:1",
            "--cluster must come with --task; got it alone. Add the number of this host.",
        ),
        (
            "--model x --task 1",
            "--task must come with --cluster; got it alone. Add the list of all hosts.",
        ),
        (
            "--model x --cluster a:1 --task 0 --tpu t",
            "--cluster must not be combined with --tpu; got both. Remove one of them.",
        ),
        (
            "--model x --cluster a:1 --task 0 --eval",
            "--cluster is for training only; got --eval. Remove one of them.",
        ),
        ("--model x --yes", "--yes must come with --new; got it alone. Remove it or add --new."),
        (
            "--model x --steps_per_checkpoint 0",
            "argument --steps_per_checkpoint: must be a whole number of at least 1; got '0'. "
            "Change it.",
        ),
        (
            f"--model x --predict --seed {10**30}",
            f"argument --seed: must be at most 2147483647; got '{10**30}'. Change it.",
        ),
        (
            "--model x --gpu_ids " + "9" * 5000,
            f"--gpu_ids must be device numbers or names; got '{'9' * 5000}'. "
            "Write 0 1, or device:GPU:0 device:GPU:1.",
        ),
        (
            "--model x --predict --temperature -1",
            "argument --temperature: must be a number of at least 0; got '-1'. "
            "Use 0 for the most likely token.",
        ),
        (
            "--model x --predict --top_p 1.5",
            "argument --top_p: must be above 0 and at most 1; got '1.5'. "
            "Use 1 to sample among all tokens.",
        ),
        (
            "--model x --predict --repetition_penalty 0",
            "argument --repetition_penalty: must be a number above 0; got '0'. "
            "Use 1 for no penalty.",
        ),
        (
            r"--model x --predict --stop a\d",
            r"argument --stop: must be a text whose escapes are \n \t \r \\; got \d in 'a\\d'. "
            r"Write \\ for a backslash.",
        ),
        (
            "--model x --predict --stop=",
            r"argument --stop: must be a text whose escapes are \n \t \r \\; got an empty text. "
            r"Write \\ for a backslash.",
        ),
        (
            "--model x --eval --stop a",
            "--stop is for --predict only; got no --predict. Add it.",
        ),
        (
            "--model x --gpu_ids nope",
            "--gpu_ids must be device numbers or names; got 'nope'. "
            "Write 0 1, or device:GPU:0 device:GPU:1.",
        ),
    ],
)
def test_usage_errors(capsys, words, message):
    assert error_of(capsys, *words.split()) == message


def test_escapes_of_stop_strings():
    words = ["--model", "x", "--predict", "--stop", r"\n\nQ:", "--stop", r"a\\n\té"]
    assert parse_arguments(words).stop == ["\n\nQ:", "a\\n\té"]
    assert parse_arguments(words[:3]).stop is None
