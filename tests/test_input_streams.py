"""The exact stream of training sequences, wherever it is entered, and evaluation."""

import shutil

import numpy as np
import pytest

from inputs import epoch_of_step, open_sources
from tests.input_support import BATCH, N_VOCAB, config_of, evaluated, numbered, sequences, write


@pytest.fixture(scope="module")
def chunks(tmp_path_factory):
    """17 numbered records in files of 1, 7, 0, 5 and 4, whose names sort wrongly as text."""
    folder = tmp_path_factory.mktemp("chunks")
    records, first = numbered(17), 0
    for index, count in ((1, 1), (2, 7), (9, 0), (10, 5), (100, 4)):
        path = folder / "tiny" / f"train_{index}_{count}.tfrecords"
        if count:
            write(folder / "parts", f"part{index}", records[first : first + count])
            (folder / "tiny").mkdir(exist_ok=True)
            shutil.move(folder / "parts" / f"part{index}_0_{count}.tfrecords", path)
        else:
            path.write_bytes(b"")
        first += count
    return folder


def test_chunks_are_read_in_natural_order_over_every_border(chunks):
    config = config_of(chunks)
    [source] = open_sources(config, training=True)
    assert [path.rsplit("/", 1)[1] for path in source.files] == [
        "train_1_1.tfrecords",
        "train_2_7.tfrecords",
        "train_9_0.tfrecords",
        "train_10_5.tfrecords",
        "train_100_4.tfrecords",
    ]
    assert source.records == source.sequences == 17
    read = sequences(config, 0, 20)  # 60 sequences: into epoch 3
    np.testing.assert_array_equal(read[0], numbered(1)[0])  # record 0 is used
    np.testing.assert_array_equal(read, np.tile(numbered(17), (4, 1))[:60])


def test_chunks_resume_at_any_step_with_exactly_the_rest(chunks):
    config = config_of(chunks)
    whole = np.tile(numbered(17), (5, 1))
    # Records 3, 9, 15 of epoch 0, 16 of epoch 1, 0 and 6 of epoch 3: all files, first and last.
    for start in (1, 3, 5, 11, 17, 19):
        read = sequences(config, start, 6)
        np.testing.assert_array_equal(read, whole[start * BATCH : (start + 6) * BATCH])


def test_file_order_is_shuffled_by_the_seed(chunks):
    def order(seed):
        config = config_of(chunks, shuffle_input_filenames=True, seed=seed)
        return open_sources(config, training=True)[0].files

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(6)}) > 1
    assert sorted(order(1)) == sorted(order(2))
    config = config_of(chunks, shuffle_input_filenames=True, seed=1)
    read = sequences(config, 0, 17)
    assert not np.array_equal(read[:17], numbered(17))
    np.testing.assert_array_equal(np.sort(read[:17], 0), numbered(17))  # each once per epoch
    np.testing.assert_array_equal(read[17:34], read[:17])
    np.testing.assert_array_equal(sequences(config, 7, 10), read[21:])


def test_exactly_one_batch_lasts_for_thousands_of_steps(tmp_path):
    write(tmp_path / "tiny", "train", numbered(BATCH))
    read = sequences(config_of(tmp_path), 0, 2000)
    np.testing.assert_array_equal(read, np.tile(numbered(BATCH), (2000, 1)))


def test_another_batch_size_goes_on_with_the_batches_of_that_size(chunks):
    config = config_of(chunks, train_batch_size=5)
    np.testing.assert_array_equal(sequences(config, 4, 2), np.tile(numbered(17), (2, 1))[20:30])


def test_epochs_are_counted_over_all_sources(chunks):
    sources = open_sources(config_of(chunks), training=True)
    assert epoch_of_step(sources, lambda step: step * BATCH)(17) == 3.0
    assert epoch_of_step(sources * 2, lambda step: step * BATCH)(17) == 1.5


# ---- evaluation --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held_out")
    write(folder / "one", "eval", numbered(7), files_per=3)
    write(folder / "two", "eval", numbered(4, first=20))
    for name in ("one", "two"):
        write(folder / name, "train", numbered(3))
    return folder


def test_evaluation_covers_each_record_once_and_fills_the_last_batch(held_out):
    config = config_of(held_out, ["one", "two"], eval_batch_size=4, shuffle_input_filenames=True)
    rows, weights = evaluated(config)
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]])
    expected = np.concatenate([numbered(7), numbered(4, first=20)])
    np.testing.assert_array_equal(rows[weights > 0], expected)
    assert rows[weights == 0].max() < N_VOCAB


def test_evaluation_without_a_rest_has_no_empty_batch(held_out):
    config = config_of(held_out, ["two"], eval_batch_size=2)
    _, weights = evaluated(config)
    np.testing.assert_array_equal(weights, np.ones([2, 2]))


def test_evaluation_stops_after_max_batches(held_out):
    config = config_of(held_out, ["one"], eval_batch_size=2)
    rows, weights = evaluated(config, max_batches=3)
    np.testing.assert_array_equal(rows[weights > 0], numbered(6))


def test_evaluation_of_fewer_records_than_a_batch(held_out):
    config = config_of(held_out, ["two"], eval_batch_size=9)
    rows, weights = evaluated(config)
    np.testing.assert_array_equal(weights, [[1] * 4 + [0] * 5])
    np.testing.assert_array_equal(rows[0, :4], numbered(4, first=20))
