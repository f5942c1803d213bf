"""What happens around each training step: metrics, progress, the stop signals, the NaN guard."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from utils.checkpoints import step_in_name
from utils.progress import Progress

LOGGER = logging.getLogger(__name__)
METRICS_FILE = "metrics.jsonl"
METRIC_TENSORS = {
    "step": "training/step:0",
    "loss": "training/loss:0",
    "learning_rate": "training/learning_rate:0",
    "grad_norm": "training/grad_norm:0",
    "labels": "training/labels:0",
}
"""Names under which the training graph offers its metrics; step counts the updates made, and
labels the tokens that this one predicts."""

NOISE_METRICS = ("noise_scale", "noise_scale_gradient", "noise_scale_variance")
"""Those that are offered beside them with noise_scale_alpha; NaN where they are not known."""

COUNTS = ("step", "labels")
"""Those that no summary is written of."""


SessionRunArgs = tf.compat.v1.train.SessionRunArgs


class NonFiniteLossError(RuntimeError):
    """The loss or the gradients stopped being numbers."""


class FiniteLossGuard(tf.compat.v1.train.SessionRunHook):
    """Stops a run at the first step whose loss or gradient norm is not finite.

    It must run before the hook that saves checkpoints, so that no weights past the bad step are
    kept. A checkpoint of the step before is taken off the list of the state file.

    Args:
        model_path: folder of the run.
    """

    def __init__(self, model_path: str):
        self._model_path = model_path

    def before_run(self, run_context: Any) -> Any:
        """Asks for the metrics of the step."""
        return SessionRunArgs(METRIC_TENSORS)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Raises NonFiniteLossError at the first bad step."""
        values = run_values.results
        for key, meaning in (("loss", "loss"), ("grad_norm", "gradient norm")):
            if not math.isfinite(values[key]):
                raise NonFiniteLossError(
                    f"{meaning} must be finite; got {values[key]} at step {values['step']}. "
                    f"{self._go_back(int(values['step']))} with a lower lr, a longer warm-up or "
                    "stronger gradient_clipping."
                )

    def _go_back(self, bad_step: int) -> str:
        """Makes a resume start before the bad step's weights; says where, and what to do.

        A checkpoint of the very weights that gave the bad step would give it again.
        """
        state = tf.train.get_checkpoint_state(self._model_path)
        paths = list(state.all_model_checkpoint_paths) if state is not None else []
        steps = {path: step_in_name(path) for path in paths}
        good = [path for path in paths if (step := steps[path]) is not None and step < bad_step - 1]
        if not good:
            return "Last good checkpoint: none. Start again with --new, and"
        if state.model_checkpoint_path in good:
            return f"Last good checkpoint: {good[-1]}. Continue from there"
        bad = os.path.basename(state.model_checkpoint_path)
        self._list(good)
        return (
            f"Last good checkpoint: {good[-1]}. Continue from there (a resume does: {bad}, which "
            "gave this, is no longer listed)"
        )

    def _list(self, paths: list[str]) -> None:
        """Rewrites the state file, in which the last path is the newest checkpoint."""
        names = [os.path.basename(path) for path in paths]
        state = tf.compat.v1.train.generate_checkpoint_state_proto("", names[-1], names)
        path = os.path.join(self._model_path, "checkpoint")
        with tf.io.gfile.GFile(f"{path}.tmp", "w") as file:
            file.write(str(state))
        tf.io.gfile.rename(f"{path}.tmp", path, overwrite=True)


def drop_metrics_after(path: str, step: int) -> None:
    """Removes lines of steps past ``step``: work of a killed run that is done again."""
    if not tf.io.gfile.exists(path):
        return
    with tf.io.gfile.GFile(path) as file:
        lines = file.read().split("\n")
    kept = [line for line in lines if _is_line_until(line, step)]
    if lines != [*kept, ""]:  # or the newline of the last line is missing
        temporary = f"{path}.tmp"
        with tf.io.gfile.GFile(temporary, "w") as file:
            file.write("".join(f"{line}\n" for line in kept))
        tf.io.gfile.rename(temporary, path, overwrite=True)


def _is_line_until(line: str, step: int) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):  # cut short by the kill
        return False


class LabelWatch(tf.compat.v1.train.SessionRunHook):
    """Warns of steps without a label, whose loss of 0 looks like success."""

    def __init__(self) -> None:
        self._steps = 0
        self._without = 0

    def before_run(self, run_context: Any) -> Any:
        """Asks for the metrics of the step."""
        return SessionRunArgs(METRIC_TENSORS)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Names the first such step; the others are counted."""
        values = run_values.results
        self._steps += 1
        if values["labels"]:
            return
        self._without += 1
        if self._without == 1:
            LOGGER.warning(
                "training must predict at least one token per step; got none at step %d, which "
                "teaches the model nothing. Add training data whose loss_mask is not 0 "
                "everywhere, or raise mlm_mask_prob or train_batch_size.",
                values["step"],
            )

    def end(self, session: Any) -> None:
        """Sums up."""
        if self._without > 1:
            LOGGER.warning("%d of %d steps predicted no token", self._without, self._steps)


class MetricsLog(tf.compat.v1.train.SessionRunHook):
    """One JSON line of metrics per interval, and the progress display.

    A line holds step, loss, learning_rate, grad_norm, ``more_metrics`` (null for one that is not
    known), tokens_per_second (since the line before) and epoch.

    Args:
        model_path: folder of the run.
        every_steps: interval; the first and the last step are logged too.
        start_step: global step at which this process begins.
        total_steps: where the run ends.
        tokens_per_step: of the whole batch.
        epoch_of_step: epochs read after so many steps; None if it is not known.
        more_metrics: names of metrics that the training graph offers beside METRIC_TENSORS.
    """

    def __init__(
        self,
        model_path: str,
        every_steps: int,
        start_step: int,
        total_steps: int,
        tokens_per_step: int,
        epoch_of_step: Optional[Callable[[int], float]],
        more_metrics: Sequence[str] = (),
    ):
        self._more_metrics = more_metrics
        self._path = os.path.join(model_path, METRICS_FILE)
        self._every_steps = every_steps
        self._start_step = start_step
        self._total_steps = total_steps
        self._tokens_per_step = tokens_per_step
        self._epoch_of_step = epoch_of_step
        self._progress = Progress(start_step, total_steps)

    def begin(self) -> None:
        """Opens the metrics file at the step where the run goes on."""
        tf.io.gfile.makedirs(os.path.dirname(self._path))
        drop_metrics_after(self._path, self._start_step)
        self._last_time = time.monotonic()
        self._last_step = self._start_step
        self._unwritten: Optional[dict[str, Any]] = None

    def before_run(self, run_context: Any) -> Any:
        """Asks for the metrics of the step."""
        more = {name: f"training/{name}:0" for name in self._more_metrics}
        return SessionRunArgs(METRIC_TENSORS | more)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Writes a line if one is due."""
        values: dict[str, Any] = {
            key: int(value) if key == "step" else float(value)
            for key, value in run_values.results.items()
            if key != "labels"
        }
        for key in self._more_metrics:
            if math.isnan(values[key]):
                values[key] = None
        step = values["step"]
        if step in (self._start_step + 1, self._total_steps) or step % self._every_steps == 0:
            self._write(values)
        else:
            self._unwritten = values
        self._progress.update(int(step), values)

    def _write(self, values: dict[str, Any]) -> None:
        now, step = time.monotonic(), values["step"]
        elapsed = max(now - self._last_time, 1e-9)
        values["tokens_per_second"] = round(
            (step - self._last_step) * self._tokens_per_step / elapsed, 1
        )
        if self._epoch_of_step is not None:
            values["epoch"] = round(self._epoch_of_step(step), 4)
        with tf.io.gfile.GFile(self._path, "a") as file:
            file.write(json.dumps(values) + "\n")
        self._progress.line(values)
        self._last_time, self._last_step, self._unwritten = now, step, None

    def end(self, session: Any) -> None:
        """Writes what is left."""
        if self._unwritten is not None:
            self._write(self._unwritten)
        self._progress.close()


class StopOnSignal(tf.compat.v1.train.SessionRunHook):
    """Turns SIGINT and SIGTERM into a stop after the running step, which saves a checkpoint.

    A second signal ends the process at once. ``self.stopped_by`` names the signal afterwards.

    Args:
        notice: logged then, with the name of the signal.
    """

    def __init__(self, notice: str = "%s: saving and stopping after this step") -> None:
        self.stopped_by: Optional[str] = None
        self._notice = notice
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopOnSignal:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *unused: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def request(self, reason: str) -> None:
        """Asks for the same stop on other grounds, such as a signal on another host."""
        self.stopped_by = reason
        LOGGER.info(self._notice, reason)

    def _handle(self, number: int, unused_frame: Any) -> None:
        self.request(signal.Signals(number).name)
        for signal_number, handler in self._previous.items():
            signal.signal(signal_number, handler)

    def before_run(self, run_context: Any) -> None:
        """Listens again: on a TPU, a hook of TPUEstimator lets SIGINT end the process."""
        if self.stopped_by is None:
            for number in self._previous:
                signal.signal(number, self._handle)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stops the loop once a signal has come."""
        if self.stopped_by is not None:
            run_context.request_stop()


class AfterSave(tf.compat.v1.train.CheckpointSaverListener):
    """Calls back after every checkpoint, that of the untrained model included.

    Args:
        callback: given the path of the checkpoint.
        model_path: folder of the run.
        start_step: updates made before this process; what is saved at that step when it resumes
            has been reported by the process before.
        stop: once it has a signal, there is no time left for reports.
    """

    def __init__(
        self,
        callback: Callable[[str], None],
        model_path: str,
        start_step: int,
        stop: StopOnSignal,
    ):
        self._stop = stop
        self._callback = callback
        self._model_path = model_path
        self._start_step = start_step

    def after_save(self, session: Any, global_step_value: Any) -> None:
        """Reports the checkpoint."""
        path = os.path.join(self._model_path, f"model.ckpt-{global_step_value}")
        if self._stop.stopped_by is not None:
            LOGGER.info("no report on %s: the run is stopping", path)
        elif int(global_step_value) > self._start_step or self._start_step == 0:
            self._callback(path)
