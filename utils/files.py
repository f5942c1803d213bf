"""Files by their path, local or remote; TensorFlow is imported for remote ones only.

Its import takes seconds, and what is wrong with a local path is to be said before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import IO, Any

from utils.errors import reason


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


def walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As ``os.walk``: folders that are taken out of the second list are not entered."""
    walked: Iterator[tuple[str, list[str], list[str]]]
    walked = _gfile().walk(folder) if is_remote(folder) else os.walk(folder)
    return walked


def size_and_time(path: str) -> tuple[int, int]:
    """Bytes of a file, and when it was changed, in nanoseconds."""
    if is_remote(path):
        status = _gfile().stat(path)
        return int(status.length), int(status.mtime_nsec)
    local_status = os.stat(path)
    return local_status.st_size, local_status.st_mtime_ns


@contextlib.contextmanager
def _remote_errors() -> Iterator[None]:
    """Errors of TensorFlow's file systems as those of Python."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(reason(error)) from error


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """Opens a file to be read.

    Raises:
        OSError: it cannot be read.
    """
    if is_remote(path):
        with _remote_errors(), _gfile().GFile(path, "rb") as file:
            yield file
        return
    with open(path, "rb") as local_file:
        yield local_file


def read_bytes(path: str) -> bytes:
    """What is in a file.

    Raises:
        OSError: it cannot be read.
    """
    with open_bytes(path) as file:
        return file.read()


def write_atomically(path: str, content: bytes) -> None:
    """Writes a file that appears whole or not at all, and replaces one that is there.

    Raises:
        OSError: it cannot be written.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.partial")
    if is_remote(path):
        with _remote_errors():
            _gfile().makedirs(folder)
            with _gfile().GFile(temporary, "wb") as file:
                file.write(content)
            _gfile().rename(temporary, path, overwrite=True)
        return
    os.makedirs(folder or ".", exist_ok=True)
    try:
        with open(temporary, "wb") as local_file:
            local_file.write(content)
            local_file.flush()
            os.fsync(local_file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def remove(path: str) -> None:
    """Removes a file."""
    if is_remote(path):
        _gfile().remove(path)
    else:
        os.remove(path)


def make_folder(path: str) -> None:
    """Makes a folder, with those above it, unless it is there.

    Raises:
        OSError: it cannot be made.
    """
    if is_remote(path):
        with _remote_errors():
            _gfile().makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


def remove_folder(path: str) -> None:
    """Removes a folder with everything in it."""
    if is_remote(path):
        _gfile().rmtree(path)
    else:
        shutil.rmtree(path)


def missing_folders(path: str) -> list[str]:
    """Folders that have to be made for a local path, the innermost first."""
    missing = []
    path = os.path.abspath(path)
    while not os.path.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _check_reached(model_path: str) -> None:
    try:
        with _remote_errors():
            exists(model_path)
    except OSError as error:
        raise ValueError(
            f"model_path must be in a file system that can be reached; got {model_path} "
            f"({str(error).rstrip('.')}). Look at the network, the bucket and its credentials, or "
            "name a local folder."
        ) from error


def check_model_path(model_path: str) -> None:
    """Refuses a path where no folder can be.

    Raises:
        ValueError: it, or a part of it, is a file, or its file system cannot be reached.
    """
    if is_remote(model_path):
        _check_reached(model_path)
    path = model_path
    while path and not exists(path):
        path = os.path.dirname(path)
    if path and not is_folder(path):
        raise ValueError(f"model_path must be a folder; got {model_path}, where {path} is a file.")
