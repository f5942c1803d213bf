"""Finding and reading config files and dataset configs."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional, Union

from configs.datasets import entry_parts, is_older_form
from configs.errors import ConfigError, closest, problem
from configs.json_values import parse_json, value_problem

PACKAGE_FOLDER = Path(__file__).resolve().parent
_DATASET_FOLDER = "dataset_configs"


def shipped_configs() -> tuple[str, ...]:
    """Returns the names of the shipped configs, sorted."""
    return tuple(sorted(path.stem for path in PACKAGE_FOLDER.glob("*.json")))


def find_config(name_or_path: str) -> Path:
    """Returns the file of a config.

    Args:
        name_or_path: An existing file, or the name of a shipped config.

    Raises:
        ConfigError: If there is no such file or config.
    """
    path = _file(name_or_path)
    if path is not None:
        return path
    name = name_or_path.removesuffix(".json")
    if name in shipped_configs():
        return PACKAGE_FOLDER / f"{name}.json"
    match = closest(Path(name).name, shipped_configs())
    hint = f"did you mean '{match}'? " if match else ""
    remedy = f"{hint}shipped configs: {', '.join(shipped_configs())}"
    wrong = "must be a JSON file or the name of a shipped config"
    raise ConfigError([problem("--model", wrong, name_or_path, remedy)], "command line")


def dataset_folders_for(config_path: Path) -> tuple[Path, ...]:
    """Returns where the dataset ids of a config file are looked up, first match wins."""
    beside = config_path.resolve().parent
    folders = [beside / _DATASET_FOLDER, PACKAGE_FOLDER / _DATASET_FOLDER]
    if beside != PACKAGE_FOLDER:
        folders.append(beside)
    return tuple(dict.fromkeys(folders))


def _file(path: Union[str, Path]) -> Optional[Path]:
    """Returns the file of a path, or None if there is none, for whatever reason."""
    expanded = os.path.expanduser(path)
    return Path(expanded) if os.path.isfile(expanded) else None


def read_json(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Reads a JSON object.

    Args:
        path: The file.

    Returns:
        The object, and a problem line for each key given twice.

    Raises:
        ConfigError: If the file is unreadable, no JSON or no object.
    """
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8")
        content, problems = parse_json(text)
    except json.JSONDecodeError as error:
        lines = text.split("\n")
        got = lines[error.lineno - 1].strip() or "end of file"
        wrong = f"is not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise ConfigError([problem(source, wrong, got, "correct it")], source) from error
    except (OSError, ValueError) as error:
        raise ConfigError([f"{source}: cannot be read ({error}); correct it"], source) from error
    if not isinstance(content, dict):
        remedy = "put the keys in curly brackets"
        raise ConfigError([problem(source, "must hold one JSON object", content, remedy)], source)
    return content, problems


def inline_datasets(entries: Sequence[Any], folders: Sequence[Path]) -> tuple[list[Any], list[str]]:
    """Puts dataset configs in place of their ids.

    Args:
        entries: The value of `datasets`.
        folders: Where ids are looked up.

    Returns:
        The entries, and a problem line for each dataset that cannot be read.
    """
    inlined: list[Any] = []
    problems: list[str] = []
    for index, entry in enumerate(entries):
        if is_older_form(entry):
            inlined.append(entry)
            continue
        try:
            head, *options = entry_parts(entry)
        except ValueError:
            inlined.append(entry)  # validation says what is wrong with its form
            continue
        if isinstance(head, str):
            head, found = _read_dataset(head, folders, f"datasets[{index}]")
            problems.extend(found)
        inlined.append([head, *options])
    return inlined, problems


def _read_dataset(
    name: str, folders: Sequence[Path], key: str
) -> tuple[Optional[dict[str, Any]], list[str]]:
    """Returns a dataset config with its id, or None and the problems."""
    candidates: list[Union[str, Path]] = [
        folder / f"{name.removesuffix('.json')}.json" for folder in folders
    ]
    candidates.append(name)
    path = next((path for path in map(_file, candidates) if path is not None), None)
    if path is None:
        known = sorted({item.stem for folder in folders[:2] for item in folder.glob("*.json")})
        match = closest(name, known)
        hint = f"did you mean '{match}'? " if match else ""
        remedy = f"{hint}known datasets: {', '.join(known)}"
        return None, [problem(key, "names no dataset config", name, remedy)]
    try:
        values, problems = read_json(path)
    except ConfigError as error:
        return None, [f"{key}: {line}" for line in error.problems]
    fault = value_problem(key, values)
    if fault is not None:
        return None, [fault]
    return {"id": path.stem} | values, [f"{key}.{line}" for line in problems]
