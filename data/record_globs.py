"""Which record files a glob of a dataset config stands for."""

from __future__ import annotations

import os
import re

from data.manifest import manifest_path
from data.records import GZIP_SUFFIX, SUFFIX, escape_glob, natural_sorted
from utils.errors import reason
from utils.files import exists

_NUMBERED = "_[0-9]*"
_NUMBERED_FILE = re.compile(r"(.+_\d+)_\d+_\d+\.tfrecords(\.\w+)?")


def glob_of_data_set(output_dir: str, name: str, compressed: bool) -> str:
    """Makes the glob of one data set, which leaves out those whose names begin alike.

    ``train_*`` would match the files of ``train_held_out``, too. What no glob can tell,
    ``matching_files`` does.

    Args:
        output_dir: folder of the records, local or `gs://`.
        name: first part of their file names.
        compressed: whether they are compressed.

    Returns:
        ``<output_dir>/<name>_[0-9]*.tfrecords``, with ``.gz`` for compressed files.
    """
    ending = SUFFIX + (GZIP_SUFFIX if compressed else "")
    return escape_glob(os.path.join(output_dir, name)) + _NUMBERED + ending


def matching_files(pattern: str, dataset_id: str) -> list[str]:
    """Finds the record files of a glob.

    ``train_[0-9]*`` stands for the data set ``train``; so the files of ``train_2``, which it
    matches as well, are left out. They are known by their manifest: ``train_0_3_100.tfrecords``
    may also be what process 3 wrote of ``train``.

    Args:
        pattern: glob, local or `gs://`.
        dataset_id: name of the dataset, for errors.

    Returns:
        Paths in natural order.

    Raises:
        ValueError: the folder cannot be read.
    """
    import tensorflow as tf

    try:
        files = natural_sorted(tf.io.gfile.glob(pattern))
    except tf.errors.OpError as error:
        raise ValueError(
            f"record files of {dataset_id} must be readable; got {reason(error)} for {pattern}. "
            "Correct the dataset config's path."
        ) from error
    start, is_of_one, _ = os.path.basename(pattern).rpartition(_NUMBERED)
    if not is_of_one:
        return files
    longer = {file: name for file in files if (name := _other_name(file, start)) is not None}
    made = {name for name in set(longer.values()) if exists(name)}
    return [file for file in files if longer.get(file) not in made]


def _other_name(path: str, start: str) -> str | None:
    """Where the manifest would be, if a file is of a data set whose name ends in a number."""
    folder, file = os.path.split(path)
    match = _NUMBERED_FILE.fullmatch(file)
    if match is None or escape_glob(match[1]) == start:
        return None
    return manifest_path(folder, match[1])
