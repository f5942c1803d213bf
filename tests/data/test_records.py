"""Record files: true names, all or nothing, the content that was written."""

import os
import re

import numpy as np
import pytest

from data.record_writer import RecordWriter
from data.records import (
    count_records,
    escape_glob,
    natural_sorted,
    read_lengths,
    read_records,
    record_count,
    record_files,
)


def test_files_have_true_names_and_the_content_written(tmp_path):
    records = [np.arange(n, n + 5) for n in range(7)]
    writer = RecordWriter(str(tmp_path / "out"), "pile", files_per=3)
    for record in records:
        writer.write(record)
    assert record_files(str(tmp_path / "out"), "pile") == []  # nothing shows before the end
    paths = writer.close()
    names = [os.path.basename(path) for path in paths]
    assert names == ["pile_0_3.tfrecords", "pile_1_3.tfrecords", "pile_2_1.tfrecords"]
    assert sorted(os.listdir(tmp_path / "out")) == names
    read = [list(read_records(path)) for path in paths]
    assert [len(content) for content in read] == [record_count(path) for path in paths]
    np.testing.assert_array_equal(np.concatenate(read), records)
    assert read[0][0].dtype == np.int64


def test_process_is_in_the_name(tmp_path):
    writer = RecordWriter(str(tmp_path), "pile", process=4)
    writer.write([1])
    assert writer.close() == [str(tmp_path / "pile_0_4_1.tfrecords")]


def test_an_exception_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), RecordWriter(str(tmp_path), "x", files_per=1) as writer:
        writer.write([1])
        writer.write([2])
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_writer_without_records_makes_no_file(tmp_path):
    with RecordWriter(str(tmp_path / "out"), "x"):
        pass
    assert not (tmp_path / "out").exists()


def test_writer_refuses(tmp_path):
    with pytest.raises(ValueError, match="files_per must be at least 1; got 0"):
        RecordWriter(str(tmp_path), "x", files_per=0)
    with pytest.raises(ValueError, match="name must be a file name without folders; got 'a/b'"):
        RecordWriter(str(tmp_path), "a/b")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="output_dir must be a folder that can be written to"):
        RecordWriter(str(tmp_path / "file"), "x").write([1])


@pytest.mark.parametrize(
    ("name", "count"),
    [("pile_0_12.tfrecords", 12), ("gs://b/d/a_3_7_100000.tfrecords", 100000)],
)
def test_record_count(name, count):
    assert record_count(name) == count


@pytest.mark.parametrize("name", ["pile.tfrecords", "pile_0_x.tfrecords", "pile_0_3.txt"])
def test_record_count_refuses_a_name_without_a_number(name):
    with pytest.raises(ValueError, match=r"must end with _<number of records>\.tfrecords; got"):
        record_count(name)


def test_record_files_are_of_one_data_set(tmp_path):
    for name in ("train_0_5", "train_10_5", "train_2_5", "train_2_0_5", "trainer_0_5", "eval_0_5"):
        (tmp_path / f"{name}.tfrecords").write_text("")
    names = [os.path.basename(path) for path in record_files(str(tmp_path), "train")]
    assert names == [f"train_{i}_5.tfrecords" for i in (0, 2, 10)]
    assert record_files(str(tmp_path / "none"), "train") == []


def test_reading_a_damaged_file_names_it(tmp_path):
    writer = RecordWriter(str(tmp_path), "x")
    writer.write(range(50))
    (path,) = writer.close()
    content = bytearray((tmp_path / "x_0_1.tfrecords").read_bytes())
    content[40] ^= 255
    (tmp_path / "x_0_1.tfrecords").write_bytes(content)
    with pytest.raises(ValueError, match=r"must exist and be whole; got .*x_0_1\.tfrecords"):
        list(read_records(path))
    with pytest.raises(ValueError, match=r"must exist and be whole; got .*none"):
        list(read_records(str(tmp_path / "none_0_1.tfrecords")))


def test_record_without_the_feature_is_refused(tmp_path):
    import tensorflow as tf

    path = str(tmp_path / "x_0_1.tfrecords")
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
    example = tf.train.Example(features=tf.train.Features(feature={"hash": feature}))
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(example.SerializeToString())
    with pytest.raises(ValueError, match=r"must have a feature 'text'; got \['hash'\]"):
        list(read_records(path))


def test_natural_order():
    assert natural_sorted(["b_10", "b_9", "a", "b_09", "B_1"]) == [
        "B_1",
        "a",
        "b_09",
        "b_9",
        "b_10",
    ]


def test_records_are_counted_without_reading_them(tmp_path):
    records = [range(length) for length in (0, 1, 200, 3)]
    with RecordWriter(str(tmp_path), "x") as writer:
        for ids in records:
            writer.write(ids)
    path = tmp_path / "x_0_4.tfrecords"
    assert count_records(str(path)) == 4
    assert [list(lengths) for lengths in read_lengths([str(path)])] == [[0, 1, 200, 3]]
    whole = path.read_bytes()
    (tmp_path / "empty").write_bytes(b"")
    assert count_records(str(tmp_path / "empty")) == 0
    for cut, record in ((1, 4), (len(whole) - 5, 1)):  # within the last data, the first header
        path.write_bytes(whole[:-cut])
        message = f"must exist and be whole; got {path} (record {record} ends behind the end of"
        with pytest.raises(ValueError, match=re.escape(message)):
            count_records(str(path))
    with pytest.raises(ValueError, match=r"must exist and be whole; got .*none.* \(No such file"):
        count_records(str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["d[1]", "a*", "q?", "back\\slash", "p[!x]"])
def test_an_escaped_glob_matches_one_path(tmp_path, name):
    import tensorflow as tf

    for folder in (name, "d1", "ab", "qq", "backslash", "py"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "f_1").write_text("")
    pattern = escape_glob(str(tmp_path / name)) + "/f_*"
    assert tf.io.gfile.glob(pattern) == [str(tmp_path / name / "f_1")]
