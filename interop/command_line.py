"""The command line of convert_checkpoint.py."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence

from configs.errors import shown
from configs.rules import pattern_characters
from interop.formats import FORMATS, HF, MTJ, OWN, TARGETS
from interop.model import Model
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
        description="Convert a checkpoint: Hugging Face GPT-2, GPT-Neo or GPT-J, GPT-Neo's own or "
        "Mesh Transformer JAX's to this project, or any of them but the first to Hugging Face. "
        "What INPUT holds is recognised.",
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
        choices=TARGETS,
        metavar="|".join(TARGETS),
        help="format of OUTPUT: a folder for transformers, or a checkpoint of this project "
        "(default: ours, and hf for one of this project without --slim)",
    )
    group = parser.add_argument_group("what is written")
    group.add_argument(
        "--slim",
        action="store_true",
        help="checkpoint of this project with weights alone, to predict and to begin from, "
        "without an optimizer's slots (default: off)",
    )
    group.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        metavar="|".join(DTYPES),
        help="number format of the weights, for --slim and Hugging Face "
        f"(default: {DEFAULT_DTYPE})",
    )
    group.add_argument(
        "--max_shard_size",
        type=_size,
        metavar="SIZE",
        help="largest file of weights for Hugging Face, such as 500MB "
        f"(default: {DEFAULT_SHARD_SIZE})",
    )
    group = parser.add_argument_group("what is read")
    group.add_argument(
        "--step",
        type=at_least(0),
        metavar="N",
        help="step of the checkpoint (default: the newest)",
    )
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="config of a checkpoint that has none in its folder; for Mesh Transformer JAX's also "
        "a file of its configs (default: config.json in INPUT; gptj_6B for Mesh Transformer "
        "JAX's)",
    )
    group = parser.add_argument_group("all formats")
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
    from interop import to_hf, to_own
    from interop.conversion import check_place
    from interop.formats import check_local, format_of
    from interop.hf_configs import hf_architecture

    check_local(options.output, "the output")
    options.output = _lasting(options.output)
    given = format_of(options.input)
    wanted: str = options.to or (HF if given == OWN and not options.slim else OWN)
    _check_flags(options, given, wanted)
    if wanted == OWN:
        _check_name(options.output)
    check_place(options.output)
    model = _read(options, given)
    dtype = options.dtype or DEFAULT_DTYPE
    if wanted == OWN:
        slim = dtype if options.slim else None
        return to_own.convert(model, options.output, slim, options.overwrite)
    hf_architecture(model.config)  # before tensors are looked at
    most_bytes = options.max_shard_size or _size(DEFAULT_SHARD_SIZE)
    return to_hf.convert(model, options.output, dtype, most_bytes, options.overwrite)


def _lasting(folder: str) -> str:
    """The output folder as a config may name it: absolute if it leads out of this folder."""
    is_below = os.path.relpath(folder).split(os.sep)[0] != os.pardir
    return folder if is_below else os.path.abspath(folder)


def _check_name(folder: str) -> None:
    """Refuses what cannot be the model_path of the config that is written."""
    odd = pattern_characters(folder)
    if odd:
        raise ValueError(
            f"the output folder must not contain {' '.join(map(shown, odd))}, since TensorFlow "
            f"reads its name as a pattern; got {folder}. Name another one."
        )


def _read(options: argparse.Namespace, given: str) -> Model:
    from interop import from_hf, from_mtj, from_own

    if given == HF:
        return from_hf.read(options.input, options.output)
    read = from_mtj.read if given == MTJ else from_own.read
    return read(options.input, options.step, options.model)


def _check_flags(options: argparse.Namespace, given: str, wanted: str) -> None:
    """Refuses flags that would have no effect."""
    if given == wanted == HF:
        raise ValueError(
            f"--to must be another format than that of the input; got {wanted}, and "
            f"{options.input} is {FORMATS[given]}. Leave --to out."
        )
    needs: dict[str, str] = {}
    if given == HF:
        needs |= {"step": "another input", "model": "another input"}
    if wanted == OWN:
        needs["max_shard_size"] = f"--to {HF}"
        if not options.slim:
            needs["dtype"] = f"--slim or --to {HF}"
    else:
        needs["slim"] = f"--to {OWN}"
    rules = [
        f"--{name} must come with {place}"
        for name, place in sorted(needs.items())
        if getattr(options, name) not in (None, False)
    ]
    if rules:
        raise ValueError(
            f"{', '.join(rules)}; got {FORMATS[given]} for --to {wanted}, where it has no effect. "
            "Leave it out."
        )
