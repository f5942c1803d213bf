"""Parts of record files on their way to files: where they are, and how they become one.

Everything here may be done again after an interruption, and, where `attempt` differs, by several
processes at the same time.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterable
from typing import Any

from data.records import GZIP_SUFFIX, SUFFIX, is_local

_COPY_BYTES = 1 << 24
_GZIP_LEVEL = 6


def part_path(work_dir: str, name: str, part: int = 0) -> str:
    """Where a part of a record file is until it is published.

    Args:
        work_dir: folder of the temporary files.
        name: of the file, without the number of records.
        part: number of the part.

    Returns:
        The path.
    """
    return os.path.join(work_dir, f".{name}{SUFFIX}.{part}.partial")


def gzip_path(work_dir: str, name: str) -> str:
    """Where a record file that is compressed is until it is published.

    Args:
        work_dir: folder of the temporary files.
        name: of the file, without the number of records.

    Returns:
        The path.
    """
    return os.path.join(work_dir, f".{name}{SUFFIX}{GZIP_SUFFIX}.partial")


def join_parts(parts: list[str], path: str, attempt: str = "") -> None:
    """Makes a file of its parts, unless that was done before.

    Args:
        parts: paths of its parts, in order; they are removed.
        path: of the file.
        attempt: tells this attempt from others that may be made at the same time.
    """
    import tensorflow as tf

    if not _are_there(parts):
        assert tf.io.gfile.exists(path), f"{path} and its parts are missing"
    else:
        if len(parts) == 1 and _is_rename(parts[0], path):
            tf.io.gfile.rename(parts[0], path, overwrite=True)
            return
        folder, name = os.path.split(path)
        whole = os.path.join(folder, f".{name}{attempt}.partial")
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(whole, "wb") as target:
            _copy(parts, target)
        tf.io.gfile.rename(whole, path, overwrite=True)
    _remove(parts)


def compress_parts(parts: list[str], path: str, attempt: str = "") -> None:
    """Makes a compressed file of its parts, unless that was done before.

    Args:
        parts: paths of its parts, in order; they are removed.
        path: of the file.
        attempt: tells this attempt from others that may be made at the same time.
    """
    import tensorflow as tf

    if _are_there(parts):
        whole = f"{path}{attempt}.new"
        # No name and no time: the same records give the same bytes.
        with (
            tf.io.gfile.GFile(whole, "wb") as file,
            gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as target,
        ):
            _copy(parts, target)
        tf.io.gfile.rename(whole, path, overwrite=True)
    _remove(parts)


def _are_there(parts: list[str]) -> bool:
    """Whether all parts are; they are removed only after the file is there."""
    import tensorflow as tf

    return all(tf.io.gfile.exists(part) for part in parts)


def _copy(parts: Iterable[str], target: Any) -> None:
    import tensorflow as tf

    for part in parts:
        with tf.io.gfile.GFile(part, "rb") as source:
            shutil.copyfileobj(source, target, _COPY_BYTES)


def _remove(parts: Iterable[str]) -> None:
    import tensorflow as tf

    for part in parts:
        if tf.io.gfile.exists(part):
            tf.io.gfile.remove(part)


def _is_rename(source: str, target: str) -> bool:
    """Whether a file gets from one path to the other by a new name alone."""
    if not (is_local(source) and is_local(target)):
        return _file_system(source) == _file_system(target)
    folder = os.path.dirname(target) or "."
    os.makedirs(folder, exist_ok=True)
    return os.stat(source).st_dev == os.stat(folder).st_dev


def _file_system(path: str) -> str:
    """Scheme and bucket."""
    return "/".join(path.split("/")[:3])
