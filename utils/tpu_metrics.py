"""Metrics of training on a TPU, which runs many steps in one call and cannot write files.

After each step the cores hand their numbers to a host, which keeps the last of them in a table.
After each call a hook reads the table, and tells the hooks that look at single steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from utils.hooks import COUNTS, METRIC_TENSORS, NOISE_METRICS

LOGGER = logging.getLogger(__name__)
_TABLE, _COLUMNS = "training_table", "training_columns"
_PATIENCE_SECONDS = 60.0

HostCall = tuple[Callable[..., tf.Tensor], list[tf.Tensor]]
"""What TPUEstimatorSpec takes as ``host_call``."""


def metrics_host_call(metrics: Mapping[str, tf.Tensor], rows: int, host: str) -> HostCall:
    """The part of a training step that runs on a host.

    Args:
        metrics: scalars of the step by name, ``step`` among them.
        rows: steps that the host remembers; at least those of one call.
        host: its CPU device.
    """
    names = list(metrics)
    with tf.control_dependencies(None), tf.device(host):  # not on the cores
        table = tf.compat.v1.get_variable(
            "training/table",
            [rows, len(names)],
            tf.float64,
            tf.compat.v1.zeros_initializer(),
            trainable=False,
            use_resource=True,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        )
    tf.compat.v1.add_to_collection(_TABLE, table)
    tf.compat.v1.get_collection_ref(_COLUMNS)[:] = names

    def remember(*columns: tf.Tensor) -> tf.Tensor:
        # Each column has the number of every core; they are equal.
        row = tf.stack([tf.cast(column[0], tf.float64) for column in columns])
        place = tf.math.floormod(tf.cast(columns[names.index("step")][0], tf.int32), rows)
        return tf.raw_ops.ResourceScatterUpdate(resource=table.handle, indices=place, updates=row)

    return remember, [tf.reshape(tensor, [1]) for tensor in metrics.values()]


class HostMetrics(tf.compat.v1.train.SessionRunHook):
    """Tells other hooks of every step that a call made, and writes summaries.

    Args:
        hooks: they look at single steps and read nothing but METRIC_TENSORS and NOISE_METRICS.
        model_path: folder of the run.
        every_steps: interval of the summaries.
    """

    def __init__(
        self,
        hooks: Sequence[tf.compat.v1.train.SessionRunHook],
        model_path: str,
        every_steps: int,
    ):
        self._hooks = hooks
        self._model_path = model_path
        self._every_steps = every_steps

    def begin(self) -> None:
        """Finds the table in the graph."""
        [self._table] = tf.compat.v1.get_collection(_TABLE)
        self._columns = tf.compat.v1.get_collection(_COLUMNS)
        self._global_step = tf.compat.v1.train.get_global_step()
        self._writer = tf.compat.v1.summary.FileWriterCache.get(self._model_path)
        for hook in self._hooks:
            hook.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Notes where the run begins."""
        self._seen = int(session.run(self._global_step))
        for hook in self._hooks:
            hook.after_create_session(session, coord)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Reads the steps of the call that has ended."""
        for values in self._new_steps(run_context.session):
            names = (*METRIC_TENSORS, *NOISE_METRICS)
            results = {name: values[name] for name in names if name in values}
            for hook in self._hooks:
                hook.after_run(
                    run_context, tf.compat.v1.train.SessionRunValues(results, None, None)
                )
            if int(values["step"]) % self._every_steps == 0:
                self._summarize(values)

    def end(self, session: Any) -> None:
        """Closes the files."""
        self._writer.flush()
        for hook in self._hooks:
            hook.end(session)

    def _new_steps(self, session: Any) -> list[dict[str, float]]:
        """Metrics of the steps since the last call, oldest first."""
        step = int(session.run(self._global_step))
        deadline = time.monotonic() + _PATIENCE_SECONDS
        at = self._columns.index("step")
        while True:  # numbers travel to the host beside the call, and may arrive after it
            table = session.run(self._table)
            if table[:, at].max() >= step or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        new = table[table[:, at] > self._seen]
        new = new[np.argsort(new[:, at])]
        if not len(new) or new[-1, at] < step:
            LOGGER.warning("metrics of step %d did not arrive from the TPU", step)
        self._seen = step
        rows = [dict(zip(self._columns, map(float, row))) for row in new]
        return [row | {"step": int(row["step"])} for row in rows]

    def _summarize(self, values: Mapping[str, float]) -> None:
        summary = tf.compat.v1.Summary()
        for name, value in values.items():
            if name not in COUNTS:
                summary.value.add(tag=name, simple_value=value)
        self._writer.add_summary(summary, int(values["step"]))
