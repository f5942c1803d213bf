"""Rotary positions against complex multiplication, whole and split."""

import numpy as np
import pytest
import tensorflow as tf

from models.kernels.rotary import rotary
from tests.support import assert_all_close, run_named, value_and_gradients
from utils.mesh_tensorflow import mtf

BATCH, SEQUENCE = mtf.Dimension("batch", 2), mtf.Dimension("sequence", 6)
HEADS, FEATURES = mtf.Dimension("heads", 4), mtf.Dimension("features_per_head", 10)
DIMS = [BATCH, SEQUENCE, HEADS, FEATURES]
SHAPE = tuple(dim.size for dim in DIMS)
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=SHAPE).astype(np.float32)
UPSTREAM = RANDOM.normal(size=SHAPE).astype(np.float32)
POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [7, 8, 9, 2040, 2041, 2047]], np.int32)
LAYOUTS = [
    ("x:1", ""),
    ("x:2", "batch:x"),
    ("x:2,y:3", "heads:x,sequence:y"),
]
KINDS = [(10, False), (10, True), (6, False), (6, True), (2, True)]


def turned_by(x: np.ndarray, count: int, interleaved: bool, direction: int = 1) -> np.ndarray:
    """Pairs as complex numbers times exp(i angle), in float64."""
    angles = POSITIONS[:, :, None, None] * 10000.0 ** (-2 * np.arange(count // 2) / count)
    pairs = (slice(0, count, 2), slice(1, count, 2))
    if not interleaved:
        pairs = (slice(0, count // 2), slice(count // 2, count))
    result = x.astype(np.float64)
    numbers = (result[..., pairs[0]] + 1j * result[..., pairs[1]]) * np.exp(1j * direction * angles)
    result[..., pairs[0]], result[..., pairs[1]] = numbers.real, numbers.imag
    return result


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize(("count", "interleaved"), KINDS)
def test_value_and_gradient(mesh_shape, layout, count, interleaved):
    inputs = [(X, DIMS), (POSITIONS, [BATCH, SEQUENCE])]
    got = value_and_gradients(
        mesh_shape, layout, inputs, lambda _, x, at: rotary(x, at, count, interleaved), UPSTREAM
    )
    # The gradient of a rotation is the rotation back. Angles of up to 2,047 in float32 are right
    # to 1e-4; those of the first row are small.
    expected = [turned_by(X, count, interleaved), turned_by(UPSTREAM, count, interleaved, -1)]
    assert_all_close(got, expected, 2e-4)
    assert_all_close([x[0] for x in got], [x[0] for x in expected], 1e-6)
    for values, source in zip(got, (X, UPSTREAM)):
        np.testing.assert_array_equal(values[..., count:], source[..., count:])


def test_bfloat16_keeps_what_is_not_turned():
    def build(_, x, at):
        turned = rotary(mtf.cast(x, tf.bfloat16), at, 6, interleaved=True)
        return [mtf.cast(turned, tf.float32), mtf.cast(mtf.cast(x, tf.bfloat16), tf.float32)]

    inputs = [(X, DIMS), (POSITIONS, [BATCH, SEQUENCE])]
    got, rounded = run_named("x:1", "", inputs, build)
    np.testing.assert_array_equal(got[..., 6:], rounded[..., 6:])
    np.testing.assert_allclose(got, turned_by(rounded, 6, True), atol=0.02)
