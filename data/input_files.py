"""Whether input files are those that they were."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from utils.files import is_remote, size_and_time

_SHOWN = 3


class InputChanged(ValueError):
    """Records of it would be of no input that ever was."""


def describe_files(paths: Sequence[str]) -> list[list[Any]]:
    """What tells whether files are the same as before.

    Args:
        paths: files, local or remote.

    Returns:
        Path, size in bytes and time of change in nanoseconds of each.

    Raises:
        OSError: one cannot be looked at.
    """
    return [
        [path if is_remote(path) else os.path.abspath(path), *size_and_time(path)] for path in paths
    ]


def changed_files(before: list[list[Any]], now: list[list[Any]]) -> list[str]:
    """Names the input files that are not as they were.

    Args:
        before: of `describe_files`.
        now: the same, later.

    Returns:
        One text for each.
    """
    if before == now:
        return []
    old, new = ({path: rest for path, *rest in files} for files in (before, now))
    changed = [f"{path} is missing" for path in old if path not in new]
    changed += [f"{path} is new" for path in new if path not in old]
    changed += [f"{path} has changed" for path in new if path in old and new[path] != old[path]]
    return changed or ["the files are in another order"]


def refuse_changed_files(before: list[list[Any]]) -> None:
    """Refuses input that was changed while it was read.

    Args:
        before: of `describe_files`, from before it was read.

    Raises:
        InputChanged: a file is not as it was.
        OSError: one cannot be looked at.
    """
    now = []
    for path, *_ in before:
        try:
            now += describe_files([path])
        except FileNotFoundError:
            continue
    if changed := changed_files(before, now):
        raise InputChanged(
            "input files must stay as they are while they are read; got other ones: "
            f"{in_short(changed)}. Give the command again when nothing writes to them."
        )


def in_short(differences: Sequence[str]) -> str:
    """The first of some differences, and the number of the others."""
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return "; ".join(differences[:_SHOWN]) + more
