"""Turns pydantic's errors into problem lines."""

from collections.abc import Callable, Container, Sequence
from typing import Any, Union

from pydantic import BaseModel, ValidationError

from configs.datasets import DatasetConfig
from configs.errors import choose_from, closest, problem, shown
from configs.json_values import printable
from configs.mixture_keys import MixtureKeys
from configs.names import KEY_ALIASES, MOVED_KEYS
from configs.schema import Config

# Path to a value: keys and list indices from the outside in.
Location = Sequence[Union[int, str]]

# Pydantic reports it for every default computed from other keys as soon as any key is wrong.
_CONSEQUENCES = frozenset({"default_factory_not_called"})

# Names inside the schema -> what they are called in a config.
_WRITTEN = {"ignored_mode": "mode"}

# Lines beyond it are counted, not written: a thousand of them help nobody.
_MOST_LINES = 100

_WRONG_TYPES: dict[str, tuple[str, str]] = {
    "int_type": ("must be a whole number", "write it without quotes or decimal point"),
    "float_type": ("must be a number", "write it without quotes"),
    "finite_number": ("must be a finite number", "write a number"),
    "bool_type": ("must be true or false", "write it without quotes"),
    "string_type": ("must be a string", "put it in double quotes"),
    "tuple_type": ("must be a list", "put it in square brackets"),
    "dict_type": ("must be an object", "put it in curly brackets"),
    "model_type": ("must be an object", "put it in curly brackets"),
}

_BOUNDS: dict[str, tuple[str, str]] = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def key_name(location: Location) -> str:
    """Returns a location as users write it, for instance `attention_types[0][1]`."""
    head, *rest = [part for part in location if part != "dataset"]
    return printable(str(head)) + "".join(
        f"[{part}]" if isinstance(part, int) else f".{printable(_WRITTEN.get(part, part))}"
        for part in rest
    )


def problems_of(error: ValidationError, ignored: Container[str] = ()) -> list[str]:
    """Returns one problem line for each error that is not a mere consequence of another.

    Args:
        error: What pydantic raised for a `Config`.
        ignored: Top-level keys whose errors are left out.
    """
    items = [
        item
        for item in error.errors(include_url=False)
        if item["type"] not in _CONSEQUENCES and item["loc"][0] not in ignored
    ]
    lines = [_line(item) for item in items[:_MOST_LINES]]
    if len(items) > _MOST_LINES:
        name = key_name(items[_MOST_LINES]["loc"][:1])
        lines.append(f"{name}: is one of {len(items) - _MOST_LINES:,} more; correct these first")
    return lines


def wrong_keys(error: ValidationError) -> set[str]:
    """Returns the top-level keys that the errors are about."""
    return {
        str(item["loc"][0])
        for item in error.errors(include_url=False)
        if item["type"] not in _CONSEQUENCES and item["loc"]
    }


def _line(item: Any) -> str:
    """Returns the problem line of one pydantic error."""
    name, kind, got = key_name(item["loc"]), item["type"], item["input"]
    context: dict[str, Any] = item.get("ctx", {})
    if kind == "value_error":
        return f"{name}: {context['error']}"
    if kind in _WRONG_TYPES:
        return problem(name, _WRONG_TYPES[kind][0], got, _WRONG_TYPES[kind][1])
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        limit = context[bound]
        return problem(name, f"must be {words} {limit}", got, "change it")
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(name, item["loc"], got, context)
    return problem(name, f"is not valid: {item['msg']}", got, "see docs/config_reference.md")


def _missing(name: str, location: Location, got: Any, context: dict[str, Any]) -> str:
    if isinstance(location[-1], int):
        return f"{name}: is missing (got {shown(got)}); add the item"
    field = _model_of(location).model_fields[str(location[-1])]
    example = f'"{location[-1]}": {shown((field.examples or [None])[0])}'
    where = "when no dataset config gives it " if name == "n_vocab" else ""
    return f"{name}: is required {where}(got nothing); add it, for example {example}"


def _unknown(name: str, location: Location, got: Any, context: dict[str, Any]) -> str:
    last = str(location[-1])
    if last in MOVED_KEYS:
        return problem(name, "is not a key of the config", got, MOVED_KEYS[last])
    known = list(_model_of(location).model_fields)
    match = closest(last, known + list(KEY_ALIASES))
    remedy = f"did you mean '{match}'?" if match else "remove it, or see docs/config_reference.md"
    return problem(name, "is not a known key", got, remedy)


def _literal(name: str, location: Location, got: Any, context: dict[str, Any]) -> str:
    choices = context["expected"].replace(" or ", ", ").replace("'", "").split(", ")
    remedy = choose_from(got, choices) if isinstance(got, str) else choose_from("", choices)
    return problem(name, f"must be one of {', '.join(choices)}", got, remedy)


def _length(name: str, location: Location, got: Any, context: dict[str, Any]) -> str:
    limit = context.get("max_length", context.get("min_length"))
    words = "at most" if "max_length" in context else "at least"
    return problem(name, f"must have {words} {limit} items", got, "change it")


def _empty_string(name: str, location: Location, got: Any, context: dict[str, Any]) -> str:
    return problem(name, "must not be empty", got, "fill it in")


_SPECIAL: dict[str, Callable[[str, Location, Any, dict[str, Any]], str]] = {
    "missing": _missing,
    "extra_forbidden": _unknown,
    "literal_error": _literal,
    "too_long": _length,
    "too_short": _length,
    "string_too_short": _empty_string,
}


def _model_of(location: Location) -> type[BaseModel]:
    """Returns the model whose key a location names."""
    if "dataset" in location[:-1]:
        return DatasetConfig
    return MixtureKeys if location[0] == "moe_params" and len(location) > 1 else Config
