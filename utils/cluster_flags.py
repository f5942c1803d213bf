"""The flags for runs on several machines, and the rules between them."""

from __future__ import annotations

import argparse
from typing import Callable, Optional

from utils.cluster import DEFAULT_TIMEOUT_SECONDS


def add_cluster_flags(
    group: argparse._ArgumentGroup, at_least: Callable[[int], Callable[[str], int]]
) -> None:
    """Adds them.

    Args:
        group: to which.
        at_least: makes the reader of whole numbers from a given one on.
    """
    group.add_argument(
        "--cluster",
        nargs="+",
        metavar="HOST:PORT",
        help="all hosts of a training run, the chief first, the same list on each of them "
        "(default: those of the variable TF_CONFIG; without it this host alone)",
    )
    group.add_argument(
        "--task",
        type=at_least(0),
        metavar="N",
        help="number of this host in --cluster, 0 for the chief (default: none, it comes with "
        "--cluster)",
    )
    group.add_argument(
        "--cluster_timeout",
        type=at_least(1),
        metavar="SECONDS",
        help="how long hosts are waited for at the start, and how long one may be silent later "
        f"(default: {DEFAULT_TIMEOUT_SECONDS})",
    )


def cluster_conflict(namespace: argparse.Namespace, mode: Optional[str]) -> Optional[str]:
    """Returns the message about cluster flags that do not fit, or None.

    Args:
        namespace: all flags.
        mode: flag of the mode; None for training.
    """
    if namespace.cluster and namespace.task is None:
        return "--cluster must come with --task; got it alone. Add the number of this host."
    if namespace.task is not None and not namespace.cluster:
        return "--task must come with --cluster; got it alone. Add the list of all hosts."
    if namespace.cluster and namespace.tpu:
        return "--cluster must not be combined with --tpu; got both. Remove one of them."
    if namespace.cluster and mode is not None:
        return f"--cluster is for training only; got {mode}. Remove one of them."
    return None
