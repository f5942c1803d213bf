"""The dataset config that belongs to freshly made records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from data.record_globs import glob_of_data_set
from data.tokenizers import Tokenizer
from utils.files import check_writable, is_remote, write_atomically

_FOLDER = Path(__file__).resolve().parents[1] / "configs" / "dataset_configs"


def dataset_config_path(name: str) -> Path:
    """Finds the file of a dataset config.

    Args:
        name: of a dataset config, or the path of a file that ends in `.json`.

    Returns:
        The path; the file need not exist.
    """
    return Path(name) if name.endswith(".json") else _FOLDER / f"{name}.json"


def previous_dataset_config(path: Path, overwrite: bool) -> dict[str, Any]:
    """Reads the dataset config that is about to be replaced.

    Args:
        path: of the file.
        overwrite: whether it may be replaced.

    Returns:
        Its content; empty if there is no such file.

    Raises:
        ValueError: it exists and may not be replaced, cannot be read, or cannot be written.
    """
    try:
        check_writable(str(path))
    except OSError as error:
        raise ValueError(
            f"dataset config must be a file that can be written; got {path} ({error.strerror}). "
            "Give --write_dataset_config another one."
        ) from error
    if not path.exists():
        return {}
    if not overwrite:
        raise ValueError(
            f"dataset config must not exist yet; got {path}. Give --write_dataset_config another "
            "name, or --overwrite to replace it together with records of this --name."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        content = error
    if not isinstance(content, dict):
        raise ValueError(
            f"dataset config must be a file with a JSON object, for its eval_path to be kept; got "
            f"{path} ({content}). Repair or remove it."
        )
    return content


def dataset_config(
    tokenizer: Tokenizer,
    is_pretrained: bool,
    eos_id: int,
    output_dir: str,
    name: str,
    compressed: bool = False,
) -> dict[str, Any]:
    """Describes records so that a model trains on them without an edit.

    Paths are absolute, so that the config works from any folder. Nothing is said of held-out
    records, since nothing is known of them here.

    Args:
        tokenizer: the tokenizer of the records.
        is_pretrained: whether it was loaded by name rather than from a file.
        eos_id: id that ends a document.
        output_dir: folder of the records, local or `gs://`.
        name: first part of their file names.
        compressed: whether they are compressed.

    Returns:
        Content of the JSON file. Where the vocabulary has no padding token,
        `padding_id` is the end of text.
    """
    return {
        "n_vocab": tokenizer.size,
        "path": glob_of_data_set(_absolute(output_dir), name, compressed),
        "tokenizer_is_pretrained": is_pretrained,
        "tokenizer_path": tokenizer.name if is_pretrained else _absolute(tokenizer.name),
        "eos_id": eos_id,
        "padding_id": eos_id if tokenizer.padding_id is None else tokenizer.padding_id,
    }


def _absolute(path: str) -> str:
    return path if is_remote(path) else os.path.abspath(path)


def write_dataset_config(path: Path, content: dict[str, Any], previous: dict[str, Any]) -> None:
    """Writes a dataset config; what it does not say itself is kept from the file it replaces.

    Args:
        path: of the file; its folder is made if missing.
        content: of ``dataset_config``.
        previous: of ``previous_dataset_config``.

    Raises:
        OSError: it cannot be written.
    """
    kept = {key: value for key, value in previous.items() if value != ""}
    write_atomically(str(path), (json.dumps(kept | content, indent=2) + "\n").encode())
