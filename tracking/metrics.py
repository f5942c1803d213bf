"""The curves of a run, read from its files as they are written."""

from __future__ import annotations

import datetime
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from utils.files import exists, open_bytes

POINT_LIMIT = 10_000
"""Points that a curve keeps: more than a screen has columns, and about 0.4 MB in a database whose
documents hold 16."""

METRICS_FILE = "metrics.jsonl"
EVALUATION_PREFIX = "val_"
"""Begins the names of scores on held-out records."""

COUNTS = ("tokens", "bytes")
"""In scores: how much text they are of."""


def now() -> datetime.datetime:
    """UTC without a time zone, as Sacred writes times."""
    return datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)


class Curve:
    """The points of one metric, in order of the step, thinned evenly beyond POINT_LIMIT.

    Which points are kept is a function of those that came: of n points every ``stride``-th, the
    smallest power of two that leaves no more than the limit. A curve that is read again is the
    same.

    Attributes:
        steps: of the points that are kept.
        values: at those steps.
        timestamps: when each became known, UTC in ISO format.
        last: the newest value, kept or not.
    """

    def __init__(self, limit: int = POINT_LIMIT) -> None:
        assert limit % 2 == 0
        self.steps: list[int] = []
        self.values: list[float] = []
        self.timestamps: list[str] = []
        self.last: Optional[float] = None
        self._limit = limit
        self._stride = 1
        self._skip = 0  # points to be left out before the next that is kept

    def add(self, step: int, value: float, timestamp: str) -> None:
        """Appends a point; those of this step and later ones, done again, make room for it."""
        while self.steps and self.steps[-1] >= step:
            del self.steps[-1], self.values[-1], self.timestamps[-1]
            self._skip = 0
        self.last = value
        if self._skip:
            self._skip -= 1
            return
        self.steps.append(step)
        self.values.append(value)
        self.timestamps.append(timestamp)
        self._skip = self._stride - 1
        if len(self.steps) > self._limit:
            for points in (self.steps, self.values, self.timestamps):
                del points[1::2]
            # The newest is among those kept, since the limit is even.
            self._skip += self._stride
            self._stride *= 2

    def as_json(self) -> dict[str, list[Any]]:
        """The curve in the format of Sacred's metrics.json."""
        return {"steps": self.steps, "values": self.values, "timestamps": self.timestamps}


class GrowingFile:
    """Reads a file of JSON lines that another process appends to, or replaces."""

    def __init__(self, path: str):
        self._path = path
        self._offset = 0
        self._last_line = b""

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """Returns what has come since the last call.

        Returns:
            Whether the file has been replaced, so that the entries are those of all of it; and
            the entries of whole lines. Lines that are no JSON objects are left out.

        Raises:
            OSError: the file cannot be read.
        """
        if not exists(self._path):
            replaced = self._offset > 0
            self._offset, self._last_line = 0, b""
            return replaced, []
        with open_bytes(self._path) as file:
            file.seek(self._offset - len(self._last_line))
            data = file.read()
            replaced = not data.startswith(self._last_line)
            if replaced:
                file.seek(0)
                data = file.read()
                self._offset = 0
            else:
                data = data[len(self._last_line) :]
        end = data.rfind(b"\n") + 1
        lines = data[:end].splitlines(keepends=True)
        if lines:
            self._last_line = lines[-1]
            self._offset += end
        return replaced, list(_entries(lines))


def _entries(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # cut short by a kill, and written on by the process after it
            continue
        if isinstance(entry, dict):
            yield entry


def _numbers(entry: Mapping[str, Any], step_key: str) -> Iterator[tuple[str, float]]:
    """The metrics of an entry that are numbers: a viewer draws what is none as 0."""
    for name, value in entry.items():
        if name in (step_key, *COUNTS) or isinstance(value, bool):
            continue
        if isinstance(value, (int, float)):
            value = float(value)
            if math.isfinite(value):
                yield name, value


class RunMetrics:
    """All curves of a run: those of ``metrics.jsonl``, and its scores at checkpoints.

    Args:
        model_path: folder of the run.
        run_id: part of the name of the file of scores.
        earlier: curves of an earlier process, by name, whose times are kept.

    Attributes:
        lines: of metrics that were added to the file while it was watched.
        last_step: the last one logged.
    """

    def __init__(
        self, model_path: str, run_id: str, earlier: Optional[Mapping[str, Any]] = None
    ) -> None:
        self._files = [
            (GrowingFile(os.path.join(model_path, METRICS_FILE)), "step", ""),
            (
                GrowingFile(os.path.join(model_path, f"eval_{run_id}.jsonl")),
                "global_step",
                EVALUATION_PREFIX,
            ),
        ]
        self._curves: list[dict[str, Curve]] = [{} for _ in self._files]
        self._times = [_times(earlier or {}) for _ in self._files]
        self.lines = 0
        self.last_step = 0

    @property
    def curves(self) -> dict[str, Curve]:
        """The curves by name."""
        return {name: curve for curves in self._curves for name, curve in curves.items()}

    def refresh(self) -> bool:
        """Reads what has come.

        Returns:
            Whether anything has changed.

        Raises:
            OSError: a file cannot be read.
        """
        changed = False
        for number, (file, step_key, prefix) in enumerate(self._files):
            replaced, entries = file.read()
            if replaced:
                kept = {name: curve.as_json() for name, curve in self._curves[number].items()}
                self._times[number] = _times(kept)
                self._curves[number] = {}
            for entry in entries:
                self._add(number, entry, step_key, prefix)
            if not number and not replaced:
                self.lines += len(entries)
            changed = changed or replaced or bool(entries)
        return changed

    def _add(self, number: int, entry: Mapping[str, Any], step_key: str, prefix: str) -> None:
        step = entry.get(step_key)
        if not isinstance(step, int):
            return
        if not number:
            self.last_step = step
        for name, value in _numbers(entry, step_key):
            is_task = "/" in name  # such as lambada_openai/acc
            name = ("" if is_task else prefix) + name.replace(" ", "_")
            time = self._times[number].get((name, step, value)) or now().isoformat()
            self._curves[number].setdefault(name, Curve()).add(step, value, time)


def _times(curves: Mapping[str, Any]) -> dict[tuple[str, int, float], str]:
    """When each point became known, by its name, step and value."""
    return {
        (name, step, value): time
        for name, points in curves.items()
        for step, value, time in zip(points["steps"], points["values"], points["timestamps"])
    }
