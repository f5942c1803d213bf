"""Damage that shows only while records are read: it stops the run and is named, wherever it is."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from data.record_encoding import encode_records
from data.record_parsing import parse_records, record_names
from data.records import read_lengths
from inputs import open_sources, training_input
from inspection.dataset_check import dataset_report
from tests.input_support import (
    batches_of,
    config_in_mode,
    config_of,
    evaluated,
    numbered,
    sequences,
    write,
)
from utils.errors import reason

COUNT = 10
SPLITS = ("train", "eval")


@pytest.fixture(autouse=True)
def later_files_are_not_looked_at(monkeypatch):
    monkeypatch.setattr("data.sources.RECORDS_COUNTED", 1)
    monkeypatch.setattr("data.sources.DOCUMENTS_MEASURED", 1)


def in_second_file(folder, change):
    """Two files of 10 records for training and evaluation, the second ones of which are changed."""
    for name in SPLITS:
        write(folder / "tiny", name, numbered(2 * COUNT), files_per=COUNT)
        change(folder / "tiny" / f"{name}_1_{COUNT}.tfrecords")


def flip_a_byte(path):
    """In the data of record 6."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-20])


def cut_off_between_records(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // COUNT * 7])


def then_compress(change):
    def changed(path):
        change(path)
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()

    return changed


def compress_then(change):
    def changed(path):
        path = path.rename(f"{path}.gz")
        path.write_bytes(gzip.compress(path.read_bytes()))
        change(path)

    return changed


# (what is done to the file, records that can be read before the damage)
DAMAGES = {
    "a byte": (flip_a_byte, 5),
    "cut off": (cut_off, 9),
    "cut off between records": (cut_off_between_records, 7),
    "a byte, then compressed": (then_compress(flip_a_byte), 5),
    "cut off, then compressed": (then_compress(cut_off), 9),
    "compressed, then a byte": (compress_then(flip_a_byte), None),
    "compressed, then cut off": (compress_then(cut_off), 9),
}


def any_ending(folder, **values):
    config = config_of(folder, **values).to_json_dict()
    [dataset, *rest] = config["datasets"][0]
    dataset |= {key: f"{dataset[key]}*" for key in ("path", "eval_path")}
    return config_of(folder, **(values | {"datasets": [[dataset, *rest]]}))


def refusal(read, *arguments):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        read(*arguments)
    return reason(caught.value)


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_named_while_training(tmp_path, kind):
    change, readable = DAMAGES[kind]
    in_second_file(tmp_path, change)
    message = refusal(sequences, any_ending(tmp_path, train_batch_size=1), 0, 2 * COUNT)
    [file] = (tmp_path / "tiny").glob("train_1_*")
    start = f"record file {file} must be whole and hold 10 records, as its name says; got none that"
    assert message.startswith(f"{start} can be read after record ")
    assert readable is None or f"after record {readable}. Make the records again" in message


@pytest.mark.parametrize("kind", ["a byte", "compressed, then cut off"])
def test_a_damaged_file_is_named_in_evaluation_and_in_the_report(tmp_path, kind):
    in_second_file(tmp_path, DAMAGES[kind][0])
    config = any_ending(tmp_path, n_vocab=50257)
    [file] = (tmp_path / "tiny").glob("eval_1_*")
    assert refusal(evaluated, config).startswith(f"record file {file} must be whole and hold 10")
    report = dataset_report(config).text
    for split in SPLITS:
        [file] = (tmp_path / "tiny").glob(f"{split}_1_*")
        assert f"  ERROR      record file must exist and be whole; got {file} (" in report


def test_damage_before_the_record_at_which_a_run_goes_on_is_named(tmp_path):
    in_second_file(tmp_path, flip_a_byte)
    config = config_of(tmp_path, train_batch_size=1)
    assert "/train_1_10.tfrecords must be whole" in refusal(sequences, config, COUNT + 8, 1)


def test_damage_in_stitched_documents_is_named(tmp_path):
    in_second_file(tmp_path, flip_a_byte)
    config = config_in_mode(tmp_path, "documents_fixed", stitch=2)
    assert "/train_1_10.tfrecords must be whole" in refusal(sequences, config, 0, 3)


def test_a_file_that_has_gone_since_the_start_is_named(tmp_path):
    in_second_file(tmp_path, lambda path: None)
    config = config_of(tmp_path, train_batch_size=1)
    input_fn = training_input(config, open_sources(config, training=True), 0)
    (tmp_path / "tiny" / "train_1_10.tfrecords").unlink()
    with pytest.raises(tf.errors.NotFoundError) as caught:
        batches_of(input_fn, 0, 2 * COUNT)
    assert reason(caught.value).startswith(f"{tmp_path}/tiny/train_1_10.tfrecords; No such file")


def replace_record(content):
    def change(path):
        records = list(tf.compat.v1.io.tf_record_iterator(str(path)))
        records[4] = content
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)

    return change


@pytest.mark.parametrize("mode", ["chunks", "documents_fixed"])
def test_a_later_record_that_is_no_example_is_named(tmp_path, mode):
    in_second_file(tmp_path, replace_record(b"\xff\xfe"))
    config = config_in_mode(tmp_path, mode, train_batch_size=1, n_vocab=50257)
    for split, message in (
        ("train", refusal(sequences, config, 0, 2 * COUNT)),
        ("eval", refusal(evaluated, config)),
    ):
        where = f"in record 5 of {tmp_path}/tiny/{split}_1_10.tfrecords. Make the records with"
        assert message.startswith(f"records must be tf.train.Examples; got something else {where}")
        assert where in dataset_report(config).text


@pytest.fixture(scope="module")
def parse():
    """Parses records in one session."""
    graph = tf.Graph()
    with graph.as_default():
        records = tf.compat.v1.placeholder(tf.string, [None])
        names = record_names(tf.constant("a file"), tf.range(tf.size(records, tf.int64)))
        ids = parse_records(records, names, "tiny", config_of(Path("none")))
        lengths = ids.row_lengths()
    session = tf.compat.v1.Session(graph=graph)
    yield lambda contents: session.run(lengths, {records: contents})
    session.close()


def example_of(ids):
    return encode_records(np.asarray([ids], np.int32))[0]


# Texts, bytes that are no UTF-8, and what begins as a tf.train.Example does.
@pytest.mark.parametrize(
    "content",
    [b"no example", b"\xff\xfe", b"\n", b"\n\x03\xff\xfe\xff", b"\n\x85\x01\n\xff\xfe", b"\n" * 3],
    ids=repr,
)
def test_what_is_no_example_is_refused(tmp_path, parse, content):
    message = refusal(parse, [example_of([1, 2]), example_of([]), content, content])
    assert message.startswith("records must be tf.train.Examples; got something else in record 3 ")
    write(tmp_path, "train", numbered(COUNT))
    file = tmp_path / "train_0_10.tfrecords"
    replace_record(content)(file)
    with pytest.raises(ValueError, match=rf"^records must be tf\.train\.Examples; .* 5 of {file}"):
        list(read_lengths([str(file)]))


def test_examples_of_every_length_are_read(parse):
    """Lengths of their parts take one byte or more; without features there is no id."""
    lengths = [0, 1, 2, 30, 100, 120, 130, 5000, 9000]
    contents = [example_of([7] * length) for length in lengths]
    assert parse([b"", b"\n\x00", *contents]).tolist() == [0, 0, *lengths]
