"""Which updates of a run used which batch size, and so how much of the data it has read.

Sequences are numbered, and each update reads as many as the batch size says. A run whose batch
size is changed goes on with the first sequence that it has not read, so what was used before is
kept in the run's folder.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Optional

from configs.errors import shown
from utils.files import exists, read_bytes, write_atomically
from utils.stored_config import is_run_config

BATCH_SIZES_FILE = "batch_sizes.json"


@dataclass(frozen=True)
class BatchSizes:
    """Batch sizes by update.

    Attributes:
        segments: (first step, batch size) of each stretch with one size. Steps are counted from 0
            and rise; the last stretch has no end.
    """

    segments: tuple[tuple[int, int], ...]

    def sequences_before(self, step: int) -> int:
        """Sequences that the updates before ``step`` read."""
        ends = [first for first, _ in self.segments[1:]] + [step]
        return sum(
            size * max(min(end, step) - first, 0) for (first, size), end in zip(self.segments, ends)
        )

    def going_on(self, step: int, batch_size: int) -> BatchSizes:
        """The same up to ``step``, and ``batch_size`` from it on."""
        kept = [segment for segment in self.segments if segment[0] < step]
        if not kept or kept[-1][1] != batch_size:
            kept.append((step, batch_size))
        return BatchSizes(tuple(kept))

    def write(self, model_path: str) -> None:
        """Keeps it in the folder of a run.

        Raises:
            OSError: it cannot be written.
        """
        content = json.dumps(self.segments) + "\n"
        write_atomically(batch_sizes_path(model_path), content.encode())


def batch_sizes_path(model_path: str) -> str:
    """Where the batch sizes of a run are kept."""
    return os.path.join(model_path, BATCH_SIZES_FILE)


def read_batch_sizes(
    model_path: str, stored_config: Optional[dict[str, Any]], batch_size: int
) -> BatchSizes:
    """The batch sizes that a run has used.

    Args:
        model_path: folder of the run.
        stored_config: of ``read_stored_config``; a run without the file, as earlier versions
            left it, has had one batch size, which is in there.
        batch_size: taken for all steps if neither says anything.

    Raises:
        ValueError: the file holds something else.
    """
    path = batch_sizes_path(model_path)
    if not exists(path):
        known = stored_config if stored_config and is_run_config(stored_config) else {}
        return BatchSizes(((0, known.get("train_batch_size") or batch_size),))
    text = read_bytes(path).decode("utf-8", errors="replace")
    try:
        segments = json.loads(text)
    except (ValueError, RecursionError):
        segments = None
    if not _is_valid(segments):
        raise ValueError(
            f"{path} must be a list of [first step, batch size], from step 0 on; got "
            f"{shown(text.strip()) if text.strip() else 'an empty file'}. Restore it from a copy, "
            "or delete it if the batch size of the run has never changed."
        )
    return BatchSizes(tuple((first, size) for first, size in segments))


def _is_valid(segments: Any) -> bool:
    def is_pair(value: Any) -> bool:
        return isinstance(value, list) and len(value) == 2 and all(type(i) is int for i in value)

    if not (isinstance(segments, list) and segments and all(map(is_pair, segments))):
        return False
    firsts = [first for first, _ in segments]
    rising = all(before < after for before, after in zip(firsts, firsts[1:]))
    return firsts[0] == 0 and rising and min(size for _, size in segments) > 0
