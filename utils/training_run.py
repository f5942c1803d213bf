"""The TPUEstimator of a training run and the bookkeeping of its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from configs.schema import Config
from utils.checkpoints import check_variables
from utils.devices import session_config
from utils.stored_config import config_path


def make_estimator(config: Config, model_fn: Callable[..., Any], devices: Sequence[str]) -> Any:
    """A TPUEstimator on CPUs or GPUs.

    Args:
        config: a checked config.
        model_fn: of ``model_fns.make_model_fn``; it brings its own checkpoint hooks.
        devices: one per processor of the mesh.
    """
    tpu = tf.compat.v1.estimator.tpu
    run_config = tpu.RunConfig(
        model_dir=config.model_path,
        session_config=session_config(devices),
        tf_random_seed=config.seed,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        save_summary_steps=config.log_every_steps,
        log_step_count_steps=None,
        tpu_config=tpu.TPUConfig(iterations_per_loop=config.iterations),
    )
    return tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=False,
        config=run_config,
        train_batch_size=config.train_batch_size,
        eval_batch_size=config.eval_batch_size,
        predict_batch_size=config.predict_batch_size,
        params={},
    )


class RunFolder(tf.compat.v1.train.SessionRunHook):
    """Checks a resumed run against its checkpoint, then records the config in the run's folder.

    Args:
        config: a checked config.
        checkpoint: from which the run goes on; None for a new run.
    """

    def __init__(self, config: Config, checkpoint: Optional[str]):
        self._config = config
        self._checkpoint = checkpoint

    def begin(self) -> None:
        """Runs when the graph is built and nothing has been restored or written yet."""
        if self._checkpoint is not None:
            shapes = {
                variable.op.name: variable.shape.as_list()
                for variable in tf.compat.v1.global_variables()
            }
            check_variables(self._checkpoint, shapes)
        tf.io.gfile.makedirs(self._config.model_path)
        path = config_path(self._config.model_path)
        with tf.io.gfile.GFile(f"{path}.tmp", "w") as file:
            file.write(json.dumps(self._config.to_json_dict(), indent=2) + "\n")
        tf.io.gfile.rename(f"{path}.tmp", path, overwrite=True)
