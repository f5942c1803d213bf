"""Flags of --predict."""

import argparse
import re

from utils.flags import at_least

PREDICT_ONLY: tuple[str, ...] = (
    "prompt",
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "num_samples",
    "stop",
    "repetition_penalty",
    "entmax_sampling",
    "out",
)

_ESCAPE = re.compile(r"\\.?", re.DOTALL)
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r", "\\\\": "\\"}


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _temperature(text: str) -> float:
    value = _real(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(
            f"must be a number of at least 0; got {text!r}. Use 0 for the most likely token."
        )
    return value


def _probability(text: str) -> float:
    value = _real(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"must be above 0 and at most 1; got {text!r}. Use 1 to sample among all tokens."
        )
    return value


def _penalty(text: str) -> float:
    value = _real(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(
            f"must be a number above 0; got {text!r}. Use 1 for no penalty."
        )
    return value


def _stop_string(text: str) -> str:
    """``text`` with its escapes decoded."""
    wrong = [escape for escape in _ESCAPE.findall(text) if escape not in _ESCAPES]
    if wrong or not text:
        got = f"{wrong[0]} in {text!r}" if wrong else "an empty text"
        raise argparse.ArgumentTypeError(
            f"must be a text whose escapes are {' '.join(_ESCAPES)}; got {got}. Write \\\\ for a "
            "backslash."
        )
    return _ESCAPE.sub(lambda match: _ESCAPES[match[0]], text)


def add_sampling_flags(group: argparse._ArgumentGroup) -> None:
    """Flags of --predict; what is not given comes from the config."""
    group.add_argument(
        "--prompt",
        metavar="FILE",
        help="text file with the prompt, - for stdin (on a terminal: line by line, up to an empty "
        "one); also for the samples that a training run writes if predict_steps is set (default: "
        "a built-in paragraph)",
    )
    group.add_argument(
        "--max_new_tokens",
        type=at_least(1),
        metavar="N",
        help="new tokens per sample (default: predict_max_steps of the config)",
    )
    group.add_argument(
        "--temperature",
        type=_temperature,
        metavar="T",
        help="divisor of the logits, 0 = most likely token (default: temperature of the config)",
    )
    group.add_argument(
        "--top_k",
        type=at_least(1),
        metavar="K",
        help="sample among the K most likely tokens (default: top_k of the config)",
    )
    group.add_argument(
        "--top_p",
        type=_probability,
        metavar="P",
        help="nucleus sampling, 1 = all tokens (default: top_p of the config)",
    )
    group.add_argument(
        "--seed",
        type=at_least(0),
        metavar="N",
        help="seed of the samples, a seed repeats a text (default: seed of the config)",
    )
    group.add_argument(
        "--num_samples",
        type=at_least(1),
        metavar="N",
        help="samples of the prompt (default: predict_batch_size of the config)",
    )
    group.add_argument(
        "--stop",
        action="append",
        type=_stop_string,
        metavar="TEXT",
        help=r"text that ends a sample and is not part of it, \n for a newline, repeatable "
        "(default: none)",
    )
    group.add_argument(
        "--repetition_penalty",
        type=_penalty,
        metavar="X",
        help="makes tokens that the text already has less likely, 1 = off (default: "
        "repetition_penalty of the config)",
    )
    group.add_argument(
        "--entmax_sampling",
        action="store_true",
        help="sample from entmax probabilities, not softmax (default: off)",
    )
    group.add_argument(
        "--out",
        metavar="FILE",
        help="file for the samples; with --export the folder of the exported versions (default: "
        "standard output; export in model_path)",
    )
