"""The TPUEstimator of a training run and the bookkeeping of its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from configs.schema import Config
from utils.batch_sizes import BatchSizes
from utils.checkpoints import check_variables
from utils.devices import Fit, session_config
from utils.hooks import NOISE_METRICS, FiniteLossGuard, LabelWatch, MetricsLog
from utils.run_base import write_base
from utils.stored_config import config_path
from utils.stored_data import Fingerprints, write_stored_data
from utils.tpu import Tpu, iterations_per_call
from utils.tpu_metrics import HostMetrics


def make_estimator(
    config: Config, model_fn: Callable[..., Any], devices: Sequence[str], master: str = ""
) -> Any:
    """A TPUEstimator on CPUs or GPUs.

    Args:
        config: a checked config.
        model_fn: of ``model_fns.make_model_fn``; it brings its own checkpoint hooks.
        devices: one per processor of the mesh.
        master: TensorFlow server of this host, the chief of a cluster; "" without one.
    """
    tpu = tf.compat.v1.estimator.tpu
    run_config = tpu.RunConfig(
        model_dir=config.model_path,
        master=master,
        device_fn=_on_host_of(devices[0]) if master else None,
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


def metrics_hooks(
    config: Config, fit: Fit, start_step: int, epoch_of_step: Callable[[int], float]
) -> list[Any]:
    """Hooks that look at every step: guards against bad losses and missing labels, log, progress.

    Args:
        config: a checked config.
        fit: where it runs.
        start_step: global step at which this process begins.
        epoch_of_step: epochs read after so many steps.
    """
    hooks: list[Any] = [
        FiniteLossGuard(config.model_path),
        LabelWatch(),
        MetricsLog(
            config.model_path,
            config.log_every_steps,
            start_step,
            config.train_steps,
            config.train_batch_size * config.n_ctx,
            epoch_of_step,
            NOISE_METRICS if config.noise_scale_alpha is not None else (),
        ),
    ]
    if fit.tpu is None:
        return hooks
    return [HostMetrics(hooks, config.model_path, config.log_every_steps)]


def make_tpu_estimator(
    config: Config, model_fn: Callable[..., Any], tpu: Tpu, steps_per_checkpoint: int
) -> Any:
    """A TPUEstimator on a TPU.

    Args:
        config: a checked config.
        model_fn: of ``model_fns.make_model_fn``.
        tpu: with as many cores as the mesh has processors.
        steps_per_checkpoint: updates between two checkpoints.
    """
    estimator = tf.compat.v1.estimator.tpu
    run_config = estimator.RunConfig(
        cluster=tpu.resolver,
        model_dir=config.model_path,
        tf_random_seed=config.seed,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        save_summary_steps=None,
        log_step_count_steps=None,
        tpu_config=estimator.TPUConfig(
            iterations_per_loop=iterations_per_call(config, steps_per_checkpoint),
            num_shards=tpu.cores,
            # One core each; without it there is no assignment of programs to cores.
            num_cores_per_replica=1,
            # Every core is given the whole batch, of which the mesh takes its slice.
            per_host_input_for_training=estimator.InputPipelineConfig.BROADCAST,
        ),
    )
    return estimator.TPUEstimator(
        model_fn=model_fn,
        use_tpu=True,
        config=run_config,
        train_batch_size=config.train_batch_size,
        eval_batch_size=config.eval_batch_size,
        predict_batch_size=config.predict_batch_size,
        params={},
    )


def _on_host_of(device: str) -> Callable[[tf.Operation], str]:
    """Places what names no host on that of ``device``: input, master weights, files, summaries.

    TensorFlow would choose a host by itself, and checkpoints would be written to its disk.
    """
    here = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0)

    def place(op: tf.Operation) -> str:
        return here.make_merged_spec(tf.DeviceSpec.from_string(op.device or "")).to_string()

    return place


class RunFolder(tf.compat.v1.train.SessionRunHook):
    """Checks a resumed run against its checkpoint, then records the config in the run's folder.

    Args:
        config: a checked config.
        checkpoint: from which the run goes on; None for a new run.
        batch_sizes: of the run, those of the steps to come included. They are there before the
            first of these steps, so that no checkpoint is without them.
        data: fingerprints of the records that it reads.
        base_files: of the base that a new run begins from; none without one.
    """

    def __init__(
        self,
        config: Config,
        checkpoint: Optional[str],
        batch_sizes: BatchSizes,
        data: Fingerprints,
        base_files: Sequence[str] = (),
    ):
        self._base_files = base_files
        self._data = data
        self._config = config
        self._checkpoint = checkpoint
        self._batch_sizes = batch_sizes

    def begin(self) -> None:
        """Runs when the graph is built and nothing has been restored or written yet."""
        if self._checkpoint is not None:
            shapes = {
                variable.op.name: variable.shape.as_list()
                for variable in tf.compat.v1.global_variables()
            }
            check_variables(self._checkpoint, shapes)
        tf.io.gfile.makedirs(self._config.model_path)
        # First: without it the stored config would tell the batch size of all steps before.
        self._batch_sizes.write(self._config.model_path)
        write_stored_data(self._config.model_path, self._data)
        if self._config.init_from is not None and self._base_files:
            write_base(self._config.model_path, self._config.init_from, self._base_files)
        path = config_path(self._config.model_path)
        with tf.io.gfile.GFile(f"{path}.tmp", "w") as file:
            file.write(json.dumps(self._config.to_json_dict(), indent=2) + "\n")
        tf.io.gfile.rename(f"{path}.tmp", path, overwrite=True)
