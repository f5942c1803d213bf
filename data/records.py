"""Record files: how they are named and read.

A record is a `tf.train.Example` with the feature `text`, an int64 list of
token ids. It may have another, `loss_mask`, of the same length: 1 where the id
counts as a label, 0 where not; without it all count. A file is named
`<name>_<i>[_<process>]_<number of records>.tfrecords`; the number is true, so
that a reader can count the records of a data set, and skip into it, without
opening a file. Behind that `.gz` or `.zlib` says that the whole file is
compressed so.

TensorFlow is imported by the functions that touch a file, so that names can be
looked at without it.
"""

from __future__ import annotations

import glob
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import numpy as np

from utils.errors import reason
from utils.files import names_in

FEATURE = "text"
MASK_FEATURE = "loss_mask"
SUFFIX = ".tfrecords"
GZIP_SUFFIX = ".gz"

_COMPRESSIONS = {"": "", GZIP_SUFFIX: "GZIP", ".zlib": "ZLIB"}  # by what follows the suffix
_ENDING = re.escape(SUFFIX) + "(" + "|".join(map(re.escape, _COMPRESSIONS)) + ")"
_COUNT = re.compile(r"_(\d+)" + _ENDING + r"$")
_READ_BATCH = 64
_HEADER = struct.Struct("<QI")  # length of the data in bytes, and a checksum of the length
_FOOTER_BYTES = 4  # checksum of the data


def record_files(output_dir: str, name: str) -> list[str]:
    """Lists the record files of one data set, as one job writes them.

    Args:
        output_dir: folder, local or `gs://`; it need not exist.
        name: first part of the file names.

    Returns:
        Paths, in natural order.
    """
    # Not a glob: `train_*` would also take the files of a data set named train_2.
    named = re.compile(re.escape(name) + r"_\d+_\d+" + _ENDING)
    present = (entry for entry in names_in(output_dir) if named.fullmatch(entry))
    return natural_sorted(os.path.join(output_dir, entry) for entry in present)


def remove_files(paths: Iterable[str]) -> None:
    """Removes files.

    Args:
        paths: paths, local or `gs://`.
    """
    import tensorflow as tf

    for path in paths:
        tf.io.gfile.remove(path)


def record_count(filename: str) -> int:
    """Reads the number of records off a file name.

    Args:
        filename: name or path of a record file.

    Returns:
        Number of records.

    Raises:
        ValueError: the name carries no number.
    """
    match = _COUNT.search(filename)
    if match is None:
        raise ValueError(
            f"record file name must end with _<number of records>{SUFFIX}; got {filename!r}. "
            "Make the records with data/create_tfrecords.py or rename the file."
        )
    return int(match.group(1))


def compression_of(path: str) -> str:
    """Reads off a file name how the file is compressed.

    Args:
        path: name or path of a record file.

    Returns:
        "GZIP", "ZLIB" or "", as TensorFlow calls it.
    """
    match = _COUNT.search(path)
    return _COMPRESSIONS[match.group(2)] if match else ""


def wrong_count(path: str, found: str) -> str:
    """Says that a file does not hold as many records as its name says.

    Args:
        path: of the record file.
        found: records that it holds, in words or digits.

    Returns:
        The message of an error.
    """
    return (
        f"record file {path} must hold as many records as its name says; got {found} instead of "
        f"{record_count(path)}. Make the records again, or correct the number if the file is whole."
    )


def is_local(path: str) -> bool:
    """Returns whether a path is on this machine, where a jump within a file costs nothing."""
    return "://" not in path


def count_records(path: str) -> int:
    """Counts the records of a local file from the length that stands before each of them.

    The data are jumped over: 100,000 records take about 0.3 s, however long they are. A
    compressed file must be read.

    Args:
        path: local record file.

    Returns:
        Records in the file.

    Raises:
        ValueError: the file is missing, or its end is not the end of a record.

    Source: the format of TFRecord, tensorflow/core/lib/io/record_writer.h.
    """
    if compression_of(path):
        import tensorflow as tf

        return sum(len(batch) for batch in _batches([path], tf.identity))
    count, position = 0, 0
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while position < size:
                file.seek(position)
                header = file.read(_HEADER.size)
                length = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else size
                position += _HEADER.size + length + _FOOTER_BYTES
                count += 1
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    if position > size:
        raise _unreadable(path, f"record {count} ends behind the end of the file")
    return count


def _unreadable(path: str, why: str) -> ValueError:
    return ValueError(
        f"record file must exist and be whole; got {path} ({why}). Make the records again."
    )


def read_lengths(paths: Iterable[str]) -> Iterator[np.ndarray]:
    """Counts the ids of the records of some files, a batch at a time.

    Args:
        paths: record files, local or `gs://`.

    Yields:
        Ids in each record of a batch, [records], int64.

    Raises:
        ValueError: a file is missing or damaged.
    """
    import tensorflow as tf

    def lengths_of(serialized: tf.Tensor) -> tf.Tensor:
        parsed = tf.io.parse_example(serialized, {FEATURE: tf.io.RaggedFeature(tf.int64)})
        return parsed[FEATURE].row_lengths()

    yield from _batches(paths, lengths_of)


def read_records(path: str) -> Iterator[np.ndarray]:
    """Reads a record file from its start, for looking at it and for tests.

    Args:
        path: record file, local or `gs://`.

    Yields:
        Token ids of each record, [length], int64.

    Raises:
        ValueError: the file is missing or damaged, or a record is named that has no `text`.
    """
    for ids, _ in read_labelled_records(path):
        yield ids


def read_labelled_records(path: str) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Reads a record file from its start, with the loss masks.

    Args:
        path: record file, local or `gs://`.

    Yields:
        Token ids of each record, [length], int64; and its loss mask, 1 where an id counts as a
        label and 0 where not, [length], int64, or None if all count.

    Raises:
        ValueError: the file is missing or damaged, a record has no feature `text`, or a mask does
            not fit its ids.
    """
    import tensorflow as tf

    values = chain.from_iterable(_batches([path], tf.identity))
    for number, value in enumerate(values, start=1):
        where = f"record {number} of {path}"
        example = _example_of(value, where)
        ids = _ids_of(example, where)
        yield ids, _mask_of(example, len(ids), where)


def _batches(paths: Iterable[str], function: Callable[[Any], Any]) -> Iterator[np.ndarray]:
    """What a function of TensorFlow makes of each batch [records] of records.

    Raises:
        ValueError: a file is missing or damaged.
    """
    import tensorflow as tf

    graph = tf.Graph()  # its own graph and session: works with eager execution on and off
    with graph.as_default():
        file, compression = (tf.compat.v1.placeholder(tf.string, []) for _ in range(2))
        records = tf.data.TFRecordDataset(file, compression)
        dataset = records.batch(_READ_BATCH).map(function)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
    # Not as the default session: a generator that is not read to its end would stay the default.
    with closing(tf.compat.v1.Session(graph=graph)) as session:
        for path in paths:
            try:
                fed = {file: path, compression: compression_of(path)}
                session.run(iterator.initializer, fed)
                while True:
                    yield session.run(batch)
            except tf.errors.OutOfRangeError:
                continue
            except UnicodeDecodeError:  # of the error of a parser, which holds a record's bytes
                _name_wrong_record(path)
                raise
            except tf.errors.OpError as error:
                if isinstance(error, tf.errors.InvalidArgumentError):
                    _name_wrong_record(path)
                raise _unreadable(path, reason(error)) from error


def _name_wrong_record(path: str) -> None:
    """Reads a file of which TensorFlow says only that a record is wrong."""
    for _ in read_labelled_records(path):
        pass


def _example_of(value: bytes, where: str) -> Any:
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        return tf.train.Example.FromString(value)
    except DecodeError as error:
        raise ValueError(
            f"records must be tf.train.Examples; got {value[:20]!r} in {where}. Make the records "
            "with data/create_tfrecords.py."
        ) from error


def _ids_of(example: Any, where: str) -> np.ndarray:
    if FEATURE not in example.features.feature:
        names = sorted(example.features.feature)
        raise ValueError(
            f"records must have a feature {FEATURE!r}; got {names} in {where}. "
            "Make the records with data/create_tfrecords.py."
        )
    return np.array(example.features.feature[FEATURE].int64_list.value, np.int64)


def _mask_of(example: Any, length: int, where: str) -> np.ndarray | None:
    if MASK_FEATURE not in example.features.feature:
        return None
    mask = np.array(example.features.feature[MASK_FEATURE].int64_list.value, np.int64)
    if len(mask) != length or not np.isin(mask, (0, 1)).all():
        raise ValueError(
            f"{MASK_FEATURE} of a record must hold 0 or 1 for each of its {length} ids; got "
            f"{len(mask)} numbers, {sorted(set(mask.tolist()))[:5]}, in {where}. Make the records "
            "again."
        )
    return mask


def escape_glob(path: str) -> str:
    """Makes a glob that matches one path, whatever is in its name.

    Args:
        path: local or `gs://`.

    Returns:
        The glob, for TensorFlow, which takes a backslash as an escape where Python does not.
    """
    return glob.escape(path.replace("\\", "\\\\"))


def natural_sorted(paths: Iterable[str]) -> list[str]:
    """Sorts paths so that numbers in them count as numbers: `a_2` before `a_10`.

    Args:
        paths: names or paths.

    Returns:
        The sorted paths.
    """
    return sorted(paths, key=_natural_key)


def _natural_key(path: str) -> tuple[list[tuple[int, int, str]], str]:
    parts = enumerate(re.split(r"([0-9]+)", path))  # every second one is a number
    return [(1, int(part), "") if i % 2 else (0, 0, part) for i, part in parts], path
