#!/usr/bin/env python3
"""Growth of training with one size at a time, beside the dry run: `python benchmarks/scaling.py`.

Each point is a process of its own, which builds the graph and makes steps. Times are those of all
threads together, which other programs disturb less than the clock's. Memory is what the process
grew by from the first operation of the graph on. It is compared with the dry run (inspection/) less
the part that hangs on no size, which the dry run leaves out: nodes of the graph and compiled
programs, measured as the growth of a process with the same graph of tiny sizes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.contest import Contender
from benchmarks.report import GIGABYTE
from benchmarks.shapes import GENERATION, TRAINING, Shape
from utils.flags import ExitingParser, at_least

TINY = Shape(layers=1, width=16, heads=2, context=16, batch=4, vocabulary=64)
BASE = Shape(layers=4, width=256, heads=4, context=512, batch=4, vocabulary=8192)
SERIES: dict[str, tuple[int, ...]] = {
    "layers": (2, 4, 8, 16, 32),
    "width": (128, 256, 512, 1024),
    "context": (256, 512, 1024, 2048),
    "batch": (2, 4, 8, 16),
    "vocabulary": (8192, 16384, 32768),
    "mesh": (1, 2, 4),
}
"""What grows, and how far; ``mesh``: virtual devices of one machine, among which the batch is
split."""
SHAPES = {
    "medium": TRAINING["medium"],
    "long": TRAINING["long"],
    "125M": replace(GENERATION["125M"], context=1024, batch=2),
}
"""Models of their own, not of a series."""


class Point(NamedTuple):
    """A shape on a number of devices."""

    shape: Shape
    devices: int

    def config(self, precision: str) -> dict[str, Any]:
        """The model config of this project."""
        return self.shape.config(precision) | {"mesh_shape": f"x:{self.devices}"}


def point(series: str, size: int) -> Point:
    """The base with one size replaced."""
    if series == "mesh":
        return Point(BASE, size)
    return Point(replace(BASE, **{series: size}), 1)


def growth(one: Point, precision: str, steps: int) -> dict[str, float]:
    """Builds and makes ``steps`` steps after one that does not count.

    Returns:
        graph_seconds and step_seconds of processors, step_seconds_clock, measured_bytes.
    """
    names = [f"device:CPU:{number}" for number in range(one.devices)]
    task = {"config": one.config(precision), "devices": names}
    with Contender("ours", "benchmarks.ours_training", task) as ours:
        graph, base = (ours.run(name)["value"] for name in ("graph_seconds", "base_bytes"))
        ours.run("step")
        answers = [ours.run("step") for _ in range(steps)]
    return {
        "graph_seconds": graph,
        "step_seconds": min(answer["cpu_seconds"] for answer in answers),
        "step_seconds_clock": min(answer["seconds"] for answer in answers),
        "measured_bytes": max(answer["peak_memory_bytes"] for answer in answers) - base,
    }


def measure_point(one: Point, precision: str, steps: int) -> dict[str, float]:
    """A point beside the dry run.

    Returns:
        What growth returns, graph_bytes, predicted_bytes (of all devices together), step_flops.
    """
    from configs.load import parse_config
    from inspection.measure import measure

    tiny = replace(TINY, layers=one.shape.layers, window=one.shape.window and TINY.context)
    run = measure(parse_config(one.config(precision)))
    return growth(one, precision, steps) | {
        "graph_bytes": growth(Point(tiny, one.devices), precision, 1)["measured_bytes"],
        "predicted_bytes": run.peak_bytes * one.devices + run.master_bytes,
        "step_flops": run.flops.per_processor * one.devices,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown, one line per point."""
    lines = [
        "| what grows | graph s | step s | GFLOP | GFLOP/s | memory GB | of it graph | dry run GB "
        "| ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        gigaflops = result["step_flops"] / 1e9
        compared = result["measured_bytes"] - result["graph_bytes"]
        cells = [
            result["point"],
            f"{result['graph_seconds']:.2f}",
            f"{result['step_seconds']:.2f}",
            f"{gigaflops:,.0f}",
            f"{gigaflops / result['step_seconds']:,.0f}",
            f"{result['measured_bytes'] / GIGABYTE:.2f}",
            f"{result['graph_bytes'] / GIGABYTE:.2f}",
            f"{result['predicted_bytes'] / GIGABYTE:.2f}",
            f"{result['predicted_bytes'] / compared:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; a failure is one line on stderr."""
    parser = ExitingParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--series",
        action="append",
        choices=sorted(SERIES),
        help="what grows; may be repeated (default: everything)",
    )
    parser.add_argument(
        "--shape", action="append", choices=sorted(SHAPES), help="a model in place of series"
    )
    parser.add_argument("--points", type=at_least(1), help="of each series (default: all)")
    parser.add_argument("--steps", type=at_least(1), default=3, help="of each point")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")
    arguments = parser.parse_args(argv)
    try:
        results = _measure(arguments)
    except RuntimeError as error:
        parser.exit(1, f"{parser.prog}: error: {error}\n")
    print(json.dumps(results) if arguments.json else table(results))
    return 0


def _measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    chosen: dict[str, Point] = {
        f"{series} {size:,}": point(series, size)
        for series in arguments.series or (() if arguments.shape else SERIES)
        for size in SERIES[series][: arguments.points]
    }
    chosen |= {name: Point(SHAPES[name], 1) for name in arguments.shape or ()}
    return [
        {"point": name} | measure_point(one, arguments.precision, arguments.steps)
        for name, one in chosen.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
