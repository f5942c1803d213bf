"""Dropout noise: its statistics, its independence of the layout, and one mask for both passes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from models.kernels.noise import Dropout, hash_of_positions, keep_mask
from tests.support import run_named, run_tf
from utils.mesh_tensorflow import mtf

ROWS, COLUMNS = 300, 400
SIGMAS = 4.5  # of a normal deviate; past it once in 150,000


BATCH, SEQUENCE = mtf.Dimension("batch", 4), mtf.Dimension("sequence", 6)
EMBD = mtf.Dimension("embd", 20)


def dropout_of(mesh: mtf.Mesh, seed: int, step: int) -> Dropout:
    """Of a batch that is processed at once."""
    return Dropout(mesh, seed, tf.constant(step), mtf.range(mesh, BATCH, tf.int32))


def bits_of(*places: tuple[int, int, str]) -> list[np.ndarray]:
    """uint32 [ROWS, COLUMNS] for each (seed, step, label)."""
    mesh_input = np.zeros((), np.float32), []

    def build(_, x):
        return [dropout_of(x.mesh, seed, step).key(label) for seed, step, label in places]

    keys = run_named("x:1", "", [mesh_input], build)
    return run_tf(
        lambda: [
            hash_of_positions(tf.constant(key), [tf.range(ROWS), tf.range(COLUMNS)]) for key in keys
        ]
    )


def correlation(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.corrcoef(left.ravel(), right.ravel())[0, 1])


def bound(count: int) -> float:
    """Of the correlation of ``count`` independent pairs."""
    return SIGMAS / np.sqrt(count)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.25, 0.5, 0.9])
def test_rate_and_scale(rate):
    masks = run_tf(
        lambda: [
            keep_mask(tf.constant(key, tf.uint32), [tf.range(ROWS), tf.range(COLUMNS)], rate)
            for key in (0, 1, 3456789012)
        ]
    )
    for mask in masks:
        assert set(np.unique(mask)) == {0.0, np.float32(1 / (1 - rate))}
        deviation = np.sqrt(rate * (1 - rate) / mask.size)
        assert abs((mask == 0).mean() - rate) < SIGMAS * deviation
        # Each row and each column has its share, too: no stripes.
        for axis, length in ((0, ROWS), (1, COLUMNS)):
            shares = (mask == 0).mean(axis)
            expected = np.sqrt(rate * (1 - rate) / length)
            assert abs(shares.std() / expected - 1) < SIGMAS / np.sqrt(2 * shares.size)
            assert np.abs(shares - rate).max() < 6 * expected + 1 / length


def test_bits_are_uniform():
    [bits] = bits_of((1, 2, "embed"))
    for shift in (0, 8, 16, 24):
        counts = np.bincount(((bits >> shift) & 255).ravel(), minlength=256)
        expected = bits.size / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_square - 255) < SIGMAS * np.sqrt(2 * 255), shift
    # Nearly all of 120,000 values of 32 bits are distinct.
    assert np.unique(bits).size > bits.size - 20


def test_neighbours_are_uncorrelated():
    """Rows, columns and diagonals, at several distances, of values and of masks."""
    [bits] = bits_of((3, 0, "h0/attn"))
    for values in (bits, bits < 2**32 // 10, bits & 1):
        for down, right in [(1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (0, 64), (16, 0), (3, 5)]:
            first = values[: ROWS - down, : COLUMNS - right]
            second = values[down:, right:]
            assert abs(correlation(first, second)) < bound(first.size), (down, right)


def test_steps_seeds_and_labels_are_uncorrelated():
    # Small numbers side by side: were seed and step only xored, (0, 2) and (1, 1) would agree.
    places = [(seed, step, "embed") for seed in range(4) for step in range(4)]
    labels = ["h0/attn", "h0/mlp", "h1/attn", "h10/attn", "h0/attn/weights"]
    results = bits_of(*places, *[(0, 0, label) for label in labels])
    assert len(results) == 21
    for left, right in itertools.combinations(results, 2):
        assert abs(correlation(left, right)) < bound(left.size)
        assert (left == right).sum() < 10


def test_transposed_coordinates_give_other_noise():
    """The hash knows which coordinate is which: [i, j] and [j, i] are different places."""
    [bits] = bits_of((3, 0, "h0/attn"))
    square = bits[:, :ROWS]
    upper = np.triu_indices(ROWS, 1)
    assert abs(correlation(square[upper], square.T[upper])) < bound(upper[0].size)


DIMS = [BATCH, SEQUENCE, EMBD]
RANDOM = np.random.default_rng(1)
X = (np.abs(RANDOM.normal(size=(4, 6, 20))) + 0.5).astype(np.float32)
UPSTREAM = (np.abs(RANDOM.normal(size=(4, 6, 20))) + 0.5).astype(np.float32)


def dropped(mesh_shape="x:1", layout="", seed=5, step=3, label="h0/attn", rate=0.4):
    """(forward mask, mask of the gradient)."""

    def build(_, x, upstream):
        y = dropout_of(x.mesh, seed, step)(x, rate, label)
        return [y, *mtf.gradients([mtf.reduce_sum(y * upstream)], [x])]

    y, gradient = run_named(mesh_shape, layout, [(X, DIMS), (UPSTREAM, DIMS)], build)
    return y / X, gradient / UPSTREAM


@pytest.fixture(scope="module")
def whole() -> np.ndarray:
    """The mask of an unsplit run."""
    return dropped()[0]


@pytest.mark.parametrize(
    ("mesh_shape", "layout"),
    [
        ("x:1", ""),
        ("x:4", "batch:x"),
        ("x:4", "embd:x"),
        ("x:2,y:2", "batch:x,embd:y"),
        ("x:2,y:2", "sequence:x,embd:y"),
        ("x:2,y:2", "batch:x,sequence:y"),
    ],
)
def test_layout_does_not_matter_and_the_gradient_has_the_same_mask(whole, mesh_shape, layout):
    forward, backward = dropped(mesh_shape, layout)
    np.testing.assert_allclose(forward, whole, rtol=1e-6)
    np.testing.assert_allclose(backward, whole, rtol=1e-6)
    assert 0.3 < (whole == 0).mean() < 0.5
    np.testing.assert_allclose(whole[whole > 0], 1 / 0.6, rtol=1e-6)


@pytest.mark.parametrize("change", [{"step": 4}, {"seed": 6}, {"label": "h1/attn"}])
def test_each_step_seed_and_place_has_its_own_mask(whole, change):
    other = dropped(**change)[0]
    # Two independent masks differ where one of them drops: 2 * 0.4 * 0.6 = 48 % of 480.
    assert 0.35 < ((other == 0) != (whole == 0)).mean() < 0.6


def test_the_same_place_in_the_same_step_repeats(whole):
    np.testing.assert_array_equal(dropped()[0], whole)


def test_rate_zero_is_the_identity():
    y, gradient = dropped(rate=0.0)
    np.testing.assert_array_equal(y, np.ones_like(X))
    np.testing.assert_array_equal(gradient, np.ones_like(X))


def uniform_noise(mesh_shape="x:1", layout="", step=3, label="h0/mlp/second_expert"):
    """[batch, sequence], of rows 4 to 7 of a larger batch, counted by another dimension."""
    renamed = mtf.Dimension("batch_unsplit", 4)

    def build(_, rows):
        dropout = Dropout(rows.mesh, 5, tf.constant(step), rows)
        return [
            dropout.uniform([BATCH, SEQUENCE], label),
            dropout.over(renamed).uniform([renamed, SEQUENCE], label),
        ]

    rows = np.arange(4, 8, dtype=np.int32)
    return run_named(mesh_shape, layout, [(rows, [BATCH])], build)


def test_uniform_noise_of_rows():
    noise, renamed = uniform_noise()
    np.testing.assert_array_equal(renamed, noise)
    assert 0 < noise.min() < 0.25 < 0.75 < noise.max() < 1
    for split in uniform_noise("x:2,y:2", "batch:x,sequence:y"):
        np.testing.assert_array_equal(split, noise)
    for other in (uniform_noise(step=4), uniform_noise(label="h1/mlp/second_expert")):
        assert not (other[0] == noise).any()
