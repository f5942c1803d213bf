"""Record files as streams that may be entered at any record; what is behind it is not parsed."""

from __future__ import annotations

import tensorflow as tf

from data.record_parsing import refuse_unless
from data.records import compression_of
from data.sources import Source

_READ_TOGETHER = 64  # records


def _readable_records(path: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
    """The records of a file as far as they can be read; that it cannot be opened is an error.

    TensorFlow's error for damage does not say in which file it is, so damage is taken for the end,
    which comes too early then. A file that cannot be opened would be tried again without end.
    """
    opened = tf.data.FixedLengthRecordDataset(path, 1).take(1).filter(lambda _: False)
    records = tf.data.TFRecordDataset(path, compression)
    return opened.concatenate(records.ignore_errors(log_warning=True))


def _records_of(
    path: tf.Tensor, compression: tf.Tensor, count: tf.Tensor, skipped: tf.Tensor
) -> tf.data.Dataset:
    """Batches of one file's records, behind the first ``skipped``; refuses a false ``count``.

    Where a run resumes follows from the numbers in the file names, so a false one would go on
    with other data than a run without a break. Counting on the way costs nothing to speak of and
    covers files of any size and place; those looked at before the run are only the first.
    """
    # An empty batch marks the end.
    end = tf.data.Dataset.from_tensors(tf.constant([], tf.string))
    records = _readable_records(path, compression).skip(skipped)
    ended = records.batch(_READ_TOGETHER).concatenate(end)

    def step(number: tf.Tensor, batch: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
        following = number + tf.size(batch, tf.int64)
        named = ("record file ", path, " must be whole and hold ", tf.strings.as_string(count))
        rule = (*named, " records, as its name says; got ")
        remedy = ". Make the records again, or correct the number if the file is whole."
        last = ("none that can be read after record ", tf.strings.as_string(number))
        is_whole = (tf.size(batch) > 0) | tf.equal(number, count)
        checks = [
            refuse_unless(following <= count, *rule, "more", remedy),
            refuse_unless(is_whole, *rule, *last, remedy),
        ]
        with tf.control_dependencies(checks):
            return following, (tf.identity(batch), tf.range(number, following))

    return ended.scan(skipped, step)


def _files_from(source: Source, number: int, skipped: int) -> tf.data.Dataset:
    """Batches of the files from ``number`` on, behind ``skipped`` records of the first one."""
    files, counts = source.files[number:], source.counts[number:]
    skips = [skipped] + [0] * (len(files) - 1)
    columns = (
        list(files),
        [compression_of(path) for path in files],
        tf.constant(counts, tf.int64),
        tf.constant(skips, tf.int64),
    )
    indices = tf.range(number, len(source.files), dtype=tf.int64)

    def file(index: tf.Tensor, *columns: tf.Tensor) -> tf.data.Dataset:
        batches = _records_of(*columns)
        return batches.map(
            lambda serialized, numbers: (serialized, tf.fill(tf.shape(numbers), index), numbers)
        )

    return tf.data.Dataset.from_tensor_slices((indices, *columns)).flat_map(file)


def epoch_of_records(source: Source) -> tf.data.Dataset:
    """All records of a source, once, in the order of its files.

    Returns:
        Batches of (serialized [records] string, index of the file in ``source.files`` [records]
        int64, number of the record in its file from 0 [records] int64). A batch may be empty.
    """
    return _files_from(source, 0, 0)


def records_from(source: Source, start: int) -> tf.data.Dataset:
    """As ``epoch_of_records``, without end and from record ``start`` of the repetition on."""
    position = start % source.records
    number = 0
    while position >= source.counts[number]:
        position -= source.counts[number]
        number += 1
    return _files_from(source, number, position).concatenate(epoch_of_records(source).repeat())
