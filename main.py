"""Command line: train, evaluate, predict, export, inspect. ``python main.py --help`` lists all."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    import argparse

    from configs.schema import Config
    from utils.devices import Fit
    from utils.hooks import StopOnSignal

# Imports are in the functions that need them: --help and config errors answer at once, without
# TensorFlow, and Ctrl-C during an import ends as it does later. TensorFlow's start-up messages
# would bury ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

LOGGER = logging.getLogger(__name__)
DEFAULT_RUN_ID = "nosacred"  # GPT-Neo's name for files of a run that is not tracked
USAGE_ERROR, RUN_ERROR = 2, 1
INTERRUPTED, READER_GONE = 130, 141  # as shells say it: 128 + SIGINT, 128 + SIGPIPE


def _placement(fit: Any, **options: Any) -> Any:
    from model_fns import Placement

    for notice in fit.notices:
        LOGGER.warning(notice)
    return Placement(fit.mesh_layout, fit.devices, **options)


def _trained_checkpoint(config: Config) -> str:
    from utils.checkpoints import latest_checkpoint
    from utils.run_folder import no_checkpoint

    checkpoint = latest_checkpoint(config.model_path)
    if checkpoint is None:
        raise no_checkpoint(config.model_path)
    return checkpoint


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

    if not (config.eval_steps or config.predict_steps):
        return []
    reports = CheckpointReports(
        config, arguments.gpu_ids, arguments.sacred_id or DEFAULT_RUN_ID, prompt
    )
    return [AfterSave(reports.report, config.model_path, start_step, stop)]


def _check_run_folder(config: Config, arguments: argparse.Namespace) -> None:
    from utils.run_folder import check_resumable

    if arguments.new:
        _confirm_new(config, arguments.yes)
    else:
        check_resumable(config)


def train(config: Config, arguments: argparse.Namespace) -> None:
    """Trains to ``train_steps``, from the newest checkpoint if there is one."""
    from utils.devices import place_training
    from utils.files import is_remote
    from utils.run_lock import TrainingLock

    if arguments.prompt is not None and not config.predict_steps:
        raise ValueError(
            "--prompt must come with --predict, or with predict_steps in the config; got "
            "neither. Add one of them or leave it out."
        )
    remote = is_remote(config.model_path)
    with TrainingLock(config.model_path):
        if not remote:
            _check_run_folder(config, arguments)
        prompt = _prompt(arguments)
        fit = place_training(config, arguments.gpu_ids)  # refuses a mesh before slow imports
        if remote:  # only now, since it takes TensorFlow and a network
            _check_run_folder(config, arguments)
        _train(config, arguments, prompt, fit)


def _train(config: Config, arguments: argparse.Namespace, prompt: str, fit: Fit) -> None:
    from inputs import epoch_of_step, open_sources, training_input
    from model_fns import make_model_fn
    from utils.checkpoints import checkpoint_step, latest_checkpoint, remove_partial_saves
    from utils.hooks import FiniteLossGuard, MetricsLog, StopOnSignal
    from utils.run_folder import delete_run
    from utils.training_run import RunFolder, make_estimator

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
    stop = StopOnSignal()
    listeners = _checkpoint_listeners(config, arguments, prompt, start_step, stop)
    if arguments.new:  # only now: nothing is left that could refuse the run
        delete_run(config.model_path)
    else:
        remove_partial_saves(config.model_path, checkpoint)
    if checkpoint is not None:
        LOGGER.info("resuming from %s", checkpoint)
    placement = _placement(
        fit, steps_per_checkpoint=arguments.steps_per_checkpoint, save_listeners=listeners
    )
    estimator = make_estimator(config, make_model_fn(config, placement), fit.devices)
    batch_size = config.train_batch_size
    with stop:
        hooks = [
            RunFolder(config, checkpoint),
            FiniteLossGuard(config.model_path),
            MetricsLog(
                config.model_path,
                config.log_every_steps,
                start_step,
                config.train_steps,
                batch_size * config.n_ctx,
                epoch_of_step(sources, batch_size),
            ),
            stop,
        ]
        LOGGER.info("building the training graph of %s", config.model_path)
        estimator.train(
            training_input(config, sources, start_step), max_steps=config.train_steps, hooks=hooks
        )
    LOGGER.info(
        "%s: %s",
        "stopped by " + stop.stopped_by if stop.stopped_by else "done",
        latest_checkpoint(config.model_path),
    )


def evaluate(config: Config, arguments: argparse.Namespace) -> None:
    """Scores the newest checkpoint on eval_path and prints one JSON line."""
    from utils.early_checks import check_evaluation_files
    from utils.run_folder import check_trained

    check_trained(config)
    check_evaluation_files(config)

    from evaluation.dataset_loss import DatasetLoss, append_scores
    from utils.devices import place_inference

    checkpoint = _trained_checkpoint(config)
    fit = place_inference(config, arguments.gpu_ids, config.eval_batch_size, "eval_batch_size")
    scores = DatasetLoss(config, _placement(fit), config.eval_steps).evaluate(checkpoint)
    append_scores(config, arguments.sacred_id or DEFAULT_RUN_ID, scores)
    print(json.dumps(scores))


def _prompt(arguments: argparse.Namespace) -> str:
    from serving.prompts import read_prompt

    return read_prompt(arguments.prompt, None if sys.stdin is None else sys.stdin.buffer)


def predict(config: Config, arguments: argparse.Namespace) -> None:
    """Continues a prompt; samples go to stdout or ``--out``."""
    from configs.masking_rules import require_causal
    from utils.early_checks import check_output_file
    from utils.run_folder import check_trained

    require_causal(config)
    check_output_file(arguments.out)
    check_trained(config)
    prompt = _prompt(arguments)

    from models.dimensions import WHOLE_IN_GENERATION
    from serving.engine import Engine, Sampling
    from serving.samples import format_samples, sample_texts, tokenizer_of
    from utils.devices import place_inference

    tokenizer = tokenizer_of(config)
    checkpoint = _trained_checkpoint(config)
    samples = arguments.num_samples or config.predict_batch_size
    fit = place_inference(
        config, arguments.gpu_ids, samples, "the number of samples", WHOLE_IN_GENERATION
    )
    sampling = Sampling.from_config(
        config,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        max_new_tokens=arguments.max_new_tokens,
        entmax=arguments.entmax_sampling,
    )
    engine = Engine(config, _placement(fit), samples)
    engine.load(checkpoint)
    text = format_samples(sample_texts(engine, tokenizer, prompt, sampling, samples))
    if arguments.out is None:
        print(text, end="")
        return
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(text)


def export(config: Config, arguments: argparse.Namespace) -> None:
    """Writes the newest checkpoint as a SavedModel and prints its folder."""
    from utils.run_folder import check_trained

    check_trained(config)

    from serving.export import export_model

    print(export_model(config, _trained_checkpoint(config), arguments.out))


def check_dataset(config: Config, arguments: argparse.Namespace) -> None:
    """Prints what is in the records."""
    from inspection.dataset_check import dataset_report

    report = dataset_report(config)
    print(report.text)
    if report.problems:
        raise ValueError(
            f"datasets must be free of errors; got {report.problems} in the report. Mend what "
            "its ERROR lines say."
        )


def dry_run(config: Config, arguments: argparse.Namespace) -> None:
    """Prints what a training run would need, without running anything."""
    from inspection.dry_run import dry_run_report

    print(dry_run_report(config))


def auto_layout(config: Config, arguments: argparse.Namespace) -> None:
    """Prints a layout, or a mesh and a layout, to paste into the config."""
    from inspection.layout_report import layout_report, mesh_report

    if arguments.auto_layout_and_mesh_shape:
        print(mesh_report(config, len(arguments.gpu_ids) or config.mesh_size))
    else:
        print(layout_report(config))


def print_config(config: Config, arguments: argparse.Namespace) -> None:
    """Prints the resolved config."""
    print(json.dumps(config.to_json_dict(), indent=2))


MODES = {
    "train": train,
    "eval": evaluate,
    "predict": predict,
    "export": export,
    "check_dataset": check_dataset,
    "dry_run": dry_run,
    "print_config": print_config,
    "auto_layout": auto_layout,
}


def _with_fitting_mesh(config: Config, arguments: argparse.Namespace) -> Config:
    from inspection.mesh_fit import fit_mesh

    fit = fit_mesh(config, max(len(arguments.gpu_ids), 1))
    for notice in fit.notices:
        LOGGER.warning(notice)
    return fit.config


def run(arguments: argparse.Namespace) -> None:
    """Does what the flags ask for.

    Raises:
        ValueError: flags, config, data or checkpoint are unusable.
        RuntimeError: the run failed.
    """
    from configs.load import load_config
    from utils.command_line import refuse_unbuilt
    from utils.early_checks import check_run_id

    refuse_unbuilt(arguments)
    check_run_id(arguments.sacred_id)
    config = load_config(
        arguments.model,
        arguments.overrides,
        arguments.steps_per_checkpoint if arguments.mode == "train" else None,
    )
    if arguments.mode != "print_config":
        from utils.run_log import set_up_logging

        name = os.path.splitext(os.path.basename(arguments.model))[0]
        set_up_logging(name, arguments.debug)
    if arguments.fit_mesh:
        config = _with_fitting_mesh(config, arguments)
    for warning in config.warnings:
        LOGGER.warning(warning)
    MODES[arguments.mode](config, arguments)


def main(argv: Optional[list[str]] = None) -> int:
    """Runs the command line.

    Returns:
        0, 1 (failed run), 2 (usage, config), 130 (Ctrl-C), or 141 (nobody reads the output).
    """
    try:
        try:
            return _run_and_report(sys.argv[1:] if argv is None else argv)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where its errors are still ours
    except BrokenPipeError:
        return _end_output()


def _run_and_report(argv: list[str]) -> int:
    debug = False
    try:
        from utils.command_line import parse_arguments

        arguments = parse_arguments(argv)
        debug = arguments.debug
        run(arguments)
    except BrokenPipeError:
        raise
    except ValueError as error:
        return _report(error, debug, USAGE_ERROR)
    except (RuntimeError, OSError) as error:
        return _report(error, debug, RUN_ERROR)
    except Exception as error:
        if not type(error).__module__.startswith("tensorflow"):
            raise
        return _report(error, debug, RUN_ERROR)
    except KeyboardInterrupt:  # outside the training loop, which saves first
        print("main.py: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _end_output() -> int:
    """Ends quietly, as other programs do when the reader of their output has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())  # or the interpreter complains as it ends
    return READER_GONE


def _report(error: Exception, debug: bool, code: int) -> int:
    from configs.errors import ConfigError
    from utils.errors import reason

    if debug:
        raise error
    text = str(error) if isinstance(error, ConfigError) else reason(error)
    print(f"main.py: error: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
