"""The command line of convert_checkpoint.py."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Optional

from interop.formats import FORMATS, HF, OWN
from interop.tensors import DTYPES
from utils.flags import RaisingParser, at_least

DEFAULT_DTYPE, DEFAULT_SHARD_SIZE = "fp32", "5GB"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"(\d{1,9})\s*(KB|MB|GB|)", re.IGNORECASE)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if not size:
        raise argparse.ArgumentTypeError(
            f"must be a size such as 500MB or 5GB; got {text[:40]!r}. Change it"
        )
    return size


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser."""
    parser = RaisingParser(
        prog="convert_checkpoint.py",
        description="Convert a checkpoint: Hugging Face GPT-2, GPT-Neo or GPT-J to this project, "
        "or back. What INPUT holds is recognised.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "input", metavar="INPUT", help="folder of the checkpoint (default: none, it is required)"
    )
    parser.add_argument(
        "output",
        metavar="OUTPUT",
        help="new folder; an interrupted conversion goes on in it (default: none, it is required)",
    )
    parser.add_argument(
        "--to",
        choices=tuple(FORMATS),
        metavar="|".join(FORMATS),
        help="format of OUTPUT: a folder for transformers, or a checkpoint of this project "
        "(default: the one that INPUT is not)",
    )
    group = parser.add_argument_group("exporting to Hugging Face")
    group.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        metavar="|".join(DTYPES),
        help=f"number format of the weights (default: {DEFAULT_DTYPE})",
    )
    group.add_argument(
        "--max_shard_size",
        type=_size,
        metavar="SIZE",
        help=f"largest file of weights, such as 500MB (default: {DEFAULT_SHARD_SIZE})",
    )
    group.add_argument(
        "--step",
        type=at_least(0),
        metavar="N",
        help="step of the checkpoint (default: the newest)",
    )
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="config of a run whose folder has none (default: config.json in INPUT)",
    )
    group = parser.add_argument_group("both ways")
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="convert again what OUTPUT holds a conversion of (default: off)",
    )
    group.add_argument(
        "--debug", action="store_true", help="show a traceback with an error (default: off)"
    )
    return parser


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line.

    Raises:
        ValueError: a flag is unknown or its value is wrong.
    """
    return build_parser().parse_args(list(argv))


def convert(options: argparse.Namespace) -> str:
    """Does what the command line says; returns one line about it.

    Raises:
        ValueError: it cannot be done.
        RuntimeError: what was written cannot be read back.
    """
    from interop import from_hf, to_hf
    from interop.formats import check_local, format_of

    check_local(options.output, "the output")
    given = format_of(options.input)
    wanted: Optional[str] = options.to or (OWN if given == HF else HF)
    if given == wanted:
        raise ValueError(
            f"--to must be another format than that of the input; got {wanted}, and "
            f"{options.input} is {FORMATS[given]}. Leave --to out."
        )
    if wanted == OWN:
        _refuse_export_flags(options)
        return from_hf.convert(options.input, options.output, options.overwrite)
    choices = to_hf.Choices(
        options.dtype or DEFAULT_DTYPE,
        options.max_shard_size or _size(DEFAULT_SHARD_SIZE),
        options.step,
        options.model,
        options.overwrite,
    )
    return to_hf.convert(options.input, options.output, choices)


def _refuse_export_flags(options: argparse.Namespace) -> None:
    names = ("dtype", "max_shard_size", "step", "model")
    flags = [f"--{name}" for name in names if getattr(options, name) is not None]
    if flags:
        raise ValueError(
            f"{', '.join(flags)} must come with --to {HF} only, since weights of ours are float32; "
            "got a Hugging Face model. Leave it out."
        )
