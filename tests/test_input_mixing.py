"""Several datasets in one stream: shares, order within each, and resuming."""

import numpy as np
import pytest
import tensorflow as tf

from data.mixing import choices_from, drawn_before
from data.sources import mix_lines
from inputs import open_sources
from tests.input_support import BATCH, LENGTH, config_of, numbered, sequences, write

DRAWS = 100_000


def mixed_choices(weights, seed, start, count):
    """What the stream draws."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        drawn = choices_from(weights, seed, start).batch(count)
        return session.run(tf.compat.v1.data.make_one_shot_iterator(drawn).get_next())


def by_numpy(weights, seed, start, count):
    """SplitMix64 of seed and number, and the part of [0, 1) that it falls into."""
    value = np.arange(start, start + count, dtype=np.uint64) + (np.uint64(seed) << np.uint64(32))
    value *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    uniform = value.astype(np.float64) / 2.0**64
    limits = np.cumsum(weights) / np.sum(weights)
    return np.minimum(np.searchsorted(limits, uniform, side="right"), len(weights) - 1)


@pytest.mark.parametrize(("seed", "start"), [(0, 0), (7, 123_456), (2**32 - 1, 10**9)])
def test_choices_are_those_of_the_formula(seed, start):
    weights = [0.02, 5.0, 1e-3, 2.5]
    found = mixed_choices(weights, seed, start, 70_000)
    np.testing.assert_array_equal(found, by_numpy(weights, seed, start, 70_000))
    counts = np.bincount(by_numpy(weights, seed, 0, 70_001), minlength=4)
    assert drawn_before(weights, seed, 70_001) == counts.tolist()
    assert drawn_before(weights, seed, 0) == [0] * 4


@pytest.mark.parametrize("weights", [[1.0, 3.0, 0.5], [1.0, 1.0], [0.02, 5.0, 1e-3, 2.5]])
@pytest.mark.parametrize("start", [0, 10**9])
def test_shares_are_those_of_the_weights(weights, start):
    """Within three standard deviations, at the beginning of a run and far behind it."""
    shares = np.array(weights) / sum(weights)
    for seed in (0, 5):
        choices = mixed_choices(weights, seed, start, DRAWS)
        found = np.bincount(choices, minlength=len(weights)) / DRAWS
        deviation = np.sqrt(shares * (1 - shares) / DRAWS)
        assert (np.abs(found - shares) < 3 * deviation).all(), (found, shares)


def test_neighbours_in_a_mix_are_independent():
    shares = np.array([1.0, 3.0, 0.5]) / 4.5
    choices = mixed_choices([1.0, 3.0, 0.5], 5, 0, DRAWS)
    expected = np.outer(shares, shares).ravel()
    pairs = np.bincount(choices[:-1] * 3 + choices[1:], minlength=9) / (DRAWS - 1)
    # Four standard deviations, since there are nine of them.
    assert (np.abs(pairs - expected) < 4 * np.sqrt(expected / DRAWS)).all()


def test_a_single_dataset_is_always_chosen():
    assert mixed_choices([1.0], 5, 0, 50).max() == 0


def test_choices_depend_on_seed_and_number_alone():
    whole = mixed_choices([2.0, 1.0], 7, 0, 500)
    for start in (0, 1, 77, 499):
        np.testing.assert_array_equal(
            mixed_choices([2.0, 1.0], 7, start, 500 - start), whole[start:]
        )
    assert not np.array_equal(whole, mixed_choices([2.0, 1.0], 8, 0, 500))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    write(folder / "few", "train", numbered(5), files_per=2)
    write(folder / "many", "train", numbered(19, first=30), files_per=8)
    return folder


def test_each_source_of_a_mix_is_read_in_its_own_order(mixture):
    config = config_of(mixture, [["few", None, None, 1.0], ["many", None, None, 3.0]], seed=4)
    read = sequences(config, 0, 40)
    numbers = read[:, 0] // LENGTH
    choices = mixed_choices([1.0, 3.0], 4, 0, 120)
    np.testing.assert_array_equal(numbers >= 30, choices == 1)
    few, many = numbers[choices == 0], numbers[choices == 1]
    np.testing.assert_array_equal(few, np.arange(len(few)) % 5)
    np.testing.assert_array_equal(many, 30 + np.arange(len(many)) % 19)
    assert len(few) > 10  # more than two epochs of the small one
    assert len(many) > 57  # three of the large one


def test_a_mix_resumes_with_exactly_the_rest(mixture):
    config = config_of(mixture, [["few", None, None, 1.0], ["many", None, None, 3.0]], seed=4)
    whole = sequences(config, 0, 44)
    for start in (1, 13, 39):
        np.testing.assert_array_equal(sequences(config, start, 5), whole[start * BATCH :][:15])


def test_a_mix_resumes_past_the_block_in_which_choices_are_counted(mixture, monkeypatch):
    config = config_of(mixture, [["few", None, None, 1.0], ["many", None, None, 3.0]], seed=4)
    whole = sequences(config, 0, 30)
    monkeypatch.setattr("data.mixing._BLOCK", 7)
    np.testing.assert_array_equal(sequences(config, 0, 30), whole)
    np.testing.assert_array_equal(sequences(config, 11, 19), whole[33:])


def test_shares_and_epochs_are_told(mixture):
    config = config_of(mixture, [["few", None, None, 1.0], ["many", None, None, 3.0]])
    assert mix_lines(open_sources(config, training=True), batch_size=2) == [
        "few: 25.0% of the training sequences; 5 records in 3 file(s) give 5 sequences, an epoch "
        "of it 10.0 steps",
        "many: 75.0% of the training sequences; 19 records in 3 file(s) give 19 sequences, an "
        "epoch of it 12.7 steps",
    ]
