"""Flags of run_experiment.py."""

import pytest

from tracking.command_line import parse_experiment


def test_words_of_main_are_passed_on():
    arguments, words = parse_experiment(
        ["--experiment_name", "first", "--model", "tiny", "--set", "lr=0.1", "--restarts=5"]
        + ["--gpu_ids", "device:CPU:0", "device:CPU:1", "--no_delete_tpu", "--runs_dir", "records"]
    )
    assert words == [
        *("--model", "tiny", "--set", "lr=0.1"),
        *("--gpu_ids", "device:CPU:0", "device:CPU:1"),
    ]
    assert (arguments.experiment_name, arguments.restarts) == ("first", 5)
    assert (arguments.initial_heartbeat_timeout, arguments.heartbeat_timeout) == (7200, 1800)
    assert (arguments.runs_dir, arguments.overrides) == ("records", ["lr=0.1"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--predict"], r"must train; got --predict\. Run main\.py for that"),
        (["--sacred_id", "7"], r"--sacred_id must be left out, .*; got 7\. Remove it"),
        (["--experiment_name", " "], r"--experiment_name must not be empty"),
        (["--new"], r"--new must be confirmed, .*; got no --yes\. Add it"),
        (["--recreate_tpu", "true"], r"--recreate_tpu must come with --tpu; got it alone"),
        (["--heartbeat_timeout", "0"], r"must be a whole number of at least 1; got '0'"),
        (["--runs_dir", "gs://b/x"], r"--runs_dir: must be a local folder; got gs://b/x\."),
        (["--mongo_ur", "x"], r"--mongo_ur is not a flag of run_experiment\.py"),
    ],
)
def test_what_cannot_be_is_one_line(words, message, capsys):
    import re

    with pytest.raises(SystemExit) as stop:
        parse_experiment(["--model", "tiny", *words])
    assert stop.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("run_experiment.py: error: ")
    assert re.search(message, line)
