"""The TPUEstimator of a training run and the bookkeeping of its folder."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from configs.schema import Config
from utils.devices import session_config

LOGGER = logging.getLogger(__name__)


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


def write_resolved_config(config: Config) -> None:
    """Writes ``model_path/config.json``, from which the run can be started again."""
    tf.io.gfile.makedirs(config.model_path)
    path = os.path.join(config.model_path, "config.json")
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(json.dumps(config.to_json_dict(), indent=2) + "\n")
