"""Files by their path, local or remote; TensorFlow is imported for remote ones only.

Its import takes seconds, and what is wrong with a local path is to be said before.
"""

from __future__ import annotations

import os
from typing import Any


def is_remote(path: str) -> bool:
    """Whether a path is a URL such as ``gs://bucket/folder``."""
    return "://" in path


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    return bool(_gfile().exists(path)) if is_remote(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    """Whether there is a folder."""
    return bool(_gfile().isdir(path)) if is_remote(path) else os.path.isdir(path)


def names_in(folder: str) -> list[str]:
    """Sorted names of what is in a folder; none if there is no folder."""
    if not is_folder(folder):
        return []
    if is_remote(folder):  # where listed folders end in a slash
        return sorted(filter(None, (name.rstrip("/") for name in _gfile().listdir(folder))))
    return sorted(os.listdir(folder))


def read_bytes(path: str) -> bytes:
    """What is in a file."""
    if is_remote(path):
        with _gfile().GFile(path, "rb") as file:
            return bytes(file.read())
    with open(path, "rb") as file:
        return file.read()


def remove(path: str) -> None:
    """Removes a file."""
    if is_remote(path):
        _gfile().remove(path)
    else:
        os.remove(path)


def check_model_path(model_path: str) -> None:
    """Refuses a path where no folder can be.

    Raises:
        ValueError: it, or a part of it, is a file.
    """
    path = model_path
    while path and not exists(path):
        path = os.path.dirname(path)
    if path and not is_folder(path):
        raise ValueError(f"model_path must be a folder; got {model_path}, where {path} is a file.")
