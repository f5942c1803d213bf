"""Command line: train, evaluate, predict and inspect. ``python main.py --help`` lists all."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Optional

from configs.errors import ConfigError
from configs.load import load_config
from utils.command_line import parse_arguments
from utils.errors import reason

if TYPE_CHECKING:
    import argparse

    from configs.schema import Config
    from utils.hooks import StopOnSignal

# TensorFlow is imported by the functions that need it, so that --help and config errors answer
# at once; its start-up messages would bury ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

LOGGER = logging.getLogger(__name__)
DEFAULT_RUN_ID = "nosacred"  # GPT-Neo's name for files of a run that is not tracked
USAGE_ERROR, RUN_ERROR = 2, 1
INTERRUPTED = 130  # as shells say it: 128 + SIGINT


def _placement(fit: Any, **options: Any) -> Any:
    from model_fns import Placement

    for notice in fit.notices:
        LOGGER.warning(notice)
    return Placement(fit.mesh_layout, fit.devices, **options)


def _trained_checkpoint(config: Config) -> str:
    from utils.checkpoints import latest_checkpoint

    checkpoint = latest_checkpoint(config.model_path)
    if checkpoint is None:
        raise ValueError(
            f"model_path must hold a checkpoint; got none in {config.model_path}. Train first, "
            "or correct model_path."
        )
    return checkpoint


def _delete_run(config: Config, confirmed: bool) -> None:
    import tensorflow as tf

    from utils.training_run import delete_run

    if not tf.io.gfile.exists(config.model_path):
        return
    if not confirmed:
        if not sys.stdin.isatty():
            raise ValueError(
                "--new must be confirmed; got no terminal to ask on. Add --yes to delete "
                f"{config.model_path}."
            )
        sys.stderr.write(f"Delete {config.model_path} and start fresh? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise ValueError("--new must be confirmed; got no. Leave it out to resume the run.")
    delete_run(config.model_path)


def _checkpoint_listeners(
    config: Config, arguments: argparse.Namespace, start_step: int, stop: StopOnSignal
) -> list[Any]:
    """What is done at each checkpoint: evaluation and samples, on graphs that are built once."""
    from evaluation.checkpoint_reports import CheckpointReports
    from utils.hooks import AfterSave

    if arguments.prompt is not None and not config.predict_steps:
        raise ValueError(
            "--prompt must come with --predict, or with predict_steps in the config; got "
            "neither. Add one of them or leave it out."
        )
    if not (config.eval_steps or config.predict_steps):
        return []
    reports = CheckpointReports(
        config,
        arguments.gpu_ids,
        arguments.sacred_id or DEFAULT_RUN_ID,
        _prompt(arguments),
    )
    return [AfterSave(reports.report, config.model_path, start_step, stop)]


def train(config: Config, arguments: argparse.Namespace) -> None:
    """Trains to ``train_steps``, from the newest checkpoint if there is one."""
    from utils.devices import place_training

    fit = place_training(config, arguments.gpu_ids)  # refuses a mesh before the slow imports

    from inputs import epoch_of_step, open_sources, training_input
    from model_fns import make_model_fn
    from utils.checkpoints import checkpoint_step, latest_checkpoint
    from utils.hooks import FiniteLossGuard, MetricsLog, StopOnSignal
    from utils.training_run import RunFolder, check_resumed_config, make_estimator

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
    listeners = _checkpoint_listeners(config, arguments, start_step, stop)
    if arguments.new:  # only now: nothing is left that could refuse the run
        _delete_run(config, arguments.yes)
    if checkpoint is not None:
        check_resumed_config(config)
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
    from evaluation.dataset_loss import DatasetLoss, append_scores
    from utils.devices import place_inference

    checkpoint = _trained_checkpoint(config)
    fit = place_inference(config, arguments.gpu_ids, config.eval_batch_size, "eval_batch_size")
    scores = DatasetLoss(config, _placement(fit), config.eval_steps).evaluate(checkpoint)
    append_scores(config, arguments.sacred_id or DEFAULT_RUN_ID, scores)
    print(json.dumps(scores))


def _prompt(arguments: argparse.Namespace) -> str:
    from serving.samples import read_prompt

    standard_input = None
    if arguments.prompt == "-":
        standard_input = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    return read_prompt(arguments.prompt, standard_input)


def predict(config: Config, arguments: argparse.Namespace) -> None:
    """Continues a prompt; samples go to stdout or ``--out``."""
    from models.dimensions import WHOLE_IN_GENERATION
    from serving.engine import Engine, Sampling
    from serving.samples import format_samples, sample_texts, tokenizer_of
    from utils.devices import place_inference

    folder = os.path.dirname(arguments.out or "") or "."
    if not os.path.isdir(folder):
        raise ValueError(f"--out must be in a folder that exists; got {arguments.out}. Make it.")
    prompt = _prompt(arguments)
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
    )
    engine = Engine(config, _placement(fit), samples)
    engine.load(checkpoint)
    text = format_samples(sample_texts(engine, tokenizer, prompt, sampling, samples))
    if arguments.out is None:
        sys.stdout.write(text)
        return
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(text)


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


def print_config(config: Config, arguments: argparse.Namespace) -> None:
    """Prints the resolved config."""
    print(json.dumps(config.to_json_dict(), indent=2))


MODES = {
    "train": train,
    "eval": evaluate,
    "predict": predict,
    "check_dataset": check_dataset,
    "dry_run": dry_run,
    "print_config": print_config,
}

UNBUILT_FLAGS = (
    ("tpu", "run on the CPU, or on GPUs with --gpu_ids"),
    ("export", "use --predict for texts"),
    ("auto_layout", "compare layouts with --dry_run"),
    ("auto_layout_and_mesh_shape", "compare meshes with --dry_run"),
    ("entmax_sampling", "use --top_k or --top_p"),
)
"""GPT-Neo's flags that are accepted and not acted on yet, and what to do in place of each."""


def _refuse_unbuilt(arguments: argparse.Namespace) -> None:
    for flag, remedy in UNBUILT_FLAGS:
        if getattr(arguments, flag):
            raise ValueError(f"--{flag} is not built yet. Leave it out and {remedy}.")


def run(arguments: argparse.Namespace) -> None:
    """Does what the flags ask for.

    Raises:
        ValueError: flags, config, data or checkpoint are unusable.
        RuntimeError: the run failed.
    """
    _refuse_unbuilt(arguments)
    config = load_config(
        arguments.model,
        arguments.overrides,
        arguments.steps_per_checkpoint if arguments.mode == "train" else None,
    )
    if arguments.mode != "print_config":
        from utils.run_log import set_up_logging

        name = os.path.splitext(os.path.basename(arguments.model))[0]
        set_up_logging(name, arguments.debug)
    for warning in config.warnings:
        LOGGER.warning(warning)
    MODES[arguments.mode](config, arguments)


def main(argv: Optional[list[str]] = None) -> int:
    """Runs the command line; returns 0, 1 (failed run), 2 (usage, config) or 130 (Ctrl-C)."""
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    try:
        run(arguments)
    except (ConfigError, ValueError) as error:
        return _report(error, arguments.debug, USAGE_ERROR)
    except (RuntimeError, OSError) as error:
        return _report(error, arguments.debug, RUN_ERROR)
    except Exception as error:
        if not type(error).__module__.startswith("tensorflow"):
            raise
        return _report(error, arguments.debug, RUN_ERROR)
    except KeyboardInterrupt:  # outside the training loop, which saves first
        print("main.py: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _report(error: Exception, debug: bool, code: int) -> int:
    if debug:
        raise error
    text = str(error) if isinstance(error, ConfigError) else reason(error)
    print(f"main.py: error: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
