"""Files by their path, local or remote; TensorFlow is imported for remote ones only.

Its import takes seconds, and what is wrong with a local path is to be said before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from utils.errors import reason


def is_remote(path: str) -> bool:
    """Whether a path is a URL such as ``gs://bucket/folder``."""
    return "://" in path


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


@contextlib.contextmanager
def tensorflow_errors(path: str) -> Iterator[None]:
    """Errors of TensorFlow's file systems as those of Python, which name the path.

    Raises:
        OSError: in their place.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, reason(error), path) from error


def exists(path: str) -> bool:
    """Whether there is a file or folder.

    Raises:
        OSError: a remote file system cannot be reached.
    """
    if is_remote(path):
        with tensorflow_errors(path):
            return bool(_gfile().exists(path))
    return os.path.exists(path)


def is_folder(path: str) -> bool:
    """Whether there is a folder; errors as ``exists``."""
    if is_remote(path):
        with tensorflow_errors(path):
            return bool(_gfile().isdir(path))
    return os.path.isdir(path)


def names_in(folder: str) -> list[str]:
    """Sorted names of what is in a folder; none if there is no folder."""
    if not is_folder(folder):
        return []
    if is_remote(folder):  # where listed folders end in a slash
        with tensorflow_errors(folder):
            return sorted(filter(None, (name.rstrip("/") for name in _gfile().listdir(folder))))
    return sorted(os.listdir(folder))


def files_below(folder: str) -> list[str]:
    """The files of a folder and of the folders in it, but for those that are hidden.

    Links are followed. A folder to which several paths lead is looked into once, so that links
    can make no loop, and by the path without a link if there is one.

    Args:
        folder: local or remote.

    Returns:
        Paths, in any order; links that lead nowhere are among them.

    Raises:
        OSError: a folder cannot be read.
    """
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    pending = [folder]
    while pending:
        linked = []
        for parent, folders, names in _walk(pending.pop(0)):
            folders[:] = [name for name in folders if not name.startswith(".")]
            if not is_remote(folder):
                status = os.stat(parent)
                if (status.st_dev, status.st_ino) in seen:
                    folders[:] = []
                    continue
                seen.add((status.st_dev, status.st_ino))
                paths = [os.path.join(parent, name) for name in folders]
                linked += [path for path in paths if os.path.islink(path)]
            found += [os.path.join(parent, name) for name in names if not name.startswith(".")]
        pending += sorted(linked)
    return found


def _walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As ``os.walk``, which says nothing of folders that cannot be read."""

    def fail(error: Exception) -> None:
        raise error

    if not is_remote(folder):
        yield from os.walk(folder, onerror=fail)
        return
    with tensorflow_errors(folder):
        yield from _gfile().walk(folder, onerror=fail)


def size_and_time(path: str) -> tuple[int, int]:
    """Bytes of a file, and when it was changed, in nanoseconds.

    Raises:
        OSError: it cannot be looked at.
    """
    if is_remote(path):
        with tensorflow_errors(path):
            status = _gfile().stat(path)
        return int(status.length), int(status.mtime_nsec)
    local_status = os.stat(path)
    return local_status.st_size, local_status.st_mtime_ns


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """Opens a file to be read.

    Raises:
        OSError: it cannot be read.
    """
    if is_remote(path):
        with tensorflow_errors(path), _gfile().GFile(path, "rb") as file:
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
        with tensorflow_errors(path):
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


def check_writable(path: str) -> None:
    """Makes sure that a local file can be made, and leaves nothing.

    Raises:
        OSError: it cannot.
    """
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    with tempfile.TemporaryFile(dir=folder):
        pass


def file_problem(error: OSError, path: str) -> str:
    """Says in one line what a file system has refused.

    Args:
        error: the error.
        path: what was worked on, if the error does not say.
    """
    return (
        f"files must be readable, or writable with room on the disk; got {error.filename or path} "
        f"({error.strerror or error}). Make room, correct the permissions, or give another folder."
    )


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
        with tensorflow_errors(path):
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
        exists(model_path)
    except OSError as error:
        raise ValueError(
            f"model_path must be in a file system that can be reached; got {model_path} "
            f"({str(error.strerror).rstrip('.')}). Look at the network, the bucket and its "
            "credentials, or name a local folder."
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
