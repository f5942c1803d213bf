"""The bytes of records are those that TensorFlow would write."""

import numpy as np
import pytest

from data.record_encoding import encode_records, plain_ids

EDGES = [0, 1, 127, 128, 129, 16383, 16384, 50256, 2**21 - 1, 2**21, 2**28 - 1, 2**28, 2**31 - 1]


def lists_of(serialized):
    import tensorflow as tf

    features = tf.train.Example.FromString(serialized).features.feature
    return {name: list(feature.int64_list.value) for name, feature in features.items()}


@pytest.mark.parametrize("records", [[EDGES], [[], [5], EDGES[:3], [], EDGES], [list(range(999))]])
def test_bytes_are_those_of_tensorflow(records):
    import tensorflow as tf

    def message(ids):
        feature = tf.train.Feature(int64_list=tf.train.Int64List(value=ids))
        return tf.train.Example(features=tf.train.Features(feature={"text": feature}))

    expected = [message(ids).SerializeToString() for ids in records]
    assert encode_records([np.array(ids, np.int32) for ids in records]) == expected


def test_an_array_is_as_many_records_as_rows():
    array = np.arange(60, dtype=np.int32).reshape(5, 12) * 37
    assert encode_records(array) == encode_records(list(array))
    assert encode_records(array[:0]) == []


def test_masked_ids_are_no_labels():
    records = [np.array(ids, np.int32) for ids in ([~7, ~70000, 3, ~0], [1, 2], [~5])]
    first, second, third = (lists_of(content) for content in encode_records(records))
    assert first == {"text": [7, 70000, 3, 0], "loss_mask": [0, 0, 1, 0]}
    assert second == {"text": [1, 2]}
    assert third == {"text": [5], "loss_mask": [0]}
    assert plain_ids(records[0]).tolist() == [7, 70000, 3, 0]
