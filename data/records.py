"""Record files: how they are named, written and read.

A record is a `tf.train.Example` with one feature, `text`, an int64 list of
token ids. A file is named `<name>_<i>[_<process>]_<number of records>.tfrecords`;
the number is true, so that a reader can count the records of a data set, and
skip into it, without opening a file.

TensorFlow is imported by the functions that touch a file, so that names can be
looked at without it.
"""

from __future__ import annotations

import glob
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

import numpy as np

from utils.errors import reason

FEATURE = "text"
SUFFIX = ".tfrecords"

_COUNT = re.compile(r"_(\d+)" + re.escape(SUFFIX) + r"$")
_READ_BATCH = 64
_HEADER = struct.Struct("<QI")  # length of the data in bytes, and a checksum of the length
_FOOTER_BYTES = 4  # checksum of the data


class RecordWriter:
    """Writes records to numbered files that appear all at once.

    Everything is written under temporary names; only `close` gives the files
    their real ones, so that an interrupted job leaves no data set that looks
    complete. Used as a context manager it closes on success and discards on an
    exception.
    """

    def __init__(
        self, output_dir: str, name: str, files_per: int = 100_000, process: int | None = None
    ) -> None:
        """Opens a data set for writing; the first file is made with the first record.

        Args:
            output_dir: folder, made if missing; local or `gs://`.
            name: first part of every file name.
            files_per: records per file.
            process: number put into the file names when several jobs write one data set.

        Raises:
            ValueError: `files_per` is below 1, or `name` is not a plain file name.
        """
        if files_per < 1:
            raise ValueError(
                f"files_per must be at least 1; got {files_per}. Give the records per file."
            )
        if not name or "/" in name or os.sep in name:
            raise ValueError(
                f"name must be a file name without folders; got {name!r}. "
                "Give the folder as output_dir."
            )
        self._output_dir = output_dir
        self._name = name
        self._files_per = files_per
        self._process = "" if process is None else f"_{process}"
        self._file: Any = None
        self._records_in_file = 0
        self._temporary: list[tuple[str, str]] = []

    def write(self, ids: Iterable[int]) -> None:
        """Appends one record.

        Args:
            ids: token ids.

        Raises:
            ValueError: the folder cannot be written to.
        """
        import tensorflow as tf

        if self._file is None:
            try:
                tf.io.gfile.makedirs(self._output_dir)
                self._file = tf.io.TFRecordWriter(self._temporary_path())
            except tf.errors.OpError as error:
                raise ValueError(
                    f"output_dir must be a folder that can be written to; got {self._output_dir} "
                    f"({reason(error)}). Give another folder."
                ) from error
        feature = tf.train.Feature(int64_list=tf.train.Int64List(value=ids))
        example = tf.train.Example(features=tf.train.Features(feature={FEATURE: feature}))
        self._file.write(example.SerializeToString())
        self._records_in_file += 1
        if self._records_in_file == self._files_per:
            self._end_file()

    def close(self) -> list[str]:
        """Ends the last file and gives all files their real names.

        Returns:
            Paths of the record files, in the order written.
        """
        import tensorflow as tf

        self._end_file()
        for temporary, final in self._temporary:
            tf.io.gfile.rename(temporary, final, overwrite=True)
        paths = [final for _, final in self._temporary]
        self._temporary = []
        return paths

    def discard(self) -> None:
        """Removes everything that was written and not yet closed."""
        import tensorflow as tf

        self._end_file()
        for temporary, _ in self._temporary:
            tf.io.gfile.remove(temporary)
        self._temporary = []

    def __enter__(self) -> RecordWriter:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes, or discards if the block ended with an exception."""
        if kind is None:
            self.close()
        else:
            self.discard()

    def _temporary_path(self) -> str:
        index = len(self._temporary)
        return os.path.join(
            self._output_dir, f".{self._name}_{index}{self._process}{SUFFIX}.partial"
        )

    def _end_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        final = f"{self._name}_{len(self._temporary)}{self._process}_{self._records_in_file}"
        path = os.path.join(self._output_dir, final + SUFFIX)
        self._temporary.append((self._temporary_path(), path))
        self._records_in_file = 0


def record_files(output_dir: str, name: str) -> list[str]:
    """Lists the record files of one data set, as one job writes them.

    Args:
        output_dir: folder, local or `gs://`; it need not exist.
        name: first part of the file names.

    Returns:
        Paths, in natural order.
    """
    import tensorflow as tf

    # Not a glob: `train_*` would also take the files of a data set named train_2.
    named = re.compile(re.escape(name) + r"_\d+_\d+" + re.escape(SUFFIX))
    if not tf.io.gfile.isdir(output_dir):
        return []
    present = (entry for entry in tf.io.gfile.listdir(output_dir) if named.fullmatch(entry))
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

    The data are jumped over: 100,000 records take about 0.3 s, however long they are.

    Args:
        path: local record file.

    Returns:
        Records in the file.

    Raises:
        ValueError: the file is missing, or its end is not the end of a record.

    Source: the format of TFRecord, tensorflow/core/lib/io/record_writer.h.
    """
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
        ValueError: the file is missing or damaged, or a record has no feature `text`.
    """
    import tensorflow as tf

    for serialized in _batches([path], tf.identity):
        for value in serialized:
            yield _ids_of(tf.train.Example.FromString(value), path)


def _batches(paths: Iterable[str], function: Callable[[Any], Any]) -> Iterator[np.ndarray]:
    """What a function of TensorFlow makes of each batch [records] of records.

    Raises:
        ValueError: a file is missing or damaged.
    """
    import tensorflow as tf

    graph = tf.Graph()  # its own graph and session: works with eager execution on and off
    with graph.as_default():
        file = tf.compat.v1.placeholder(tf.string, [])
        dataset = tf.data.TFRecordDataset(file).batch(_READ_BATCH).map(function)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
    with tf.compat.v1.Session(graph=graph) as session:
        for path in paths:
            try:
                session.run(iterator.initializer, {file: path})
                while True:
                    yield session.run(batch)
            except tf.errors.OutOfRangeError:
                continue
            except tf.errors.OpError as error:
                raise _unreadable(path, reason(error)) from error


def _ids_of(example: Any, path: str) -> np.ndarray:
    if FEATURE not in example.features.feature:
        names = sorted(example.features.feature)
        raise ValueError(
            f"records must have a feature {FEATURE!r}; got {names} in {path}. "
            "Make the records with data/create_tfrecords.py."
        )
    return np.array(example.features.feature[FEATURE].int64_list.value, np.int64)


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
    parts = re.split(r"(\d+)", path)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts], path
