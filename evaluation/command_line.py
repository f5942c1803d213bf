"""The command line of evaluate.py."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from utils.command_line import parse_gpu_ids
from utils.flags import RaisingParser, at_least


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser."""
    parser = RaisingParser(
        prog="evaluate.py",
        description="Score the newest checkpoint of a model on tasks of lm-evaluation-harness, and "
        "print tables in Markdown.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME|FILE",
        help="shipped config or JSON file (default: none, it is required)",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace one key of the config, repeatable (default: none)",
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        metavar="TASK",
        help="names of tasks, such as lambada_openai hellaswag piqa (default: eval_tasks of the "
        "config)",
    )
    parser.add_argument(
        "--limit",
        type=at_least(1),
        metavar="N",
        help="score only the first N items of each task (default: eval_tasks_limit of the config)",
    )
    parser.add_argument(
        "--num_fewshot",
        type=at_least(0),
        metavar="N",
        help="solved examples before each item (default: what the task says, mostly 0)",
    )
    parser.add_argument(
        "--batch_size",
        type=at_least(1),
        metavar="N",
        help="texts scored or written at once; scores do not depend on it (default: "
        "eval_batch_size and predict_batch_size of the config)",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="also write all scores as JSON (default: none)"
    )
    parser.add_argument(
        "--gpu_ids",
        nargs="+",
        metavar="ID",
        help="devices: 0 1, or device:GPU:0 device:GPU:1, or device:CPU:0 for virtual CPU devices "
        "(default: none, the CPU)",
    )
    parser.add_argument(
        "--debug", action="store_true", help="show a traceback with an error (default: off)"
    )
    return parser


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line.

    Returns:
        The values of all flags; ``gpu_ids`` as full names, and in ``overrides`` what other flags
        replace in the config, too.

    Raises:
        ValueError: a flag is unknown or its value wrong.
        SystemExit: after ``--help``.
    """
    arguments = build_parser().parse_args(argv)
    arguments.gpu_ids = parse_gpu_ids(arguments.gpu_ids) if arguments.gpu_ids else ()
    if arguments.tasks:
        names = [name for word in arguments.tasks for name in word.split(",") if name]
        arguments.overrides.append(f"eval_tasks={json.dumps(names)}")
    if arguments.limit:
        arguments.overrides.append(f"eval_tasks_limit={arguments.limit}")
    if arguments.batch_size:
        for key in ("eval_batch_size", "predict_batch_size"):
            arguments.overrides.append(f"{key}={arguments.batch_size}")
    return arguments
