"""Local records as a table that can be filtered."""

from __future__ import annotations

import datetime
import difflib
import json
import operator
import os
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tracking.metrics import now
from tracking.record import CONFIG_FILE, INFO_FILE, RUN_FILE, is_written, read_json

DEAD_SECONDS = 120.0
"""After so long without a heartbeat Omniboard, too, takes a run for dead."""

_CONDITION = re.compile(r"\s*([\w./()-]+)\s*(<=|>=|==|!=|=|<|>)\s*(.*\S)\s*")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Row:
    """A record.

    Attributes:
        fields: id, name, status, started, result; the last value of each metric, and step; the
            keys of the config.
    """

    fields: dict[str, Any]


def read_rows(runs_dir: str) -> list[Row]:
    """All records of a folder, in order of their numbers."""
    names = os.listdir(runs_dir) if os.path.isdir(runs_dir) else []
    rows = []
    for number in sorted(int(name) for name in names if name.isdigit()):
        folder = os.path.join(runs_dir, str(number))
        run = read_json(os.path.join(folder, RUN_FILE))
        if run:
            rows.append(_row(number, folder, run))
    return rows


def _row(number: int, folder: str, run: dict[str, Any]) -> Row:
    latest = read_json(os.path.join(folder, INFO_FILE)).get("latest", {})
    config = read_json(os.path.join(folder, CONFIG_FILE))
    own = {
        "id": number,
        "name": run["experiment"]["name"],
        "status": _status(folder, run),
        "started": run["start_time"][:16].replace("T", " "),
        "result": run.get("result"),
    }
    return Row(config | latest | own)


def _status(folder: str, run: dict[str, Any]) -> str:
    """That of the record, but for a run whose supervisor cannot have written its end."""
    if run["status"] != "RUNNING" or is_written(folder):
        return str(run["status"])
    beat = datetime.datetime.fromisoformat(run.get("heartbeat") or run["start_time"])
    here = run["host"].get("hostname") == platform.node()  # locks are seen on their machine
    is_old = (now() - beat).total_seconds() > DEAD_SECONDS
    return "KILLED" if here or is_old else "RUNNING"


def filter_rows(rows: Sequence[Row], conditions: Iterable[str]) -> list[Row]:
    """Those for which all conditions hold, such as ``val_loss < 3`` or ``status = FAILED``.

    A row without the field, or with a value of another kind, does not fulfil a condition.

    Raises:
        ValueError: a condition cannot be read, or no row has its field.
    """
    kept = list(rows)
    for condition in conditions:
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise ValueError(
                f"a condition must be FIELD < VALUE, or with >, <=, >=, =, !=; got {condition!r}. "
                "Write for instance 'val_loss < 3'."
            )
        name, sign, text = match.groups()
        _check_field(rows, name)
        value = _value(text)
        kept = [row for row in kept if _holds(row.fields.get(name), sign, value)]
    return kept


def sort_rows(rows: Sequence[Row], name: str) -> list[Row]:
    """Rows by a field, smallest first; those without it at the end.

    Raises:
        ValueError: no row has the field.
    """
    _check_field(rows, name)

    def key(row: Row) -> tuple[int, Any]:
        value = row.fields.get(name)
        if isinstance(value, (int, float)):
            return (0, value)
        return (2, "") if value is None else (1, str(value))

    return sorted(rows, key=key)


def fields_in(conditions: Iterable[str]) -> list[str]:
    """Names of the fields of conditions that can be read."""
    return [match[1] for text in conditions if (match := _CONDITION.fullmatch(text))]


def _check_field(rows: Sequence[Row], name: str) -> None:
    known = sorted({field for row in rows for field in row.fields})
    if rows and name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"Did you mean {near[0]}?" if near else "Use a metric or a key of the config."
        raise ValueError(f"a field must be in a record; got {name}, which is in none. {remedy}")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip("'\"")


def _holds(left: Any, sign: str, right: Any) -> bool:
    is_number = [isinstance(value, (int, float)) for value in (left, right)]
    if left is None or (sign not in ("=", "==", "!=") and not all(is_number)):
        both_text = isinstance(left, str) and isinstance(right, str)
        if left is None or not both_text:
            return False
    return bool(_OPERATORS[sign](left, right))


def as_text(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """The table, with aligned columns."""
    cells = [list(columns)] + [
        [_cell(row.fields.get(column)) for column in columns] for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.5g}"
    return value if isinstance(value, str) else json.dumps(value)
