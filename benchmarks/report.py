"""What the benchmarks of models share: flags, the machine's limits, packages that are missing."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from typing import Optional

from benchmarks.contest import Contender, alternate, summary

GIGABYTE = 1e9


def add_common_flags(parser: argparse.ArgumentParser, peers: Sequence[str]) -> None:
    """Adds --peer, --peer_python, --rounds, --json and --ceiling."""
    parser.add_argument(
        "--peer",
        action="append",
        choices=peers,
        default=[],
        help="also measure this, in turns; may be repeated (default: none)",
    )
    parser.add_argument(
        "--peer_python",
        default=sys.executable,
        metavar="FILE",
        help="interpreter that has the peer's packages (default: this one)",
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")
    parser.set_defaults(ceiling={})


def measure_ceiling(arguments: argparse.Namespace, work: dict[str, float]) -> dict[str, float]:
    """The best rates of the machine: FLOP/s of products in each precision, bytes/s read."""
    with Contender("ceiling", "benchmarks.ceiling", arguments.ceiling) as contender:
        return {
            name: amount / summary(alternate([contender], name, 5)["ceiling"], 1.0)["seconds_min"]
            for name, amount in work.items()
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
