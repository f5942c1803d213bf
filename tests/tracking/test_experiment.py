"""Which record a run's folder names, and what a start that is refused leaves."""

import argparse
import json
import types

import pytest

from tracking import experiment
from tracking.experiment import Experiment
from tracking.output import Output
from utils.run_lock import LOCK_FILE

PID, OTHER = 1234, 4321


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    return path


def track(folder, monkeypatch, *script, runs="runs", new=False):
    """A run whose processes each log some steps, end with an exit code, and print nothing.

    Args:
        script: of each process: steps that appear in the folder, exit code, holder of the lock.
    """
    processes = list(script)

    class Process:
        pid = PID

        def __init__(self, words, output, record):
            self.steps, self.code, holder = processes.pop(0)
            (folder / LOCK_FILE).write_text(f"process {holder} on here\n")

        def wait(self, seconds):
            if not self.steps:
                return self.code
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": self.steps.pop(0), "loss": 2.0}) + "\n")
            return None

        def close(self):
            return ""

    monkeypatch.setattr(experiment, "TrainingProcess", Process)
    config = types.SimpleNamespace(
        model_path=str(folder), train_steps=9, to_json_dict=lambda: {"n_layer": 2}
    )
    arguments = argparse.Namespace(
        runs_dir=str(folder.parent / runs),
        new=new,
        experiment_name="tiny",
        model="tiny.json",
        tpu=None,
        initial_heartbeat_timeout=9.0,
        heartbeat_timeout=9.0,
        restarts=1,
        restart_wait=0.0,
        tensorboard=False,
        recreate_tpu=None,
        no_delete_tpu=False,
    )
    tracked = Experiment(arguments, config, [], Output())
    tracked.run()
    return tracked.record


def named(folder):
    return json.loads((folder / "tracking.json").read_text())["record"]


def status(record):
    with open(f"{record.dir}/run.json") as file:
        return json.load(file)["status"]


def test_a_new_run_that_is_refused_leaves_the_folder_to_the_run_before(folder, monkeypatch):
    first = track(folder, monkeypatch, ([1, 2], 0, PID))
    assert (named(folder), status(first)) == (first.key, "INTERRUPTED")
    refused = track(folder, monkeypatch, ([], 2, PID), new=True)
    assert (named(folder), status(refused)) == (first.key, "FAILED")


def test_a_run_that_the_lock_refuses_leaves_the_folder_to_the_one_that_runs(folder, monkeypatch):
    first = track(folder, monkeypatch, ([1, 2], 0, PID))
    track(folder, monkeypatch, ([3, 4], 2, OTHER), runs="elsewhere")
    assert named(folder) == first.key


def test_a_run_that_is_refused_is_what_it_was_and_one_that_made_steps_has_failed(
    folder, monkeypatch
):
    first = track(folder, monkeypatch, ([1, 2], 0, PID))
    track(folder, monkeypatch, ([], 2, PID))
    assert status(first) == "INTERRUPTED"
    again = track(folder, monkeypatch, ([3, 4], -9, PID), ([], 2, PID))
    assert (again.key, status(again)) == (first.key, "FAILED")


def test_a_record_without_its_output_goes_on(folder, monkeypatch):
    first = track(folder, monkeypatch, ([1, 2], 0, PID))
    (folder.parent / "runs/1/cout.txt").unlink()
    assert track(folder, monkeypatch, ([3, 9], 0, PID)).key == first.key
    assert status(first) == "COMPLETED"


def test_a_picture_that_cannot_be_drawn_does_not_keep_a_run_from_its_end(
    folder, monkeypatch, caplog
):
    def fail(*unused):
        raise RuntimeError("no font")

    monkeypatch.setattr("tracking.plots.write_png", fail)
    record = track(folder, monkeypatch, ([1, 9], 0, PID))
    assert status(record) == "COMPLETED"
    assert "curves.png was not drawn: no font" in caplog.messages


def test_damaged_curves_are_told_before_a_record_goes_on(folder, monkeypatch):
    first = track(folder, monkeypatch, ([1, 2], 0, PID))
    (folder.parent / "runs/1/metrics.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"metrics\.json must hold a JSON object; got list"):
        track(folder, monkeypatch, ([3, 9], 0, PID))
    assert status(first) == "INTERRUPTED"
