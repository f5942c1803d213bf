"""Metrics of many steps in one call: hooks see every step, once and in order."""

import json
import math

import pytest
import tensorflow as tf

from utils.hooks import NOISE_METRICS, FiniteLossGuard, MetricsLog, NonFiniteLossError
from utils.tpu_metrics import HostMetrics, metrics_host_call

PER_CALL, CALLS = 3, 4


def run(folder, losses, every_steps=2):
    """Runs calls of PER_CALL steps each, as the host of a TPU sees them."""
    inner = [
        FiniteLossGuard(str(folder)),
        MetricsLog(str(folder), every_steps, 0, PER_CALL * CALLS, 10, None, NOISE_METRICS),
    ]
    with tf.Graph().as_default():
        step = tf.compat.v1.train.create_global_step()
        before = tf.identity(step)
        values = tf.constant(losses, tf.float32)
        number = tf.compat.v1.placeholder_with_default(0, [])
        metrics = {
            "step": number,
            "loss": values[number - 1],
            "learning_rate": tf.constant(0.5),
            "grad_norm": tf.constant(2.0),
            "labels": tf.constant(7),
            "noise_scale": tf.constant(11.0),
            "noise_scale_gradient": tf.constant(0.25),
            "noise_scale_variance": tf.constant(math.nan),
            "grads/norm/w": tf.constant(3.0),
        }
        remember, _ = metrics_host_call(metrics, PER_CALL, "/device:CPU:0")
        done = [before]
        for one in range(1, PER_CALL + 1):
            with tf.control_dependencies(done):
                at = tf.cast(before, tf.int32) + one
                columns = [at, values[at - 1], *list(metrics.values())[2:]]
                # two cores, which tell the same
                done = [remember(*(tf.stack([column, column]) for column in columns))]
        with tf.control_dependencies(done):
            call = tf.compat.v1.assign_add(step, PER_CALL)
        hook = HostMetrics(inner, str(folder), every_steps)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(CALLS):
                session.run(call)


def test_every_step_is_seen_once(tmp_path):
    losses = [5.0 - 0.25 * number for number in range(PER_CALL * CALLS)]
    run(tmp_path, losses)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 4, 6, 8, 10, 12]
    assert [line["loss"] for line in lines] == [losses[line["step"] - 1] for line in lines]
    assert all((line["learning_rate"], line["grad_norm"]) == (0.5, 2.0) for line in lines)
    noise = [[line[name] for name in NOISE_METRICS] for line in lines]
    assert noise == [[11.0, 0.25, None]] * 7  # what is not known is null in JSON


def test_summaries_hold_what_is_not_in_the_lines_too(tmp_path):
    run(tmp_path, [1.0] * PER_CALL * CALLS)
    [path] = tmp_path.glob("events.out.tfevents.*")
    found = {}
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    assert found["loss"] == [(step, 1.0) for step in (2, 4, 6, 8, 10, 12)]
    assert {"learning_rate", "grad_norm", "grads/norm/w"} < set(found)


def test_the_first_bad_step_of_a_call_is_named(tmp_path):
    losses = [1.0] * 7 + [math.nan] * 5
    with pytest.raises(NonFiniteLossError, match=r"loss must be finite; got nan at step 8\. "):
        run(tmp_path, losses)
