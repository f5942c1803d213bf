"""Command line: train, evaluate, predict, export, inspect. ``python main.py --help`` lists all."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    import argparse

    from configs.schema import Config

# Imports are in the functions that need them: --help and config errors answer at once, without
# TensorFlow, and Ctrl-C during an import ends as it does later. TensorFlow's start-up messages
# would bury ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

LOGGER = logging.getLogger(__name__)
USAGE_ERROR, RUN_ERROR = 2, 1

INTERRUPTED, READER_GONE = 130, 141  # as shells say it: 128 + SIGINT, 128 + SIGPIPE


def _give_up(message: str) -> None:
    """Ends the process from a thread, when the main one is stuck in a call to a lost host."""
    print(f"main.py: error: {message}", file=sys.stderr, flush=True)
    os._exit(RUN_ERROR)


def train(config: Config, arguments: argparse.Namespace) -> None:
    """Trains to ``train_steps``, from the newest checkpoint if there is one."""
    from utils.output import keep_going_without_stderr
    from utils.supervised import stop_with_supervisor

    keep_going_without_stderr()
    stop_with_supervisor()

    from commands.training import train

    train(config, arguments, _give_up)


def evaluate(config: Config, arguments: argparse.Namespace) -> None:
    """Scores the newest checkpoint on eval_path and prints one JSON line."""
    from commands.inference import evaluate

    print(evaluate(config, arguments))


def predict(config: Config, arguments: argparse.Namespace) -> None:
    """Continues a prompt; samples go to stdout, as they are written, or to ``--out``."""
    from commands.inference import predict

    with closing(predict(config, arguments)) as pieces:
        for piece in pieces:
            print(piece, end="", flush=True)


def export(config: Config, arguments: argparse.Namespace) -> None:
    """Writes the newest checkpoint as a SavedModel and prints its folder."""
    from commands.inference import export

    print(export(config, arguments))


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
        print(mesh_report(config, _processors(arguments) or config.mesh_size))
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


def _processors(arguments: argparse.Namespace) -> int:
    """How many the flags name; 0 if none."""
    if arguments.tpu:
        from utils.tpu import connect

        return connect(arguments.tpu).cores
    hosts, devices = arguments.hosts, arguments.gpu_ids
    return len(hosts.devices(devices)) if hosts else len(devices)


def _with_fitting_mesh(config: Config, arguments: argparse.Namespace) -> Config:
    from inspection.mesh_fit import fit_mesh
    from utils.cluster import ALONE

    if arguments.tpu and arguments.mode in ("train", *ALONE):
        from utils.tpu import check_files

        check_files(config, arguments.tpu, arguments.mode == "train")
    fit = fit_mesh(config, _processors(arguments) or 1)
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
    from utils.cluster import ALONE, is_idle, log_suffix, read_cluster
    from utils.command_line import base_keys
    from utils.early_checks import check_run_id

    check_run_id(arguments.sacred_id)
    arguments.hosts = read_cluster(arguments, os.environ)
    config = load_config(
        arguments.model,
        [*arguments.overrides, *base_keys(arguments)],
        arguments.steps_per_checkpoint if arguments.mode == "train" else None,
        mesh_is_fitted=arguments.fit_mesh or arguments.mode in ALONE,
    )
    if arguments.mode != "print_config":
        from utils.run_log import set_up_logging

        name = os.path.splitext(os.path.basename(arguments.model))[0]
        set_up_logging(name + log_suffix(arguments.hosts), arguments.debug)
    if arguments.fit_mesh:
        config = _with_fitting_mesh(config, arguments)
    for warning in config.warnings:
        LOGGER.warning(warning)
    if is_idle(arguments.hosts, arguments.mode):
        return
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
    from utils.output import escape_what_cannot_be_shown

    debug = False
    escape_what_cannot_be_shown(sys.stdout, sys.stderr)
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
    from utils.errors import message, remote_host
    from utils.supervised import leave_trace

    leave_trace()
    if debug:
        raise error
    text = message(error)
    host = remote_host(error)
    if host is not None:
        text += f" (on {host})"
    print(f"main.py: error: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
