"""Record files that are missing, not what their names say, or do not fit the config."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from configs.load import parse_config
from data.dataset_config import dataset_config
from data.tokenizers import load_tokenizer
from inputs import open_sources
from inspection.dataset_check import check_datasets
from tests.data.test_labelled_records import write_examples
from tests.input_support import (
    EOS,
    N_VOCAB,
    config_in_mode,
    config_of,
    evaluated,
    numbered,
    sequences,
    write,
)
from utils.errors import reason


def config_for(pattern):
    """The smallest config whose training data is ``pattern``."""
    return parse_config(
        {
            "n_layer": 1,
            "n_embd": 6,
            "n_head": 2,
            "n_ctx": 5,
            "n_vocab": 13,
            "eos_id": 0,
            "padding_id": 0,
            "train_batch_size": 1,
            "train_steps": 1,
            "model_path": "runs/none",
            "datasets": [[str(pattern), "", 1, None, 1.0]],
        }
    )


def write_ids(folder, name, records):
    """Writes what the project's own writer would not."""
    folder.mkdir(exist_ok=True)
    write_examples(folder / name, *((record, None) for record in records))


def test_no_file(tmp_path):
    pattern = tmp_path / "tiny" / "train_*.tfrecords"
    message = f"dataset tiny must match at least one record file; got none for {pattern}. "
    with pytest.raises(ValueError, match=re.escape(message)):
        open_sources(config_of(tmp_path), training=True)


def test_no_evaluation_data(tmp_path):
    entry = [str(tmp_path / "train_*"), "", 1, "documents_random", 1.0]
    config = config_of(tmp_path, datasets=[entry], eos_id=0, padding_id=0)
    with pytest.raises(ValueError, match="must name at least one dataset with an eval_path"):
        open_sources(config, training=False)


def test_wrong_length_names_the_length_and_the_file(tmp_path):
    write(tmp_path / "tiny", "train", numbered(4)[:, :9])
    file = tmp_path / "tiny" / "train_0_4.tfrecords"
    message = f"records of tiny must hold n_ctx + 1 = 12 ids; got 9 in record 1 of {file}. Set n_c"
    with pytest.raises(ValueError, match=re.escape(message)):
        open_sources(config_of(tmp_path), training=True)


@pytest.mark.parametrize("wrong", [N_VOCAB, -1])
def test_ids_out_of_range_are_named(tmp_path, wrong):
    records = numbered(4)
    records[0, 5] = wrong
    write_ids(tmp_path / "tiny", "train_0_4.tfrecords", records)
    message = (
        rf"ids of tiny must lie in \[0, n_vocab = {N_VOCAB}\); got .*{wrong}.* in record 1 of "
        r".*/train_0_4\.tfrecords\. Set"
    )
    with pytest.raises(ValueError, match=message):
        open_sources(config_of(tmp_path), training=True)


def test_fewer_sequences_than_a_batch(tmp_path):
    write(tmp_path / "tiny", "train", numbered(2))
    message = "train_batch_size must not exceed the sequences of the data; got 3 with 2 sequence(s)"
    with pytest.raises(ValueError, match=re.escape(message)):
        open_sources(config_of(tmp_path), training=True)


def test_a_data_set_without_records(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "train_0_0.tfrecords").write_bytes(b"")
    with pytest.raises(ValueError, match="dataset tiny must hold records; got 0"):
        open_sources(config_of(tmp_path), training=True)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "tiny").mkdir()
    file = tmp_path / "tiny" / "train_0_5.tfrecords"
    file.write_bytes(json.dumps({"text": "no record file"}).encode() * 9)
    with pytest.raises(ValueError, match=f"must exist and be whole; got {re.escape(str(file))}"):
        open_sources(config_of(tmp_path), training=True)


@pytest.mark.parametrize("training", [True, False])
def test_a_later_record_of_wrong_length_is_named_while_reading(tmp_path, training):
    records = [*numbered(4), numbered(1)[0, :9], *numbered(4)]
    for name in ("train", "eval"):
        write(tmp_path / "tiny", name, records, files_per=3)
    config = config_of(tmp_path)
    read = sequences if training else lambda config, *unused: evaluated(config)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        read(config, 0, 2)
    file = tmp_path / "tiny" / f"{'train' if training else 'eval'}_1_3.tfrecords"
    assert reason(caught.value) == (
        f"records of tiny must hold n_ctx + 1 = 12 ids; got 9 in record 2 of {file}. Make the "
        "records again with --chunk_size 11."
    )


# The last one would be in range as an int32.
@pytest.mark.parametrize("wrong", [N_VOCAB, -1, 2**32 + 5])
@pytest.mark.parametrize("mode", ["chunks", "documents_fixed"])
@pytest.mark.parametrize("first", [0, 4])
def test_a_later_id_out_of_range_is_named_while_reading(tmp_path, wrong, mode, first):
    records = numbered(6)
    records[5, 2] = wrong
    write_ids(tmp_path / "tiny", "train_0_2.tfrecords", records[:2])
    write_ids(tmp_path / "tiny", "train_1_4.tfrecords", records[2:])
    config = config_in_mode(tmp_path, mode, train_batch_size=1)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        sequences(config, first, 6)
    assert reason(caught.value) == (
        f"ids of tiny must lie in [0, n_vocab = 997); got {wrong} in record 4 of "
        f"{tmp_path}/tiny/train_1_4.tfrecords. Set n_vocab to the size of the tokenizer."
    )


def test_a_later_record_of_another_type_is_named_while_reading(tmp_path):
    write_ids(tmp_path / "tiny", "train_0_3.tfrecords", numbered(3))
    text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"words"]))
    example = tf.train.Example(features=tf.train.Features(feature={"text": text}))
    with tf.io.TFRecordWriter(str(tmp_path / "tiny" / "train_1_1.tfrecords")) as writer:
        writer.write(example.SerializeToString())
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        sequences(config_of(tmp_path), 0, 2)
    assert re.match(r"Name: record 1 of .*/train_1_1\.tfrecords, Key: text,", reason(caught.value))


@pytest.mark.parametrize("content", [b"no example", b"\xff\xfe"])
def test_a_record_that_is_no_example_is_named_at_the_start(tmp_path, content):
    (tmp_path / "tiny").mkdir()
    with tf.io.TFRecordWriter(str(tmp_path / "tiny" / "train_0_3.tfrecords")) as writer:
        for _ in range(3):
            writer.write(content)
    with pytest.raises(
        ValueError, match=r"^records must be tf\.train\.Examples; .* in record 1 of"
    ):
        open_sources(config_of(tmp_path), training=True)


def test_an_empty_file_that_claims_records_is_refused(tmp_path):
    (tmp_path / "lie_0_20.tfrecords").write_bytes(b"")
    with pytest.raises(ValueError, match=r"must hold as many records as its name says; got 0 inst"):
        open_sources(config_for(tmp_path / "*.tfrecords"), training=True)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "dir_0_20.tfrecords").mkdir()
    with pytest.raises(ValueError, match=r"record file must exist and be whole; got .*dir_0_20"):
        open_sources(config_for(tmp_path / "*.tfrecords"), training=True)


def test_a_file_without_a_number_in_its_name_is_refused(tmp_path):
    write(tmp_path / "tiny", "train", numbered(5))
    (tmp_path / "tiny" / "train_0_5.tfrecords").rename(tmp_path / "tiny" / "train_a.tfrecords")
    with pytest.raises(ValueError, match=r"must end with _<number of records>.*got .*train_a"):
        open_sources(config_of(tmp_path), training=True)


def renamed(folder, name, count):
    """Makes the second of three files of 4 records claim another number."""
    write(folder / "tiny", name, numbered(12), files_per=4)
    claimed = folder / "tiny" / f"{name}_1_{count}.tfrecords"
    (folder / "tiny" / f"{name}_1_4.tfrecords").rename(claimed)
    return claimed


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("training", [True, False])
def test_a_false_number_in_a_file_name_is_refused_at_the_start(tmp_path, count, training):
    claimed = renamed(tmp_path, "train" if training else "eval", count)
    message = (
        f"record file {claimed} must hold as many records as its name says; got 4 instead of "
        f"{count}. Make the records again, or correct the number if the file is whole."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        open_sources(config_of(tmp_path), training)


@pytest.mark.parametrize("count", [3, 5])
def test_a_false_number_that_was_not_counted_stops_the_run_at_that_file(
    tmp_path, monkeypatch, count
):
    monkeypatch.setattr("data.sources.RECORDS_COUNTED", 1)
    claimed = renamed(tmp_path, "train", count)
    config = config_of(tmp_path, train_batch_size=1)
    np.testing.assert_array_equal(sequences(config, 0, 4), numbered(4))  # the file before it
    got = "more" if count == 3 else "none that can be read after record 4"
    message = f"record file {claimed} must be whole and hold {count} records, as its name says; got"
    for start in (0, 5):  # entered at its beginning and in its middle
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            sequences(config, start, 9 - start)
        assert reason(caught.value).startswith(f"{message} {got}. Make the records again, or")


def test_a_false_number_stops_stitched_documents_too(tmp_path, monkeypatch):
    monkeypatch.setattr("data.sources.RECORDS_COUNTED", 1)
    claimed = renamed(tmp_path, "train", 3)
    config = config_of(tmp_path, [["tiny", 1, "documents_fixed", 1.0]], input_fn="generic_text")
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"record file {claimed} must be"):
        sequences(config, 0, 4)


def test_files_far_away_are_counted_while_they_are_read(tmp_path):
    claimed = renamed(tmp_path, "train", 3)
    dataset = ["file://" + str(tmp_path / "tiny" / "train_*.tfrecords"), "", 1, None, 1.0]
    config = config_of(tmp_path, datasets=[dataset], eos_id=EOS, train_batch_size=1)
    np.testing.assert_array_equal(sequences(config, 0, 4), numbered(4))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"record file file://{claimed} must"):
        sequences(config, 0, 8)


@pytest.mark.parametrize("length", [0, 1])
def test_records_too_short_for_any_window_give_no_such_advice(tmp_path, length):
    write(tmp_path / "tiny", "train", numbered(4)[:, :length])
    with pytest.raises(ValueError) as caught:
        open_sources(config_of(tmp_path), training=True)
    assert str(caught.value) == (
        f"records of tiny must hold n_ctx + 1 = 12 ids; got {length} in record 1 of "
        f"{tmp_path}/tiny/train_0_4.tfrecords. Make the records again with --chunk_size 11."
    )


@pytest.mark.parametrize("folder", ["d[1]", "a*b", "q?", "back\\slash", "plain"])
def test_the_glob_of_a_dataset_config_finds_its_folder_alone(tmp_path, folder):
    output = tmp_path / folder
    write(output, "n[x]", numbered(4))
    write(tmp_path / "aab", "n[x]", numbered(4))  # what the unescaped globs match
    write(tmp_path / "d1", "nx", numbered(4))
    written = dataset_config(load_tokenizer(), True, EOS, str(output), "n[x]")
    config = config_of(tmp_path, datasets=[[written["path"], "", 1, None, 1.0]], n_vocab=50257)
    [source] = open_sources(config, training=True)
    assert source.files == (f"{output}/n[x]_0_4.tfrecords",)
    np.testing.assert_array_equal(np.sort(sequences(config, 0, 4), 0)[::3], numbered(4))
    assert not [line for check in check_datasets(config, True) for line in check.problems]
