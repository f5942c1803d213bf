"""Records that say which of their ids count as labels."""

import pytest
import tensorflow as tf

from data.records import read_labelled_records, read_records


def write_examples(path, *records):
    """Writes (ids, mask or None) as another program would."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for ids, mask in records:
            lists = {"text": ids} if mask is None else {"text": ids, "loss_mask": mask}
            feature = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                for name, values in lists.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    return str(path)


def test_masks_are_read(tmp_path):
    path = write_examples(tmp_path / "x_0_2.tfrecords", ([5, 6, 7], [0, 1, 1]), ([8], None))
    first, second = read_labelled_records(path)
    assert [part.tolist() for part in first] == [[5, 6, 7], [0, 1, 1]]
    assert second[0].tolist() == [8] and second[1] is None
    assert [ids.tolist() for ids in read_records(path)] == [[5, 6, 7], [8]]


@pytest.mark.parametrize("mask", [[0, 1], [0, 1, 2], [0, 1, 1, 1]])
def test_a_mask_that_does_not_fit_is_refused(tmp_path, mask):
    path = write_examples(tmp_path / "x_0_1.tfrecords", ([5, 6, 7], mask))
    with pytest.raises(ValueError, match=rf"0 or 1 for each of its 3 ids; got {len(mask)} numbe"):
        list(read_labelled_records(path))
