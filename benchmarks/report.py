"""What the benchmarks of models share: flags, the machine's limits, packages that are missing."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Callable, Optional

from benchmarks.ceiling import WORK
from benchmarks.contest import Contender, alternate, summary
from utils.flags import ExitingParser, at_least

GIGABYTE = 1e9
PEERS = ("transformers", "torch-compiled")


def run_benchmark(
    parser: ExitingParser,
    argv: Optional[Sequence[str]],
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
) -> int:
    """Reads the flags, measures and prints; a wrong flag or a failure is one line on stderr.

    Args:
        parser: with the benchmark's own flags.
        argv: None for those of the process.
        measure: from flags to JSON values; raises ValueError for flags that do not go together.
        table: the same values for a person.

    Returns:
        Exit code: 0, 1 if a contender failed, 2 for wrong flags or a peer that is not installed.
    """
    add_common_flags(parser)
    arguments = parser.parse_args(argv)
    packages = ("torch",) + (("transformers",) if "transformers" in arguments.peer else ())
    problem = missing(arguments, packages)
    if problem:
        parser.error(problem)
    try:
        result = measure(arguments)
    except ValueError as error:
        parser.error(str(error))
    except RuntimeError as error:
        parser.exit(1, f"{parser.prog}: error: {error}\n")
    print(json.dumps(result) if arguments.json else table(result))
    return 0


def limits_text(limits: dict[str, float]) -> str:
    """One line for ``measure_ceiling``'s result."""
    return (
        f"limits: {limits['float32'] / 1e9:,.0f} GFLOP/s float32, "
        f"{limits['bfloat16'] / 1e9:,.0f} bfloat16, {limits['read'] / GIGABYTE:.1f} GB/s read"
    )


def ratio_text(ratio: Optional[dict[str, float]]) -> str:
    """One ratio of ``contest.ratios`` with its extremes; nothing for None."""
    return f"{ratio['median']:.2f}x ({ratio['min']:.2f}-{ratio['max']:.2f})" if ratio else ""


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --precision, --peer, --peer_python, --rounds and --json."""
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    add_peer_flags(parser)
    parser.add_argument(
        "--rounds", type=at_least(1), default=7, metavar="N", help="default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")


def add_peer_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --peer and --peer_python."""
    parser.add_argument(
        "--peer",
        action="append",
        choices=PEERS,
        default=[],
        help="also measure this, in turns; may be repeated (default: none)",
    )
    parser.add_argument(
        "--peer_python",
        default=sys.executable,
        metavar="FILE",
        help="interpreter that has the peer's packages (default: this one)",
    )


def measure_ceiling() -> dict[str, float]:
    """The best rates of the machine: FLOP/s of products in each precision, bytes/s read."""
    with Contender("ceiling", "benchmarks.ceiling", {}) as contender:
        return {
            name: amount / summary(alternate([contender], name, 5)["ceiling"], 1.0)["seconds_min"]
            for name, amount in WORK.items()
        }


def missing(arguments: argparse.Namespace, packages: Sequence[str]) -> Optional[str]:
    """Says what is not installed that the peers need; None if nothing is missing."""
    if not arguments.peer:
        return None
    for package in packages:
        found = subprocess.run(
            [arguments.peer_python, "-c", f"import {package}"], capture_output=True
        )
        if found.returncode:
            return (
                f"--peer must be installed; got no {package} for {arguments.peer_python}. Run: "
                "pip install torch==2.13.0 transformers, or name another --peer_python."
            )
    return None
