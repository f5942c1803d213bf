"""Training on several hosts: processes on loopback, each with its own command line."""

import contextlib
import json
import signal
import socket
import time

import numpy as np
import pytest

from tests.end_to_end.workshop import Result, finish, once, wait_for_step

SMALL = {
    "n_layer": 1,
    "attention_types": [[["global"], 1]],
    "max_to_keep": 9,
    "local_attention_radius": None,
}
STEPS_PER_CHECKPOINT = 50
ENDLESS = 100_000  # steps: such a run ends by what is done to it
SPLIT = {"mesh_shape": "x:2", "layout": "batch:x", "train_steps": ENDLESS} | SMALL
TWO = ["--gpu_ids", "device:CPU:0", "device:CPU:1"]


def addresses(count):
    """Free ports of this host; another process could take one, but hardly does."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("localhost", 0))
        return [f"localhost:{probe.getsockname()[1]}" for probe in probes]


def start_by_flags(workshop, *words):
    """The chief, and a worker that does not see the records."""
    hosts = addresses(2)
    return [
        workshop.start(*words, "--cluster", *hosts, "--task", number, elsewhere=number == 1)
        for number in range(2)
    ]


def start_by_variable(workshop, *words):
    """The same, as an operator on Kubernetes sets it."""
    chief, worker = addresses(2)
    cluster = {"chief": [chief], "worker": [worker]}
    tasks = [{"type": "chief", "index": 0}, {"type": "worker", "index": 0}]
    configs = [{"cluster": cluster, "task": task, "environment": "cloud"} for task in tasks]
    return [workshop.start(*words, TF_CONFIG=json.dumps(config)) for config in configs]


@pytest.fixture(scope="module")
def interrupted(workshop):
    """A run of which the worker is killed, then the chief, then the worker is asked to end.

    Returns for each of these how chief and worker ended, which checkpoints there were then, and
    how many seconds the end took.
    """

    def make():
        config = workshop.config("cluster", **SPLIT)
        words = ["--model", config, "--steps_per_checkpoint", STEPS_PER_CHECKPOINT]
        ends = []
        for begin, whom, number, step in (
            (start_by_flags, 1, signal.SIGKILL, STEPS_PER_CHECKPOINT + 10),
            (start_by_variable, 0, signal.SIGKILL, 2 * STEPS_PER_CHECKPOINT + 10),
            (start_by_variable, 1, signal.SIGTERM, 2 * STEPS_PER_CHECKPOINT + 30),
        ):
            processes = begin(workshop, *words)
            wait_for_step(workshop, "cluster", step, processes[0])
            processes[whom].send_signal(number)
            killed_at = time.monotonic()
            results = [finish(process) for process in processes]
            seconds = time.monotonic() - killed_at
            ends.append((results, workshop.checkpoints("cluster"), seconds))
        return ends

    return [
        ([Result(*result) for result in results], checkpoints, seconds)
        for results, checkpoints, seconds in once(workshop, "cluster", make)
    ]


def test_a_lost_worker_ends_the_chief(interrupted):
    (chief, worker), checkpoints, seconds = interrupted[0]
    assert worker.code == -signal.SIGKILL
    assert chief.code == 1
    assert chief.out == ""
    message = chief.err.splitlines()[-1]
    assert message.startswith("main.py: error: worker 1 (localhost:")
    assert " must stay until the end of the run; got no process there" in message
    newest = f"runs/cluster/model.ckpt-{checkpoints[-1]}"
    assert f". Last good checkpoint: {newest}. Start the same command on every host" in message
    assert "Traceback" not in chief.err
    assert seconds < 60


def test_a_lost_chief_ends_the_worker(interrupted):
    (chief, worker), _, seconds = interrupted[1]
    assert chief.code == -signal.SIGKILL
    assert worker.code == 1
    message = worker.err.splitlines()[-1]
    assert message.startswith("main.py: error: chief 0 (localhost:")
    assert " must stay until the end of the run; got no process there" in message
    assert "Traceback" not in worker.err
    assert seconds < 60


def test_a_worker_that_is_asked_to_end_lets_the_chief_save(interrupted, workshop):
    (chief, worker), checkpoints, _ = interrupted[2]
    assert (chief.code, worker.code) == (0, 0)
    assert "SIGTERM: chief 0 (localhost:" in worker.err
    last = chief.err.splitlines()[-1]
    assert "stopped by SIGTERM on worker 0 (localhost:" in last
    assert last.endswith(f"): runs/cluster/model.ckpt-{checkpoints[-1]}")
    assert workshop.metrics("cluster")[-1]["step"] == checkpoints[-1]
    assert "serves its devices to chief 0 (localhost:" in worker.err
    assert worker.err.splitlines()[-1].endswith(" is done; ending")
    assert worker.out == ""


def test_who_reads_is_told(interrupted):
    (chief, _), _, _ = interrupted[0]
    told = next(line for line in chief.err.splitlines() if "reads the records" in line)
    assert "worker 0 (localhost:" in told
    assert " reads the records for all hosts, since not all see the same: worker 1 (" in told
    assert told.endswith(".tfrecords; No such file or directory")
    for (chief, _), _, _ in interrupted[1:]:
        assert "every host reads the records, and of each batch the rows of its" in chief.err


def test_two_interrupted_hosts_do_what_one_unbroken_process_does(interrupted, workshop, program):
    """To the bit, whether the chief read for both or each for itself: each resume began at the
    newest checkpoint, and sums have the same order.
    """
    steps = interrupted[-1][1][-1]
    config = workshop.config("one_host", **(SPLIT | {"train_steps": steps}))
    assert program("--model", config, *TWO).code == 0
    several, one = workshop.variables("cluster"), workshop.variables("one_host")
    assert several.keys() == one.keys()
    assert not [name for name in one if not np.array_equal(several[name], one[name])]
    keys = ("step", "loss", "grad_norm", "learning_rate")
    last, other = workshop.metrics("cluster")[-1], workshop.metrics("one_host")[-1]
    assert [last[key] for key in keys] == [other[key] for key in keys]


def test_a_missing_host_is_named(workshop, program):
    hosts = addresses(2)
    config = workshop.config("lonely", **SPLIT)
    flags = ["--cluster", ",".join(hosts), "--task", 0, "--cluster_timeout", 2]
    result = program("--model", config, *flags)
    assert result.code == 1
    assert f"waiting for worker 1 ({hosts[1]}): 0 of 2 s\n" in result.err
    assert result.err.splitlines()[-1].startswith(
        "main.py: error: all hosts must be there within 2 s; still missing: worker 1 "
        f"({hosts[1]}): "
    )
    assert not workshop.run_folder("lonely").exists()


def test_a_port_in_use_is_named(workshop, program):
    config = workshop.config("taken", **SPLIT)
    with socket.socket() as other:
        other.bind(("localhost", 0))
        other.listen()
        here = f"localhost:{other.getsockname()[1]}"
        result = program("--model", config, "--cluster", "localhost:1", here, "--task", 1)
    assert result.code == 2
    assert result.err == (
        f"main.py: error: the port of worker 1 ({here}) must be free on this host; got: Address "
        "already in use. Stop what uses it, or give the host another port.\n"
    )
    assert not workshop.run_folder("taken").exists()


def test_evaluation_is_work_for_the_chief_alone(workshop, program, monkeypatch):
    values = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(values))
    result = program("--model", workshop.config("scored", **SPLIT), "--eval")
    assert (result.code, result.out) == (0, "")
    assert "--eval runs on worker 0 (a:1) alone; nothing to do on worker 1 (b:1)" in result.err
    monkeypatch.setenv("TF_CONFIG", json.dumps(values | {"task": {"type": "worker", "index": 0}}))
    result = program("--model", workshop.config("scored", **SPLIT), "--eval")
    assert "--eval runs on worker 0 (a:1) alone\n" in result.err
    assert "model_path must hold a checkpoint" in result.err  # so far it came
