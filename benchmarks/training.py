#!/usr/bin/env python3
"""Tokens per second and memory of training, beside PyTorch: `python benchmarks/training.py`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import ceiling
from benchmarks.contest import Contender, alternate, ratios, summary
from benchmarks.report import GIGABYTE, add_common_flags, measure_ceiling, missing
from benchmarks.shapes import TRAINING

PEERS = ("transformers", "torch-compiled")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Lets this project and its peers make steps in turn.

    Returns:
        JSON values: what was measured, the machine's limits, a result per contender and the
        ratios to each peer.
    """
    shape = TRAINING[arguments.shape]
    result: dict[str, Any] = {"shape": shape.to_json(), "precision": arguments.precision}
    result["ceiling"] = limits = measure_ceiling(arguments, ceiling.work(arguments.ceiling))
    with contextlib.ExitStack() as stack:
        ours = {"config": shape.config(arguments.precision)}
        contenders = [Contender("ours", "benchmarks.ours_training", ours)]
        stack.enter_context(contenders[0])
        for peer in arguments.peer:
            task = {"model": peer, "shape": shape.to_json(), "precision": arguments.precision}
            contender = Contender(peer, "benchmarks.peers.training", task, arguments.peer_python)
            contenders.append(stack.enter_context(contender))
        answers = alternate(contenders, "step", arguments.rounds)
    result["results"] = {name: summary(given, shape.tokens) for name, given in answers.items()}
    for part in result["results"].values():
        flops = shape.step_flops / part["seconds_median"]
        part["of_ceiling"] = flops / limits[arguments.precision]
    result["faster_than"] = {
        peer: ratios(answers["ours"], answers[peer]) for peer in arguments.peer
    }
    return result


def table(result: dict[str, Any]) -> str:
    """The result as aligned lines for a person."""
    limits = result["ceiling"]
    lines = [
        f"{result['precision']}, {result['shape']}",
        f"limits: {limits['float32'] / 1e9:,.0f} GFLOP/s float32, "
        f"{limits['bfloat16'] / 1e9:,.0f} bfloat16, {limits['read'] / GIGABYTE:.1f} GB/s read",
        f"{'':16}{'tokens/s':>10}{'of limit':>10}{'memory':>10}{'ours is faster':>22}",
    ]
    for name, part in result["results"].items():
        faster = result["faster_than"].get(name)
        times = f"{faster['median']:.2f}x" if faster else ""
        spread = f" ({faster['min']:.2f}-{faster['max']:.2f})" if faster else ""
        lines.append(
            f"{name:16}{part['per_second']:>10,.0f}{part['of_ceiling']:>10.0%}"
            f"{part['peak_memory_bytes'] / GIGABYTE:>7.2f} GB{times + spread:>22}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; exit code 0, or 2 if a peer is not installed."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--shape", choices=sorted(TRAINING), default="medium", help="what is run")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    add_common_flags(parser, PEERS)
    arguments = parser.parse_args(argv)
    problem = missing(
        arguments, ("torch",) + (("transformers",) if "transformers" in arguments.peer else ())
    )
    if problem:
        print(f"training.py: {problem}", file=sys.stderr)
        return 2
    result = measure(arguments)
    print(json.dumps(result) if arguments.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
