"""Reading of JSON, and what no value of a config may be, whatever its key."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn, Optional

from configs.errors import problem, shown

_LONGEST_STRING = 4096  # characters, the longest path of Linux
_MOST_DIGITS = 1000
_MOST_ITEMS = 50_000
_DEEPEST = 20

_NOT_TEXT = re.compile("[\\0\\ud800-\\udfff]")
_TOO_DEEP = (f"must be nested at most {_DEEPEST} levels deep", "more", "write it flat")


def parse_json(text: str) -> tuple[Any, list[str]]:
    """Reads JSON without its extensions.

    Args:
        text: The JSON.

    Returns:
        The value, and a problem line for each key given twice.

    Raises:
        json.JSONDecodeError: If the text is no JSON.
        ValueError: If it holds NaN or Infinity, a number of thousands of digits, or lists in
            lists without end.
    """
    problems: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in pairs:
            if name in values:
                got = f"{shown(values[name])}, then {shown(value)}"
                problems.append(f"{printable(name)}: is given twice (got {got}); keep one of them")
            values[name] = value
        return values

    try:
        value = json.loads(
            text,
            object_pairs_hook=unique,
            parse_constant=_refuse_constant,
            parse_int=_whole_number,
        )
    except RecursionError:
        raise ValueError(f"{_TOO_DEEP[0]}; got {_TOO_DEEP[1]}") from None
    return value, problems


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _whole_number(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number must have at most {_MOST_DIGITS:,} digits; got {len(text):,}")
    return int(text)


def printable(name: str) -> str:
    """Returns a key as written, or as a JSON string if it would not fit into a line."""
    return name if name.isprintable() and len(name) <= 60 else shown(name)


def value_problem(key: str, value: Any) -> Optional[str]:
    """Returns a problem line if a value, at any depth, is none that a config can hold.

    Args:
        key: The key of the config.
        value: A JSON value, of any size: nothing here recurses.
    """
    level = [value]
    for _ in range(_DEEPEST + 1):
        inner: list[Any] = []
        for item in level:
            for part in item if isinstance(item, Mapping) else (item,):
                fault = _fault(part)
                if fault is not None:
                    return problem(key, *fault)
            if isinstance(item, Mapping):
                inner.extend(item.values())
            elif isinstance(item, (list, tuple)):
                inner.extend(item)
        if not inner:
            return None
        if len(inner) > _MOST_ITEMS:
            wrong = f"must hold at most {_MOST_ITEMS:,} items"
            return problem(key, wrong, len(inner), "shorten it")
        level = inner
    return problem(key, *_TOO_DEEP)


def _fault(item: Any) -> Optional[tuple[str, Any, str]]:
    """Returns (what is wrong, what was got, remedy) of a string or number, or None."""
    if isinstance(item, str):
        if len(item) > _LONGEST_STRING:
            wrong = f"must have at most {_LONGEST_STRING:,} characters in one string"
            return wrong, len(item), "shorten it"
        if _NOT_TEXT.search(item):
            wrong = "must have no null character or half of a surrogate pair in a string"
            return wrong, item, "remove it"
    elif isinstance(item, float) and not math.isfinite(item):
        return "must be a finite number", item, "write a number"
    elif isinstance(item, int) and item.bit_length() > _MOST_DIGITS * math.log2(10):
        digits = int(item.bit_length() / math.log2(10)) + 1
        return f"must have at most {_MOST_DIGITS:,} digits in one number", digits, "change it"
    return None
