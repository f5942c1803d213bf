"""Workers that write records to files.

Each bucket of records becomes parts of record files, and each file is then put together. Whatever
a worker leaves behind when it is lost is under names that nobody else uses.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any, Optional

import apache_beam as beam
import numpy as np

from data.beam_entries import Starts, sorted_ids
from data.preparation import Plan
from data.record_encoding import encode_records
from data.record_parts import compress_parts, gzip_path, join_parts, part_path

_BLOCK_RECORDS = 256  # encoded at once


class WriteParts(beam.DoFn):
    """(bucket, its records) to (number of a record file, (its first record in there, path))."""

    def __init__(self, plan: Plan, work_dir: str) -> None:
        """Takes where to write.

        Args:
            plan: records per file.
            work_dir: folder of the parts, which all workers reach.
        """
        self._plan = plan
        self._work_dir = work_dir

    def process(self, element: Any, starts: Optional[Starts]) -> Iterator[Any]:
        """Sorts and writes the records of one bucket."""
        if starts is None:
            return
        bucket, parts = element
        records = sorted_ids(parts)
        first = starts.before(bucket)
        done = 0
        while done < len(records):
            file, offset = divmod(first + done, self._plan.files_per)
            count = min(self._plan.files_per - offset, len(records) - done)
            path = os.path.join(self._work_dir, f"part-{first + done}-{uuid.uuid4().hex}")
            _write(path, records[done : done + count])
            yield file, (offset, path)
            done += count


def _write(path: str, records: list[np.ndarray]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(path) as writer:
        for start in range(0, len(records), _BLOCK_RECORDS):
            for content in encode_records(records[start : start + _BLOCK_RECORDS]):
                writer.write(content)


class JoinParts(beam.DoFn):
    """(number of a record file, its parts) to the file, as `RecordWriter.adopt` expects it."""

    def __init__(self, plan: Plan, work_dir: str) -> None:
        """Takes where to write.

        Args:
            plan: name of the data set.
            work_dir: folder of the parts.
        """
        self._plan = plan
        self._work_dir = work_dir

    def process(self, element: Any) -> Iterator[Any]:
        """Puts one file together."""
        file, parts = element
        paths = [path for _, path in sorted(parts)]
        name, attempt = f"{self._plan.name}_{file}", f".{uuid.uuid4().hex}"
        if self._plan.compress:
            compress_parts(paths, gzip_path(self._work_dir, name), attempt)
        else:
            join_parts(paths, part_path(self._work_dir, name), attempt)
        yield file
