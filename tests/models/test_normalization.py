"""Layer norm against numpy, whole and split."""

from types import SimpleNamespace

import numpy as np
import pytest

from models.normalization import layer_norm
from tests.support import assert_all_close, value_and_gradients
from utils.mesh_tensorflow import mtf

BATCH, SEQUENCE = mtf.Dimension("batch", 4), mtf.Dimension("sequence", 6)
EMBD = mtf.Dimension("embd", 20)
RANDOM = np.random.default_rng(8)
X = RANDOM.normal(0.7, 1.9, size=(4, 6, 20)).astype(np.float32)
GAIN = RANDOM.normal(1, 0.5, size=20).astype(np.float32)
BIAS = RANDOM.normal(0, 0.5, size=20).astype(np.float32)
UPSTREAM = RANDOM.normal(size=(4, 6, 20)).astype(np.float32)
LAYOUTS = [
    ("x:1", ""),
    ("x:4", "batch:x"),
    ("x:4", "embd:x"),
    ("x:2,y:2", "batch:x,embd:y"),
    ("x:2,y:2", "sequence:x,embd:y"),
]


def normed(_, x, gain, bias):
    """The layer with its two variables given as tensors."""
    variables = {"h0/norm_1/g": gain, "h0/norm_1/b": bias}
    weights = SimpleNamespace(
        ones=lambda name, dims: variables.pop(name), zeros=lambda name, dims: variables.pop(name)
    )
    y = layer_norm(weights, x, EMBD, "h0/norm_1")
    assert not variables
    return y


def reference(x: np.ndarray) -> list[np.ndarray]:
    """Value and gradients by the textbook (Ioffe and Szegedy 2015, section 3), in float64."""
    x = x.astype(np.float64)
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    unit = (x - x.mean(-1, keepdims=True)) / deviation
    d_unit = UPSTREAM * GAIN
    centered = d_unit - d_unit.mean(-1, keepdims=True)
    d_x = (centered - unit * (d_unit * unit).mean(-1, keepdims=True)) / deviation
    return [unit * GAIN + BIAS, d_x, (UPSTREAM * unit).sum((0, 1)), UPSTREAM.sum((0, 1))]


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_value_and_gradients(mesh_shape, layout):
    inputs = [(X, [BATCH, SEQUENCE, EMBD]), (GAIN, [EMBD]), (BIAS, [EMBD])]
    got = value_and_gradients(mesh_shape, layout, inputs, normed, UPSTREAM)
    assert_all_close(got, reference(X), 2e-6)


def test_epsilon_decides_where_the_variance_is_small():
    x = X * np.float32(1e-3)
    inputs = [(x, [BATCH, SEQUENCE, EMBD]), (GAIN, [EMBD]), (BIAS, [EMBD])]
    value = value_and_gradients("x:1", "", inputs, normed, UPSTREAM)[0]
    np.testing.assert_allclose(value, reference(x)[0], atol=1e-5)


@pytest.mark.parametrize("layout", ["", "embd:x"])
def test_extreme_inputs_stay_finite(layout):
    x = np.zeros((4, 6, 20), np.float32)
    x[1], x[2, :, ::2], x[3] = 1e4, 1e4, -1e4  # equal and mixed
    inputs = [(x, [BATCH, SEQUENCE, EMBD]), (GAIN, [EMBD]), (BIAS, [EMBD])]
    got = value_and_gradients("x:1" if not layout else "x:2", layout, inputs, normed, UPSTREAM)
    assert all(np.isfinite(array).all() for array in got)
    # Where all features are equal only the bias is left.
    np.testing.assert_allclose(got[0][[0, 1, 3]], np.broadcast_to(BIAS, (3, 6, 20)), atol=1e-4)
