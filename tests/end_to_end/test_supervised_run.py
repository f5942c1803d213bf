"""run_experiment.py with training processes that are really killed, frozen, and left alone."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.test_tracked_run import record, start
from tests.end_to_end.workshop import ROOT, finish, wait_for_step
from tests.tracking.services import wait_until

STEPS, STEPS_PER_CHECKPOINT = 600, 100


def training_process(workshop, runs, process, starts):
    """Id of the training process of a run's ``starts``-th start, once it is in the record."""

    def started():
        assert process.poll() is None, process.communicate()
        return len(record(workshop, runs, 1, "info.json")["starts"]) == starts

    wait_until(started, f"start {starts}", 200.0)
    return record(workshop, runs, 1, "info.json")["starts"][-1]["pid"]


def is_alive(pid):
    """Whether a process is there and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_killed_and_a_frozen_run_end_as_if_nothing_had_been(workshop):
    config = workshop.config("supervised", train_steps=STEPS, eval_steps=0)
    process = start(
        workshop,
        *("--model", config, "--steps_per_checkpoint", STEPS_PER_CHECKPOINT),
        *("--heartbeat_timeout", 12, "--restart_wait", 0, "--restarts", 3),
        runs="supervision",
    )
    killed = training_process(workshop, "supervision", process, 1)
    wait_for_step(workshop, "supervised", STEPS_PER_CHECKPOINT + 10, process)
    os.kill(killed, signal.SIGKILL)

    frozen = training_process(workshop, "supervision", process, 2)
    wait_for_step(workshop, "supervised", 2 * STEPS_PER_CHECKPOINT + 10, process)
    os.kill(frozen, signal.SIGSTOP)
    result = finish(process)

    assert result.code == 0, result.err
    assert result.err.splitlines()[-1] == "supervision/1: COMPLETED"
    assert "the training process was killed by SIGKILL: restart 1 of 3" in result.err
    assert "the training process gave no sign of life for 12 s: ending it" in result.err
    assert not is_alive(frozen)
    run = record(workshop, "supervision", 1)
    assert run["status"] == "COMPLETED"
    assert "fail_trace" not in run
    curves = record(workshop, "supervision", 1, "metrics.json")
    assert curves["loss"]["steps"] == [line["step"] for line in workshop.metrics("supervised")]
    starts = record(workshop, "supervision", 1, "info.json")["starts"]
    assert [start["pid"] for start in starts][:2] == [killed, frozen]
    # Every restart went on from the checkpoint before, and did no step of the schedule twice.
    steps = curves["loss"]["steps"]
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS


def test_training_stops_with_a_checkpoint_when_its_supervisor_is_killed(workshop):
    config = workshop.config("orphaned", train_steps=100_000)
    process = start(workshop, "--model", config, runs="orphans")
    pid = training_process(workshop, "orphans", process, 1)
    marker = workshop.run_folder("orphaned") / "tracking.json"
    wait_until(marker.exists, "the run's first step")
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(pid), "the end of training")
    [saved] = [step for step in workshop.checkpoints("orphaned") if step]
    assert saved == workshop.metrics("orphaned")[-1]["step"]
    assert record(workshop, "orphans", 1)["status"] == "RUNNING"
    assert (
        json.loads(marker.read_text())["record"]
        == record(workshop, "orphans", 1, "info.json")["key"]
    )


def test_a_run_that_dies_again_and_again_is_given_up(workshop):
    config = workshop.config("dying")
    process = start(
        workshop,
        *("--model", config, "--restarts", 1, "--restart_wait", 0),
        runs="deaths",
    )
    for number in (1, 2):
        os.kill(training_process(workshop, "deaths", process, number), signal.SIGKILL)
    result = finish(process)
    assert result.code == 1
    assert "1 restarts in a row have led to no new checkpoint: giving up" in result.err
    run = record(workshop, "deaths", 1)
    assert run["status"] == "FAILED"
    assert run["fail_trace"][-1] == "the training process was killed by SIGKILL\n"


def test_training_goes_on_without_stderr(workshop):
    config = workshop.config("closed", train_steps=20)
    words = [sys.executable, str(ROOT / "main.py"), "--model", config]
    shell = f"exec {shlex.join(words)} 2>&-"
    assert subprocess.run(["sh", "-c", shell], cwd=workshop.folder, timeout=200).returncode == 0
    assert workshop.checkpoints("closed")[-1] == 20


def test_training_goes_on_when_what_it_prints_cannot_be_written(workshop):
    config = workshop.config("unheard", train_steps=20)
    with open("/dev/full", "w") as full:
        process = workshop.start("--model", config, stderr=full)
    assert process.wait(200) == 0
    assert workshop.checkpoints("unheard")[-1] == 20
