"""From files and `--set` overrides to a checked `Config`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from pydantic import ValidationError

from configs.effects import inert_keys, warnings_of
from configs.errors import ConfigError, problem
from configs.fields import MOST_DATASETS
from configs.files import (
    PACKAGE_FOLDER,
    dataset_folders_for,
    find_config,
    inline_datasets,
    read_json,
)
from configs.json_values import parse_json, printable, value_problem
from configs.messages import problems_of, wrong_keys
from configs.names import KEY_ALIASES
from configs.rules import device_loop_problems, rule_problems
from configs.schema import Config, canonical_key

_MOST_KEYS = 1000

# Keys whose default is computed from another key, and is as wrong as that key.
_DERIVED = {
    "eval_batch_size": "train_batch_size",
    "lr_decay_end": "train_steps",
    "eos_id": "datasets",
    "padding_id": "datasets",
    "n_vocab": "datasets",
}


def load_config(
    name_or_path: str,
    overrides: Sequence[str] = (),
    steps_per_checkpoint: Optional[int] = None,
    mesh_is_fitted: bool = False,
) -> Config:
    """Loads a config file and checks everything about it.

    Args:
        name_or_path: A JSON file, or the name of a shipped config with or without `.json`.
        overrides: `key=value` strings that replace keys of the file; a value is read as JSON,
            and as a plain string if it is none.
        steps_per_checkpoint: Steps between checkpoints, for the rules that depend on them.
        mesh_is_fitted: Whether the sizes of the mesh are fitted to the machine later, and judged
            then.

    Returns:
        The config, with `config.warnings` filled in.

    Raises:
        ConfigError: If anything is wrong; it lists all problems at once.
    """
    path = find_config(name_or_path)
    values, problems = read_json(path)
    if "model_type" in values and "n_vocab" not in values:
        theirs = problem(
            "model_type",
            "is a key of Hugging Face's configs",
            values["model_type"],
            "make a folder with a config of this project of it with convert_checkpoint.py",
        )
        raise ConfigError([theirs], str(path))
    return _resolve(
        values,
        overrides,
        steps_per_checkpoint,
        dataset_folders_for(path),
        problems,
        str(path),
        mesh_is_fitted,
    )


def parse_config(
    values: Mapping[str, Any],
    overrides: Sequence[str] = (),
    steps_per_checkpoint: Optional[int] = None,
) -> Config:
    """Checks a config that is in memory; arguments and errors as in `load_config`.

    Args:
        values: Key -> JSON value, aliases allowed; dataset ids are those of shipped datasets.
        overrides: As in `load_config`.
        steps_per_checkpoint: As in `load_config`.

    Returns:
        The config, with `config.warnings` filled in.

    Raises:
        ConfigError: If anything is wrong; it lists all problems at once.
    """
    folders = (PACKAGE_FOLDER / "dataset_configs",)
    return _resolve(values, overrides, steps_per_checkpoint, folders, [], "config")


def _resolve(
    values: Mapping[str, Any],
    overrides: Sequence[str],
    steps_per_checkpoint: Optional[int],
    dataset_folders: Sequence[Path],
    problems: list[str],
    source: str,
    mesh_is_fitted: bool = False,
) -> Config:
    """Merges, validates and judges; `problems` are those found while reading."""
    if len(values) > _MOST_KEYS:
        wrong_count = problem(source, f"must have at most {_MOST_KEYS} keys", len(values), "cut it")
        raise ConfigError([wrong_count], source)
    merged, spelling_problems = _canonical(values)
    changes, override_problems = _read_overrides(overrides)
    merged |= changes
    fields = Config.model_fields
    merged = {key: value for key, value in merged.items() if value is not None or key not in fields}
    faults = _value_problems(merged)
    merged = {key: value for key, value in merged.items() if key not in faults}
    derived = set()
    if "iterations" not in merged and steps_per_checkpoint is not None:
        default = fields["iterations"].default
        merged["iterations"] = min(default, max(steps_per_checkpoint, 1))
        derived.add("iterations")
    merged, wrong_datasets, dataset_problems = _with_datasets(merged, dataset_folders)
    found = [*problems, *spelling_problems, *override_problems, *faults.values(), *dataset_problems]
    wrong = faults.keys() | ({"datasets"} if wrong_datasets else set())
    config, wrong, key_problems = _validate(merged, wrong)
    found += key_problems
    skip = frozenset(wrong)
    found += rule_problems(config, skip, mesh_is_fitted)
    if steps_per_checkpoint is not None and "iterations" not in skip:
        found += device_loop_problems(config, steps_per_checkpoint)
    if found:
        raise ConfigError(found, source)
    inert = inert_keys(config)
    left_out = (set(inert) - config.model_fields_set) | derived
    config.attach_findings(warnings_of(config, inert), frozenset(left_out))
    return config


def _value_problems(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns key -> problem line of the keys whose values no config can hold."""
    found = {}
    for key, value in values.items():
        line = value_problem("config", key) or value_problem(printable(key), value)
        if line is not None:
            found[key] = line
    return found


def _canonical(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Replaces aliases by the keys that they stand for; both spellings at once are refused."""
    merged = {key: value for key, value in values.items() if key not in KEY_ALIASES}
    problems = []
    for alias in KEY_ALIASES.keys() & values.keys():
        key = canonical_key(alias)
        if key in merged:
            wrong = f"is another name of '{key}', and both are given"
            problems.append(problem(alias, wrong, values[alias], f"keep '{key}' only"))
        else:
            merged[key] = values[alias]
    return merged, problems


def _read_overrides(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Reads `key=value` strings; the last one of a key wins."""
    changes: dict[str, Any] = {}
    problems = []
    for text in overrides:
        name, equals, raw = text.partition("=")
        if not (name.strip() and equals):
            problems.append(
                problem("--set", "must have the form key=value", text, "write --set lr=0.001")
            )
            continue
        key = canonical_key(name.strip())
        try:
            changes[key], found = _override_value(key, raw)
        except ValueError as error:
            found = [problem(printable(key), f"cannot be read, {error}", raw, "correct it")]
        problems += found
    return changes, problems


def _override_value(key: str, raw: str) -> tuple[Any, list[str]]:
    """Reads one value as JSON; what a string key gets is a string, quoted or not.

    Returns:
        The value, and a problem line for each key given twice in it.

    Raises:
        ValueError: If it is JSON that no config can hold.
    """
    field = Config.model_fields.get(key)
    wants_string = field is not None and field.annotation is str
    try:
        value, problems = parse_json(raw)
    except json.JSONDecodeError:
        return raw, []
    except ValueError:
        if wants_string:
            return raw, []
        raise
    if wants_string and not (value is None or isinstance(value, str)):
        return raw, []
    return value, problems


def _with_datasets(
    merged: dict[str, Any], folders: Sequence[Path]
) -> tuple[dict[str, Any], bool, list[str]]:
    """Puts dataset configs in place of their ids; drops `datasets` if one cannot be read."""
    entries = merged.get("datasets")
    if not isinstance(entries, (list, tuple)) or len(entries) > MOST_DATASETS:
        return merged, False, []
    inlined, problems = inline_datasets(entries, folders)
    rest = {key: value for key, value in merged.items() if key != "datasets"}
    if problems:
        return rest, True, problems
    return rest | {"datasets": inlined}, False, []


def _validate(values: dict[str, Any], wrong: set[str]) -> tuple[Config, set[str], list[str]]:
    """Validates each key by itself.

    Args:
        values: Canonical key -> JSON value.
        wrong: Keys already known to be wrong and left out of `values`.

    Returns:
        The config, with stand-ins in place of wrong keys; the wrong keys, whose values and
        everything computed from them must not be judged; and the problems.
    """
    wrong = wrong | _derived_from(wrong, values)
    try:
        return Config.model_validate(_with_stand_ins(values, wrong)), wrong, []
    except ValidationError as error:
        wrong |= wrong_keys(error)
        derived = _derived_from(wrong, values)
        problems = problems_of(error, ignored=derived)
    wrong |= derived
    kept = {key: value for key, value in values.items() if key not in wrong}
    return Config.model_validate(_with_stand_ins(kept, wrong)), wrong, problems


def _derived_from(wrong: set[str], values: Mapping[str, Any]) -> set[str]:
    """Returns the absent keys whose defaults are computed from wrong keys."""
    return {key for key, parent in _DERIVED.items() if parent in wrong and key not in values}


def _with_stand_ins(values: dict[str, Any], wrong: set[str]) -> dict[str, Any]:
    """Fills in an example for each required key that is known to be wrong and absent."""
    stand_ins = {
        key: (Config.model_fields[key].examples or [None])[0]
        for key in wrong - values.keys()
        if key in Config.model_fields and Config.model_fields[key].is_required()
    }
    return values | stand_ins


__all__ = ["ConfigError", "load_config", "parse_config"]
