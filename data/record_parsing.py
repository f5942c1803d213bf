"""Records to token ids in the graph, many at a time, each refused by its file and number.

A **masked** id, one that is read but is no label, is held as its complement ``~id``, as in
data/record_encoding.py: ids and mask go through stitching, shuffling and mixing as one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Union

import tensorflow as tf

from configs.schema import Config
from data.masking import NOT_PREDICTED
from data.records import FEATURE, MASK_FEATURE

Part = Union[str, tf.Tensor]

_FEATURES = {name: tf.io.RaggedFeature(tf.int64) for name in (FEATURE, MASK_FEATURE)}
_START_BYTES = 16  # enough for three tags and two lengths
_FIRST_FIELD = 0x0A  # tag of field 1, length-delimited


def record_names(paths: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """How records are called in errors.

    Args:
        paths: of the record files, [records] or one for all, string.
        numbers: of the records in their files, from 0, [records] int64.

    Returns:
        [records] string; people count from 1.
    """
    return tf.strings.join(["record ", tf.strings.as_string(numbers + 1), " of ", paths])


def refuse_unless(holds: tf.Tensor, *message: Part) -> tf.Operation:
    """Stops the run with a message, the parts of which may be known only while reading."""
    return tf.debugging.Assert(holds, [tf.strings.join(message)])


def _refuse_where(
    wrong: tf.Tensor, message_of: Callable[[tf.Tensor], Sequence[Part]]
) -> tf.Operation:
    """Stops the run at the first place [places] that is wrong.

    The parts of the message are made of that place, [1], or of none, [0].
    """
    first = tf.where(wrong)[:1, 0]
    # No tf.cond: what is in a branch may be run on either way.
    message = tf.strings.reduce_join(tf.strings.join(message_of(first)))
    return tf.debugging.Assert(tf.equal(tf.size(first), 0), [message])


def _check_ids(
    ids: tf.RaggedTensor, names: tf.Tensor, dataset: str, config: Config
) -> tf.Operation:
    values = ids.flat_values

    def message(place: tf.Tensor) -> Sequence[Part]:
        return (
            f"ids of {dataset} must lie in [0, n_vocab = {config.n_vocab}); got ",
            tf.strings.as_string(tf.gather(values, place)),
            " in ",
            tf.gather(names, tf.gather(ids.value_rowids(), place)),
            ". Set n_vocab to the size of the tokenizer.",
        )

    return _refuse_where((values < 0) | (values >= config.n_vocab), message)


def _check_masks(
    masks: tf.RaggedTensor, ids: tf.RaggedTensor, names: tf.Tensor, config: Config
) -> list[tf.Operation]:
    lengths, needed, values = masks.row_lengths(), ids.row_lengths(), masks.flat_values
    checks = []
    if not config.causal:  # every id is seen, and which ones are labels is drawn

        def not_masked(row: tf.Tensor) -> Sequence[Part]:
            return (
                f"records must have no {MASK_FEATURE} with mlm_training; got one in ",
                tf.gather(names, row),
                ". Set mlm_training to false, or use other records.",
            )

        checks.append(_refuse_where(lengths > 0, not_masked))

    def wrong_length(row: tf.Tensor) -> Sequence[Part]:
        return (
            f"{MASK_FEATURE} of a record must hold 0 or 1 for each of its ",
            tf.strings.as_string(tf.gather(needed, row)),
            " ids; got ",
            tf.strings.as_string(tf.gather(lengths, row)),
            " numbers in ",
            tf.gather(names, row),
            ". Make the records again.",
        )

    def wrong_value(place: tf.Tensor) -> Sequence[Part]:
        return (
            f"{MASK_FEATURE} of a record must hold 0 or 1 for each of its ids; got ",
            tf.strings.as_string(tf.gather(values, place)),
            " in ",
            tf.gather(names, tf.gather(masks.value_rowids(), place)),
            ". Make the records again.",
        )

    checks.append(_refuse_where((lengths > 0) & tf.not_equal(lengths, needed), wrong_length))
    checks.append(_refuse_where((values < 0) | (values > 1), wrong_value))
    return checks


def _are_examples(serialized: tf.Tensor) -> tf.Tensor:
    """Whether records [records] begin as a tf.train.Example does, [records] bool.

    That is with Example.features, Features.feature and the key of the first of these, each but the
    last followed by its length, a varint. TensorFlow's parser asks for the same order.
    """
    start = tf.io.decode_raw(serialized, tf.uint8, fixed_length=_START_BYTES)
    in_varint = tf.range(_START_BYTES) > 0
    tagged = tf.equal(start[:, 0], _FIRST_FIELD)
    ended = tf.equal(tf.strings.length(serialized), 0)
    for _ in range(2):
        after = tf.argmax(in_varint & (start < 128), 1, tf.int32) + 1
        ended |= tagged & tf.equal(tf.strings.length(serialized), after)
        tagged &= tf.equal(tf.gather(start, after, axis=1, batch_dims=1), _FIRST_FIELD)
        in_varint = tf.range(_START_BYTES) > after[:, tf.newaxis]
    return ended | tagged


def _check_examples(serialized: tf.Tensor, names: tf.Tensor) -> tf.Operation:
    """Refuses other records, since the error of the parser holds their bytes and not their name."""

    def message(row: tf.Tensor) -> Sequence[Part]:
        return (
            "records must be tf.train.Examples; got something else in ",
            tf.gather(names, row),
            ". Make the records with data/create_tfrecords.py.",
        )

    return _refuse_where(~_are_examples(serialized), message)


def parse_records(
    serialized: tf.Tensor, names: tf.Tensor, dataset: str, config: Config
) -> tf.RaggedTensor:
    """Token ids of records, checked but for their lengths.

    Args:
        serialized: a tf.train.Example each, [records] string.
        names: of ``record_names``, for errors.
        dataset: its name, for errors.
        config: n_vocab; masks are refused with ``mlm_training``.

    Returns:
        Token ids, masked ones as their complement, [records, (length)] int32.
    """
    with tf.control_dependencies([_check_examples(serialized, names)]):
        parsed = tf.io.parse_example(tf.identity(serialized), _FEATURES, names)
    ids, masks = parsed[FEATURE], parsed[MASK_FEATURE]
    checks = [_check_ids(ids, names, dataset, config), *_check_masks(masks, ids, names, config)]
    with tf.control_dependencies(checks):
        values = tf.cast(ids.flat_values, tf.int32)
        mask_values = tf.identity(masks.flat_values)

    def masked() -> tf.Tensor:
        has_mask = tf.gather(masks.row_lengths() > 0, ids.value_rowids())
        places = tf.gather(tf.where(has_mask), tf.where(mask_values < 1)[:, 0])
        hidden = tf.bitwise.invert(tf.gather_nd(values, places))
        return tf.tensor_scatter_nd_update(values, places, hidden)

    any_mask = tf.size(mask_values) > 0
    return ids.with_flat_values(tf.cond(any_mask, masked, lambda: tf.identity(values)))


def check_lengths(
    ids: tf.RaggedTensor, names: tf.Tensor, dataset: str, config: Config
) -> tf.Tensor:
    """Records of one window each.

    Args:
        ids: [records, (length)] int32.
        names: of ``record_names``, for errors.
        dataset: its name, for errors.
        config: n_ctx.

    Returns:
        [records, n_ctx + 1] int32; a record of another length stops the run.
    """
    needed = config.n_ctx + 1
    lengths = ids.row_lengths()

    def message(row: tf.Tensor) -> Sequence[Part]:
        return (
            f"records of {dataset} must hold n_ctx + 1 = {needed} ids; got ",
            tf.strings.as_string(tf.gather(lengths, row)),
            " in ",
            tf.gather(names, row),
            f". Make the records again with --chunk_size {config.n_ctx}.",
        )

    with tf.control_dependencies([_refuse_where(tf.not_equal(lengths, needed), message)]):
        return tf.reshape(ids.flat_values, [-1, needed])


def inputs_and_labels(windows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """What a causal model reads and what it is to predict.

    Args:
        windows: token ids, masked ones as their complement, [batch, n_ctx + 1] int32.

    Returns:
        (inputs, labels), each [batch, n_ctx] int32; labels are the ids that follow the inputs,
        NOT_PREDICTED for masked ones.
    """
    inputs, labels = windows[:, :-1], windows[:, 1:]
    # A complement is -1 or less, and NOT_PREDICTED is -1.
    return (
        tf.where(inputs < 0, tf.bitwise.invert(inputs), inputs),
        tf.maximum(labels, NOT_PREDICTED),
    )
