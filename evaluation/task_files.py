"""Data of tasks in local files: a folder for each task, in it a file for each split.

    <folder>/piqa/validation.jsonl
    <folder>/lambada_openai/test-00000-of-00001.parquet

Names and columns are those of the task's data set on the hub, so that its files fit as they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

_READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
"""Ending of a file -> the reader of the ``datasets`` library."""

_SPLIT_KEYS = ("training_split", "validation_split", "test_split", "fewshot_split")


def local_data(folder: str, task: str) -> Optional[dict[str, list[str]]]:
    """The data files of a task by split.

    Args:
        folder: of all tasks.
        task: its name.

    Returns:
        None if the task has no folder, or one without data.
    """
    place = os.path.join(folder, task)
    splits: dict[str, list[str]] = {}
    for name in sorted(os.listdir(place)) if os.path.isdir(place) else []:
        stem, ending = os.path.splitext(name)
        if ending in _READERS:
            # The hub's files are called after the split, and numbered.
            splits.setdefault(stem.split("-")[0], []).append(os.path.join(place, name))
    return splits or None


def with_local_data(
    task: str,
    settings: Mapping[str, Any],
    splits: Mapping[str, Sequence[str]],
    num_fewshot: Optional[int],
) -> dict[str, Any]:
    """The settings of a task of the harness, but with data from files.

    Args:
        task: its name.
        settings: of its YAML file.
        splits: the files of each split.
        num_fewshot: as asked for; see ``shots_of``.

    Raises:
        ValueError: the files are of several kinds, one is empty, or a split that is needed is not
            among them.
    """
    readers = {_READERS[os.path.splitext(file)[1]] for files in splits.values() for file in files}
    if len(readers) > 1:
        raise ValueError(
            f"data files of task {task} must be of one kind; got {', '.join(sorted(readers))}. "
            "Convert or remove some."
        )
    held_out = settings.get("test_split") or settings.get("validation_split")
    needed = {held_out: "its items"}
    if shots_of(settings.get("num_fewshot"), num_fewshot):
        examples = settings.get("fewshot_split") or settings.get("training_split") or held_out
        needed.setdefault(examples, "solved examples")
    for split, what in needed.items():
        if split not in splits:
            raise ValueError(
                f"data files of task {task} must hold {what}, the split {split}; got "
                f"{', '.join(sorted(splits))}. Add {split}.jsonl (or .json, .parquet, .csv)."
            )
    empty = [file for files in splits.values() for file in files if not os.path.getsize(file)]
    if empty:
        raise ValueError(
            f"data files of task {task} must have at least one item; got none in {empty[0]}. "
            "Fill or remove it."
        )
    absent = {key: None for key in _SPLIT_KEYS if settings.get(key) not in splits}
    return {
        **settings,
        **absent,
        "dataset_path": readers.pop(),
        "dataset_name": None,
        "dataset_kwargs": {"data_files": dict(splits)},
    }


def shots_of(own: Optional[int], asked: Optional[int]) -> int:
    """Solved examples before each item: as asked, unless the task says 0, whose prompt has some.

    Args:
        own: what the task says; None for nothing.
        asked: None for nothing.
    """
    return (own or 0) if asked is None or own == 0 else asked
