"""The command line of run_experiment.py: main.py's flags and those of tracking."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from tracking.mongo_flag import add_mongo_flag
from utils.command_line import build_parser, parse_arguments
from utils.flags import ExitingParser, at_least, local_folder

PROGRAM = "run_experiment.py"
DEFAULT_RUNS_DIR = "runs"


def build_experiment_parser() -> argparse.ArgumentParser:
    """Returns the parser of run_experiment.py."""
    parser = build_parser(PROGRAM, "Train a GPT-style model, supervised and tracked.")
    _add_flags(parser.add_argument_group("tracking and supervision"))
    return parser


def _add_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--experiment_name",
        metavar="NAME",
        help="under which the run is listed (default: none, the name of the model config)",
    )
    group.add_argument(
        "--runs_dir",
        type=local_folder,
        default=DEFAULT_RUNS_DIR,
        metavar="DIR",
        help=f"folder of the local records of runs (default: {DEFAULT_RUNS_DIR})",
    )
    add_mongo_flag(group)
    group.add_argument(
        "--tensorboard",
        action="store_true",
        help="start TensorBoard on a free port until the run ends, and log its address "
        "(default: off)",
    )
    group.add_argument(
        "--initial_heartbeat_timeout",
        type=at_least(1),
        default=7200,
        metavar="SECONDS",
        help="start anew if no step is logged in so many seconds from a start (default: 7200)",
    )
    group.add_argument(
        "--heartbeat_timeout",
        type=at_least(1),
        default=1800,
        metavar="SECONDS",
        help="start anew if neither a step nor a line is logged for so long (default: 1800)",
    )
    group.add_argument(
        "--restarts",
        type=at_least(0),
        default=3,
        metavar="N",
        help="give up after so many restarts in a row without a new checkpoint (default: 3)",
    )
    group.add_argument(
        "--restart_wait",
        type=at_least(0),
        default=10,
        metavar="SECONDS",
        help="before the first restart in a row, doubled for each further one (default: 10)",
    )
    group.add_argument(
        "--recreate_tpu",
        default=os.environ.get("RECREATE_TPU"),
        metavar="COMMAND",
        help="shell command that is run before a restart, with --tpu (default: the variable "
        "RECREATE_TPU, else none)",
    )
    group.add_argument(
        "--no_delete_tpu",
        action="store_true",
        help="never run the command of --recreate_tpu (default: off)",
    )


def parse_experiment(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses and checks the command line.

    Args:
        argv: the words after the program name.

    Returns:
        The values of all flags, and the words of them that are main.py's.

    Raises:
        SystemExit: with code 2 and one line on stderr if the flags are not usable; with code 0
            after ``--help``.
    """
    parser = build_experiment_parser()
    arguments = parse_arguments(argv, parser)
    message = _conflict(arguments)
    if message:
        parser.error(message)
    own = ExitingParser(prog=PROGRAM, add_help=False, allow_abbrev=False)
    _add_flags(own.add_argument_group())
    _, words = own.parse_known_args(list(argv))
    return arguments, words


def _conflict(arguments: argparse.Namespace) -> str:
    if arguments.mode != "train":
        return (
            f"{PROGRAM} must train; got --{arguments.mode}. Run main.py for that, or leave it out."
        )
    if arguments.sacred_id is not None:
        return (
            "--sacred_id must be left out, since the record's number is it; got "
            f"{arguments.sacred_id}. Remove it."
        )
    if arguments.experiment_name is not None and not arguments.experiment_name.strip():
        return "--experiment_name must not be empty; got an empty name. Leave it out or write one."
    if arguments.new and not arguments.yes:
        return "--new must be confirmed, since a run may be deleted; got no --yes. Add it."
    if arguments.recreate_tpu and not arguments.tpu and "RECREATE_TPU" not in os.environ:
        return "--recreate_tpu must come with --tpu; got it alone. Add --tpu NAME or remove it."
    return ""
