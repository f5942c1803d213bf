"""Training: checks of the run's folder, hooks, reports at checkpoints, the estimator's run.

Imports that take TensorFlow are in the functions: a refusal answers at once.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

from commands.shared import DEFAULT_RUN_ID, placement_of, prompt_of
from configs.schema import Config

if TYPE_CHECKING:
    from data.sources import Source
    from interop.bases import Base
    from utils.batch_sizes import BatchSizes
    from utils.cluster import Cluster, Leader
    from utils.devices import Fit
    from utils.hooks import StopOnSignal

LOGGER = logging.getLogger(__name__)


def _confirm_new(config: Config, confirmed: bool) -> None:
    """Asks whether the run may be deleted; refuses unless it may."""
    from utils.run_folder import files_of_run

    files, _ = files_of_run(config.model_path)
    if confirmed or not files:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise ValueError(
            "--new must be confirmed; got no terminal to ask on. Add --yes to delete "
            f"{config.model_path}."
        )
    sys.stderr.write(f"Delete the run in {config.model_path} and start fresh? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ValueError("--new must be confirmed; got no. Leave it out to resume the run.")


def _checkpoint_listeners(
    config: Config,
    arguments: argparse.Namespace,
    prompt: str,
    start_step: int,
    stop: StopOnSignal,
) -> list[Any]:
    """What is done at each checkpoint: evaluation and samples, on graphs that are built once."""
    from evaluation.checkpoint_reports import CheckpointReports
    from utils.hooks import AfterSave

    if not (config.eval_steps or config.eval_tasks or config.predict_steps):
        return []
    reports = CheckpointReports(
        config, arguments.gpu_ids, arguments.sacred_id or DEFAULT_RUN_ID, prompt
    )
    return [AfterSave(reports.report, config.model_path, start_step, stop)]


def _check_run_folder(config: Config, arguments: argparse.Namespace) -> Config:
    """The config, with the base that the run began from."""
    from utils.run_folder import check_resumable

    if arguments.new:
        _confirm_new(config, arguments.yes)
        return config
    return check_resumable(config)


def _open_base(config: Config, checkpoint: Optional[str]) -> Optional[Base]:
    """What a new run begins from; None for random weights, and for a run that goes on."""
    if config.init_from is None or checkpoint is not None:
        return None
    from interop.bases import open_base

    return open_base(config)


def train(config: Config, arguments: argparse.Namespace, give_up: Callable[[str], None]) -> None:
    """Trains to ``train_steps``, from the newest checkpoint if there is one.

    Args:
        config: a checked config.
        arguments: of the command line.
        give_up: ends the process with a message when a host is lost.
    """
    from utils.cluster import lead
    from utils.devices import place_training
    from utils.early_checks import check_weights_fit
    from utils.files import check_model_path, is_remote
    from utils.run_lock import TrainingLock

    if arguments.prompt is not None and not config.predict_steps:
        raise ValueError(
            "--prompt must come with --predict, or with predict_steps in the config; got "
            "neither. Add one of them or leave it out."
        )
    cluster: Optional[Cluster] = arguments.hosts
    if cluster is not None and not cluster.is_chief:
        place_training(config, arguments.gpu_ids, cluster)  # refuses what the chief refuses

        from utils.cluster_roles import serve

        serve(cluster, arguments.gpu_ids)
        return
    on_gpus = any(":GPU:" in device.upper() for device in arguments.gpu_ids)
    if not (cluster or arguments.tpu or on_gpus):
        check_weights_fit(config)
    remote = is_remote(config.model_path)
    with TrainingLock(config.model_path):
        if not remote:
            config = _check_run_folder(config, arguments)
        prompt = prompt_of(arguments)
        # It refuses a mesh before slow imports.
        fit = place_training(config, arguments.gpu_ids, cluster, arguments.tpu)
        if remote:  # only now, since it takes TensorFlow and a network
            check_model_path(config.model_path)
            config = _check_run_folder(config, arguments)
        with lead(cluster, arguments.gpu_ids, config.model_path, give_up) as leader:
            _train(config, arguments, prompt, fit, leader)


def _batch_sizes(config: Config, start_step: int) -> BatchSizes:
    """The batch sizes of the run, from the step at which it goes on that of the config."""
    from utils.batch_sizes import read_batch_sizes
    from utils.stored_config import read_stored_config

    size = config.train_batch_size
    stored = read_stored_config(config.model_path)
    used = read_batch_sizes(config.model_path, stored, size)
    batch_sizes = used.going_on(start_step, size)
    if start_step and batch_sizes.segments[-1] == (start_step, size):
        LOGGER.info(
            "train_batch_size is %d now and was %d: the data go on at sequence %s",
            size,
            batch_sizes.segments[-2][1],
            f"{batch_sizes.sequences_before(start_step):,}",
        )
    return batch_sizes


def _training_input(
    config: Config,
    sources: Sequence[Source],
    first: int,
    fit: Fit,
    cluster: Optional[Cluster],
    leader: Leader,
) -> Callable[..., Any]:
    """Where all hosts see the records each reads its own rows, else this one reads for all."""
    from inputs import hosts_training_input, training_input

    if cluster is None:
        return training_input(config, sources, first)

    from data.shared_records import difference
    from models.dimensions import Dimensions
    from utils.host_rows import host_rows

    apart = difference(sources, cluster, leader.master)
    if apart is not None:
        LOGGER.info(
            "%s reads the records for all hosts, since not all see the same: %s",
            cluster.here,
            apart,
        )
        return training_input(config, sources, first)
    dims = Dimensions.from_config(config, config.train_batch_size)
    hosts = host_rows(fit.mesh_layout, fit.devices, [dims.batch, dims.sequence])
    LOGGER.info("every host reads the records, and of each batch the rows of its devices")
    return hosts_training_input(config, sources, first, hosts)


def _train(
    config: Config, arguments: argparse.Namespace, prompt: str, fit: Fit, leader: Leader
) -> None:
    from data.fingerprint import fingerprints
    from data.sources import mix_lines
    from inputs import epoch_of_step, open_sources
    from model_fns import make_model_fn
    from utils.checkpoints import checkpoint_step, latest_checkpoint, remove_partial_saves
    from utils.hooks import StopOnSignal
    from utils.run_folder import delete_run
    from utils.stored_data import warn_of_other_data
    from utils.training_run import RunFolder, make_estimator, make_tpu_estimator, metrics_hooks

    sources = open_sources(config, training=True)
    checkpoint = None if arguments.new else latest_checkpoint(config.model_path)
    start_step = checkpoint_step(checkpoint)
    if start_step >= config.train_steps:
        LOGGER.info(
            "%s is trained: %d of %d steps. Raise train_steps to go on, or start again with --new.",
            config.model_path,
            start_step,
            config.train_steps,
        )
        return
    base = _open_base(config, checkpoint)
    if base is not None:
        config = base.config
    data = fingerprints(sources)
    if checkpoint is not None:
        warn_of_other_data(config.model_path, data)
    stop = StopOnSignal()
    listeners = _checkpoint_listeners(config, arguments, prompt, start_step, stop)
    leader.wait_for_hosts()
    if arguments.new:  # only now: nothing is left that could refuse the run
        delete_run(config.model_path)
    else:
        remove_partial_saves(config.model_path, checkpoint)
    if checkpoint is not None:
        LOGGER.info("resuming from %s", checkpoint)
    batch_sizes = _batch_sizes(config, start_step)
    for line in mix_lines(sources, config.train_batch_size):
        LOGGER.info("dataset %s", line)
    placement = placement_of(
        fit,
        steps_per_checkpoint=arguments.steps_per_checkpoint,
        save_listeners=listeners,
        last_hooks=[stop],
        scaffold_fn=base and base.scaffold,
    )
    model_fn = make_model_fn(config, placement)
    if fit.tpu is not None:
        estimator = make_tpu_estimator(config, model_fn, fit.tpu, arguments.steps_per_checkpoint)
    else:
        estimator = make_estimator(config, model_fn, fit.devices, leader.master)
    first = batch_sizes.sequences_before(start_step)
    input_fn = _training_input(config, sources, first, fit, arguments.hosts, leader)
    with stop:
        epochs = epoch_of_step(sources, batch_sizes.sequences_before)
        metrics = metrics_hooks(config, fit, start_step, epochs)
        folder = RunFolder(config, checkpoint, batch_sizes, data, base.files if base else ())
        hooks = [*leader.hooks(stop), folder, *metrics]
        LOGGER.info("building the training graph of %s", config.model_path)
        estimator.train(input_fn, max_steps=config.train_steps, hooks=hooks)
    LOGGER.info(
        "%s: %s",
        "stopped by " + stop.stopped_by if stop.stopped_by else "done",
        latest_checkpoint(config.model_path),
    )
