#!/usr/bin/env python3
"""Speed and memory of text generation, beside PyTorch: `python benchmarks/generation.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.contest import alternate, ours_and_peers, ratios, summary
from benchmarks.report import GIGABYTE, limits_text, measure_ceiling, ratio_text, run_benchmark
from benchmarks.shapes import GENERATION
from utils.flags import ExitingParser, at_least

WORKS = ("generate", "first_token")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Lets this project and its peers write in turn.

    Returns:
        JSON values: what was measured, the machine's limits, for each kind of work a result per
        contender and the ratios to each peer.
    """
    shape, precision = GENERATION[arguments.shape], arguments.precision
    length = arguments.prompt + arguments.new
    if length > shape.context:
        raise ValueError(
            f"--prompt and --new must be at most {shape.context} together; got {length}. "
            "Lower one of them."
        )
    task = {"shape": shape.to_json(), "precision": precision, "batch": arguments.batch}
    task |= {"prompt": arguments.prompt, "new": arguments.new}
    result: dict[str, Any] = task | {"ceiling": measure_ceiling()}
    peers, python = arguments.peer, arguments.peer_python
    with ours_and_peers("generation", shape.config(precision), task, peers, python) as contenders:
        for work in WORKS:
            answers = alternate(contenders, work, arguments.rounds)
            tokens = answers["ours"][0]["value"]
            assert all(one["value"] == tokens for given in answers.values() for one in given)
            result[work] = {
                "results": {name: summary(given, tokens) for name, given in answers.items()},
                "faster_than": {peer: ratios(answers["ours"], answers[peer]) for peer in peers},
            }
    return result


def table(result: dict[str, Any]) -> str:
    """The result as aligned lines for a person."""
    lines = [
        f"{result['precision']}, {result['shape']}",
        limits_text(result["ceiling"]),
        f"{result['batch']} prompts of {result['prompt']} tokens, {result['new']} new ones each",
        f"{'':16}{'tokens/s':>10}{'memory':>10}{'ours is faster':>22}"
        f"{'first token':>14}{'ours is faster':>22}",
    ]
    generate, first = (result[work] for work in WORKS)
    for name, part in generate["results"].items():
        lines.append(
            f"{name:16}{part['per_second']:>10,.1f}{part['peak_memory_bytes'] / GIGABYTE:>7.2f} GB"
            f"{ratio_text(generate['faster_than'].get(name)):>22}"
            f"{first['results'][name]['seconds_median']:>12.3f} s"
            f"{ratio_text(first['faster_than'].get(name)):>22}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; see ``report.run_benchmark``."""
    parser = ExitingParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--shape", choices=sorted(GENERATION), default="125M", help="what is run")
    parser.add_argument("--batch", type=at_least(1), default=1, metavar="N", help="texts at once")
    parser.add_argument(
        "--prompt", type=at_least(1), default=64, metavar="N", help="tokens of a prompt"
    )
    parser.add_argument("--new", type=at_least(1), default=128, metavar="N", help="tokens to write")
    return run_benchmark(parser, argv, measure, table)


if __name__ == "__main__":
    sys.exit(main())
