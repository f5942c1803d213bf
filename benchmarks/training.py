#!/usr/bin/env python3
"""Tokens per second and memory of training, beside PyTorch: `python benchmarks/training.py`."""

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
from benchmarks.shapes import TRAINING
from utils.flags import ExitingParser


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Lets this project and its peers make steps in turn.

    Returns:
        JSON values: what was measured, the machine's limits, a result per contender and the
        ratios to each peer.
    """
    shape = TRAINING[arguments.shape]
    task = {"shape": shape.to_json(), "precision": arguments.precision}
    limits = measure_ceiling()
    result: dict[str, Any] = task | {"ceiling": limits}
    config = shape.config(arguments.precision)
    peers, python = arguments.peer, arguments.peer_python
    with ours_and_peers("training", config, task, peers, python) as contenders:
        answers = alternate(contenders, "step", arguments.rounds)
    result["results"] = {name: summary(given, shape.tokens) for name, given in answers.items()}
    for part in result["results"].values():
        flops = shape.step_flops / part["seconds_median"]
        part["of_ceiling"] = flops / limits[arguments.precision]
    result["faster_than"] = {peer: ratios(answers["ours"], answers[peer]) for peer in peers}
    return result


def table(result: dict[str, Any]) -> str:
    """The result as aligned lines for a person."""
    lines = [
        f"{result['precision']}, {result['shape']}",
        limits_text(result["ceiling"]),
        f"{'':16}{'tokens/s':>10}{'of limit':>10}{'memory':>10}{'ours is faster':>22}",
    ]
    for name, part in result["results"].items():
        lines.append(
            f"{name:16}{part['per_second']:>10,.0f}{part['of_ceiling']:>10.0%}"
            f"{part['peak_memory_bytes'] / GIGABYTE:>7.2f} GB"
            f"{ratio_text(result['faster_than'].get(name)):>22}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; see ``report.run_benchmark``."""
    parser = ExitingParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--shape", choices=sorted(TRAINING), default="medium", help="what is run")
    return run_benchmark(parser, argv, measure, table)


if __name__ == "__main__":
    sys.exit(main())
