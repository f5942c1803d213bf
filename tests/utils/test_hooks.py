"""Metrics, the stop signals, the guard against NaN and the reports after checkpoints."""

import json
import os
import signal
from types import SimpleNamespace

import pytest
import tensorflow as tf

from utils.hooks import (
    AfterSave,
    FiniteLossGuard,
    LabelWatch,
    MetricsLog,
    NonFiniteLossError,
    StopOnSignal,
    drop_metrics_after,
)

# ---- metrics -----------------------------------------------------------------------------------


def line(step):
    return json.dumps({"step": step, "loss": 1.5}) + "\n"


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("", ""),
        (line(1) + line(4), line(1) + line(4)),
        (line(1) + line(4) + line(5) + line(8), line(1) + line(4)),
        (line(5) + line(8), ""),
        (line(1) + line(4)[:9], line(1)),  # torn by a kill
        (line(1) + line(4)[:-2], line(1)),
        (line(1) + line(4)[:-1], line(1) + line(4)),  # only the newline is missing
        (line(1) + line(8)[:-1], line(1)),
        (line(1) + '"step"\n' + "7\n" + "{}\n" + line(3), line(1) + line(3)),
    ],
)
def test_lines_past_the_step_and_torn_lines_are_dropped(tmp_path, content, kept):
    path = tmp_path / "metrics.jsonl"
    path.write_text(content)
    drop_metrics_after(str(path), 4)
    assert path.read_text() == kept
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_no_metrics_are_no_error(tmp_path):
    drop_metrics_after(str(tmp_path / "metrics.jsonl"), 4)
    assert list(tmp_path.iterdir()) == []


def values(step, loss=2.0, grad_norm=0.5):
    results = {"step": step, "loss": loss, "learning_rate": 0.25, "grad_norm": grad_norm}
    return SimpleNamespace(results=results)


def log_steps(folder, start, until, total=10, epoch_of_step=None):
    log = MetricsLog(str(folder), 4, start, total, 100, epoch_of_step)
    log.begin()
    for step in range(start + 1, until + 1):
        log.after_run(None, values(step))
    return log


def steps_of(folder):
    text = (folder / "metrics.jsonl").read_text()
    return [json.loads(text_line)["step"] for text_line in text.splitlines()]


def test_first_last_and_every_nth_step_are_logged(tmp_path):
    log_steps(tmp_path / "run", 0, 10).end(None)
    assert steps_of(tmp_path / "run") == [1, 4, 8, 10]


def test_a_stopped_run_logs_its_last_step(tmp_path):
    log_steps(tmp_path, 0, 6).end(None)
    assert steps_of(tmp_path) == [1, 4, 6]
    log_steps(tmp_path, 6, 10).end(None)
    assert steps_of(tmp_path) == [1, 4, 6, 7, 8, 10]


def test_a_killed_run_leaves_no_duplicates(tmp_path):
    log_steps(tmp_path, 0, 9)  # no end: killed; the newest checkpoint is of step 5
    log_steps(tmp_path, 5, 10).end(None)
    assert steps_of(tmp_path) == [1, 4, 6, 8, 10]


def test_a_line_holds_speed_and_epoch(tmp_path, monkeypatch):
    now = iter([50.0, 50.5, 52.5])
    monkeypatch.setattr("utils.hooks.time", SimpleNamespace(monotonic=lambda: next(now)))
    log_steps(tmp_path, 2, 4, epoch_of_step=lambda step: step / 8)
    lines = [json.loads(text) for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    shared = {"loss": 2.0, "learning_rate": 0.25, "grad_norm": 0.5}
    assert lines == [
        {"step": 3, "tokens_per_second": 200.0, "epoch": 0.375, **shared},
        {"step": 4, "tokens_per_second": 50.0, "epoch": 0.5, **shared},
    ]


# ---- labels ------------------------------------------------------------------------------------


def watch(*labels):
    hook = LabelWatch()
    for step, count in enumerate(labels, start=1):
        hook.after_run(None, SimpleNamespace(results={"step": step, "labels": count}))
    hook.end(None)


def test_steps_without_labels_are_told_once_and_summed_up(caplog):
    watch(5, 0, 3, 0)
    first, total = (record.message for record in caplog.records)
    assert first.startswith(
        "training must predict at least one token per step; got none at step 2, which teaches"
    )
    assert total == "2 of 4 steps predicted no token"


def test_steps_with_labels_are_no_news(caplog):
    watch(5, 1)
    assert not caplog.records


# ---- not a number ------------------------------------------------------------------------------


def write_state(folder, steps):
    paths = "".join(f'all_model_checkpoint_paths: "model.ckpt-{step}"\n' for step in steps)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{steps[-1]}"\n{paths}')


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"loss": float("nan")}, "loss must be finite; got nan at step 8. "),
        ({"loss": float("inf")}, "loss must be finite; got inf at step 8. "),
        ({"grad_norm": float("-inf")}, "gradient norm must be finite; got -inf at step 8. "),
    ],
)
def test_a_step_that_is_not_finite_ends_the_run(tmp_path, bad, message):
    write_state(tmp_path, [0, 3, 6])
    guard = FiniteLossGuard(str(tmp_path))
    guard.after_run(None, values(7))
    with pytest.raises(NonFiniteLossError) as caught:
        guard.after_run(None, values(8, **bad))
    expected = message + f"Last good checkpoint: {tmp_path}/model.ckpt-6. Continue from there"
    assert str(caught.value).startswith(expected)


def fail_at_step_8(folder):
    with pytest.raises(NonFiniteLossError) as caught:
        FiniteLossGuard(str(folder)).after_run(None, values(8, loss=float("nan")))
    return str(caught.value)


def listed(folder):
    state = tf.train.get_checkpoint_state(str(folder))
    return [os.path.basename(path) for path in state.all_model_checkpoint_paths]


@pytest.mark.parametrize(
    ("steps", "good"),
    [([0, 3, 7], [0, 3]), ([3, 7], [3]), ([0, 3, 7, 8], [0, 3])],
)
def test_a_checkpoint_of_the_bad_weights_is_not_resumed_from(tmp_path, steps, good):
    """Step 8 was made with the weights after 7 updates: they would give it again."""
    write_state(tmp_path, steps)
    message = fail_at_step_8(tmp_path)
    newest = f"{tmp_path}/model.ckpt-{good[-1]}"
    assert message == (
        f"loss must be finite; got nan at step 8. Last good checkpoint: {newest}. Continue from "
        f"there (a resume does: model.ckpt-{steps[-1]}, which gave this, is no longer listed) "
        "with a lower lr, a longer warm-up or stronger gradient_clipping."
    )
    assert listed(tmp_path) == [f"model.ckpt-{step}" for step in good]
    assert tf.train.get_checkpoint_state(str(tmp_path)).model_checkpoint_path == newest
    assert str(tmp_path) not in (tmp_path / "checkpoint").read_text()  # the folder may be moved
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("steps", [[7], [8]])
def test_without_a_good_checkpoint_the_list_stays(tmp_path, steps):
    write_state(tmp_path, steps)
    before = (tmp_path / "checkpoint").read_text()
    assert "Last good checkpoint: none. Start again with --new, and with" in fail_at_step_8(
        tmp_path
    )
    assert (tmp_path / "checkpoint").read_text() == before


def test_names_without_a_step_are_no_good_checkpoint(tmp_path):
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "model"\nall_model_checkpoint_paths: "model"\n'
    )
    assert "Last good checkpoint: none. " in fail_at_step_8(tmp_path)


def test_without_a_checkpoint_there_is_none_to_name(tmp_path):
    assert "Last good checkpoint: none. " in fail_at_step_8(tmp_path)


# ---- signals -----------------------------------------------------------------------------------


class Loop:
    """A training loop that can be asked to stop."""

    stopped = False

    def request_stop(self):
        self.stopped = True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_running_step(number):
    seen = []
    previous = signal.signal(number, lambda *unused: seen.append("second"))
    try:
        with StopOnSignal() as stop:
            loop = Loop()
            stop.after_run(loop, None)
            assert not loop.stopped
            os.kill(os.getpid(), number)
            assert not loop.stopped  # the step that is running ends first
            stop.after_run(loop, None)
            assert loop.stopped
            assert stop.stopped_by == signal.Signals(number).name
            os.kill(os.getpid(), number)
            assert seen == ["second"]  # as without the hook
        os.kill(os.getpid(), number)
        assert seen == ["second", "second"]
    finally:
        signal.signal(number, previous)


# ---- reports -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "reported"), [(0, [0, 5, 9]), (5, [9])])
def test_each_checkpoint_is_reported_once_over_all_processes(start, reported):
    paths = []
    listener = AfterSave(paths.append, "runs/a", start, StopOnSignal())
    for step in (0, 5, 9):
        if step >= start:
            listener.after_save(None, step)
    assert paths == [f"runs/a/model.ckpt-{step}" for step in reported]


def test_a_stopping_run_makes_no_report():
    paths = []
    stop = StopOnSignal()
    listener = AfterSave(paths.append, "runs/a", 0, stop)
    listener.after_save(None, 5)
    stop.stopped_by = "SIGTERM"
    listener.after_save(None, 7)
    assert paths == ["runs/a/model.ckpt-5"]
