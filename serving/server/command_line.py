"""The command line of serve.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from utils.command_line import parse_gpu_ids
from utils.flags import RaisingParser, at_least

DEFAULT_PORT = 8000
_WAITING, _BODY_BYTES, _SECONDS = 64, 1_000_000, 300


def _port(text: str) -> int:
    value = at_least(0)(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"must be at most 65535; got {text!r}. Change it")
    return value


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser."""
    parser = RaisingParser(
        prog="serve.py",
        description="Serve a trained model over HTTP: OpenAI's completions, GPT-J's requests, a "
        "page to try it on.",
        allow_abbrev=False,
    )
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        required=True,
        metavar="NAME|FILE",
        help="shipped config or JSON file (default: none, it is required)",
    )
    group.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace one key of the config, repeatable (default: none)",
    )
    group.add_argument(
        "--texts",
        type=at_least(1),
        metavar="N",
        help="texts that are written at once (default: predict_batch_size of the config)",
    )
    group.add_argument(
        "--gpu_ids",
        nargs="+",
        default=(),
        metavar="ID",
        help="devices, as for main.py (default: none, the CPU)",
    )
    group.add_argument("--tpu", metavar="NAME", help="TPU, as for main.py (default: none, no TPU)")
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where it listens; 0.0.0.0 is all of the machine's addresses (default: 127.0.0.1)",
    )
    group.add_argument(
        "--port",
        type=_port,
        default=DEFAULT_PORT,
        metavar="N",
        help=f"of the address, 0 for one that is free (default: {DEFAULT_PORT})",
    )
    group.add_argument(
        "--api_key_file",
        metavar="FILE",
        help="file with the key that requests must have (default: none, no key)",
    )
    group.add_argument(
        "--most_waiting",
        type=at_least(1),
        default=_WAITING,
        metavar="N",
        help=f"texts that may wait for their turn (default: {_WAITING})",
    )
    group.add_argument(
        "--most_bytes",
        type=at_least(1),
        default=_BODY_BYTES,
        metavar="N",
        help=f"of the body of a request (default: {_BODY_BYTES})",
    )
    group.add_argument(
        "--most_seconds",
        type=at_least(1),
        default=_SECONDS,
        metavar="N",
        help=f"from a request to the end of its answer (default: {_SECONDS})",
    )
    parser.add_argument(
        "--debug", action="store_true", help="show a traceback with an error (default: off)"
    )
    return parser


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line.

    Args:
        argv: the words after the program name.

    Returns:
        The values of all flags; ``gpu_ids`` is a tuple of full device names.

    Raises:
        ValueError: they are not usable.
        SystemExit: after ``--help``.
    """
    arguments = build_parser().parse_args(argv)
    arguments.gpu_ids = parse_gpu_ids(arguments.gpu_ids) if arguments.gpu_ids else ()
    if arguments.tpu and arguments.gpu_ids:
        raise ValueError("--tpu must not be combined with --gpu_ids; got both. Remove one of them.")
    return arguments
