"""Local records as a table that can be filtered."""

from __future__ import annotations

import datetime
import difflib
import json
import logging
import math
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

STATUSES = {"COMPLETED", "FAILED", "INTERRUPTED", "KILLED", "RUNNING"}
"""Of records that run_experiment.py has written."""

LOGGER = logging.getLogger(__name__)
_CONDITION = re.compile(
    r"\s*([\w./()-]+)\s*(<=|>=|==|!=|=|<|>)\s*('[^']*'|\"[^\"]*\"|[^\s<>=!'\"]+)\s*"
)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
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
    """All records of a folder, in order of their numbers; of damaged ones there is a warning.

    Raises:
        ValueError: there is no such folder.
    """
    if not os.path.isdir(runs_dir):
        raise ValueError(
            f"--runs_dir must be a folder of records; got {runs_dir}, which is none. Name that of "
            "run_experiment.py."
        )
    names = os.listdir(runs_dir)
    rows = []
    for number in sorted(int(name) for name in names if name.isdigit()):
        folder = os.path.join(runs_dir, str(number))
        try:
            run = _read(folder, RUN_FILE)
            if run:
                rows.append(_row(number, folder, run))
        except ValueError as error:  # the others can be shown
            LOGGER.warning("warning: %s", error)
        except (KeyError, TypeError, AttributeError) as error:
            path = os.path.join(folder, RUN_FILE)
            LOGGER.warning(
                "warning: %s is no record of a run, so it is not listed (%r)", path, error
            )
    return rows


def _read(folder: str, name: str) -> dict[str, Any]:
    path = os.path.join(folder, name)
    try:
        return read_json(path)
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"{path} cannot be read, so its run is not listed ({error})") from error


def _row(number: int, folder: str, run: dict[str, Any]) -> Row:
    latest = _read(folder, INFO_FILE).get("latest", {})
    config = _read(folder, CONFIG_FILE)
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
                "Write for instance 'val_loss < 3', several conditions as several arguments, and "
                "quotation marks around a value of several words."
            )
        name, sign, text = match.groups()
        _check_field(rows, name)
        _check_value(rows, name, sign, text)
        kept = [row for row in kept if _holds(name, row.fields.get(name), sign, text)]
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


def _number(text: str) -> Any:
    """The JSON value of a text that may be in quotation marks; None if it is none."""
    try:
        return json.loads(_plain(text))
    except ValueError:
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_value(rows: Sequence[Row], name: str, sign: str, text: str) -> None:
    """Refuses a value that no row could have, so that a mistake is no empty table."""
    number = _number(text)
    is_number = _is_number(number)
    values = [row.fields[name] for row in rows if row.fields.get(name) is not None]
    if is_number and not math.isfinite(number):
        raise ValueError(
            f"a value must be a finite number or a text; got {text}, with which nothing can be "
            "compared. Change it."
        )
    if sign in _OPERATORS and not is_number and name != "started":  # times are ordered as texts
        raise ValueError(
            f"{name} {sign} must be followed by a number, such as 1000 or 2.5; got {text}. "
            "Change it, or use = or !=."
        )
    if values and not is_number and all(map(_is_number, values)):
        raise ValueError(
            f"{name} {sign} must be followed by a number, as it has in all records; got {text}. "
            "Change it."
        )
    if name == "status" and _plain(text).upper() not in (statuses := STATUSES | set(values)):
        near = difflib.get_close_matches(_plain(text).upper(), statuses, n=1, cutoff=0.4)
        raise ValueError(
            f"status must be one of {', '.join(sorted(statuses))}; got {text}. "
            + (f"Did you mean {near[0]}?" if near else "Use one of them.")
        )


def _plain(text: str) -> str:
    """A value without its quotation marks."""
    return text.strip("'\"")


def _holds(name: str, left: Any, sign: str, text: str) -> bool:
    """Whether a field fulfils a condition; one that is missing does not."""
    if left is None:
        return False
    if sign not in _OPERATORS:
        return _is_same(name, left, text) != (sign == "!=")
    right = _plain(text) if isinstance(left, str) else _number(text)
    if isinstance(left, str) and name != "started":
        return False
    return isinstance(left, (int, float, str)) and bool(_OPERATORS[sign](left, right))


def _is_same(name: str, left: Any, text: str) -> bool:
    """Whether a field is what is written, be it a number or a text that looks like one."""
    if not isinstance(left, str):
        return bool(left == _number(text))
    written = _plain(text)
    return left == (written.upper() if name == "status" else written)


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
