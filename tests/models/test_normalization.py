"""Norms against numpy, whole and split."""

from types import SimpleNamespace

import numpy as np
import pytest

from models.kernels.matmul import matmul
from models.kernels.operation import MadeAgain
from models.normalization import layer_norm, norm_of
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


VARIANTS = {  # of `norm`: dimensions of the gain, whether there is a bias, initial gain
    "layernorm": ([EMBD], True, 1.0),
    "layernorm-nobias": ([EMBD], False, 1.0),
    "rmsnorm": ([EMBD], False, 20**0.5),
    "rmsnorm-bias": ([EMBD], True, 20**0.5),
    "scalenorm": ([], False, 20**0.5),
    "scalenorm-bias": ([], True, 20**0.5),
}


class Variables:
    """Weights that are given as tensors; notes what their initial values would be."""

    def __init__(self, **tensors):
        self.tensors = tensors
        self.initial = {}

    def constant(self, name, dims, value):
        tensor = self.tensors.pop(name.rsplit("/")[-1])
        assert tensor.shape.dims == dims
        self.initial[name] = value
        return tensor

    def ones(self, name, dims):
        return self.constant(name, dims, 1.0)

    def zeros(self, name, dims):
        return self.constant(name, dims, 0.0)


def length_reference(gain: np.ndarray, bias: bool) -> list[np.ndarray]:
    """Value and gradients of x / (|x| + epsilon) times a gain, in float64."""
    x = X.astype(np.float64)
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    divisor = length + 1e-5
    d_unit = UPSTREAM * gain
    along = (d_unit * x).sum(-1, keepdims=True) / (length * divisor**2)
    of_gain = (UPSTREAM * x / divisor).sum((0, 1) if gain.shape else None)
    gradients = [d_unit / divisor - x * along, of_gain]
    if not bias:
        return [x / divisor * gain, *gradients]
    return [x / divisor * gain + BIAS, *gradients, UPSTREAM.sum((0, 1))]


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize("norm", VARIANTS)
def test_variants(norm, mesh_shape, layout):
    gain_dims, has_bias, initial_gain = VARIANTS[norm]
    gain = GAIN if gain_dims else GAIN[0]
    inputs = [(X, [BATCH, SEQUENCE, EMBD]), (gain, gain_dims)]
    inputs += [(BIAS, [EMBD])] if has_bias else []

    def normed_by(_, x, gain, *bias):
        variables = Variables(g=gain, **dict(zip("b", bias)))
        y = norm_of(SimpleNamespace(norm=norm), variables, x, EMBD, "ln_f")
        assert not variables.tensors
        assert variables.initial.pop("ln_f/g") == initial_gain
        assert set(variables.initial.values()) <= {0.0}
        return y

    got = value_and_gradients(mesh_shape, layout, inputs, normed_by, UPSTREAM)
    if norm.startswith("layernorm"):
        value, *gradients = reference(X)
        expected = [value, *gradients] if has_bias else [value - BIAS, *gradients[:2]]
    else:
        expected = length_reference(np.asarray(gain), has_bias)
    assert_all_close(got, expected, 2e-6)


@pytest.mark.parametrize("layout", ["", "embd:x"])
def test_a_vector_without_length_stays_finite(layout):
    x = X.copy()
    x[0] = 0.0
    x[1] *= 1e15

    def normed_by(_, x, gain):
        variables = Variables(g=gain)
        return norm_of(SimpleNamespace(norm="rmsnorm"), variables, x, EMBD, "ln_f")

    inputs = [(x, [BATCH, SEQUENCE, EMBD]), (GAIN, [EMBD])]
    value, d_x, d_gain = value_and_gradients(
        "x:1" if not layout else "x:2", layout, inputs, normed_by, UPSTREAM
    )
    assert (value[0] == 0).all()
    np.testing.assert_allclose(d_x[0], UPSTREAM[0] * GAIN / 1e-5, rtol=1e-5)
    assert np.isfinite(value).all() and np.isfinite(d_x).all() and np.isfinite(d_gain).all()


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm-bias", "scalenorm"])
def test_a_product_behind_a_norm_has_it_made_again(norm, mesh_shape, layout):
    """Its gradient by the weight needs the normalised vectors, which are not kept."""
    gain_dims, has_bias, _ = VARIANTS[norm]
    gain = GAIN if gain_dims else GAIN[0]
    inputs = [(X, [BATCH, SEQUENCE, EMBD]), (gain, gain_dims)]
    inputs += [(BIAS, [EMBD])] if has_bias else []
    out, random = mtf.Dimension("out", 6), np.random.default_rng(3)
    weight, upstream = (random.normal(size=s).astype(np.float32) for s in ((20, 6), (4, 6, 6)))
    kinds = set()

    def product(_, weight, x, gain, *bias):
        variables = Variables(g=gain, **dict(zip("b", bias)))
        y = norm_of(SimpleNamespace(norm=norm), variables, x, EMBD, "ln_f")
        z = matmul(y, weight, [out])
        of_weight = z.operation.gradient([z])[1].operation
        kinds.add(type(of_weight.inputs[0].operation))
        return z

    inputs = [(weight, [EMBD, out]), *inputs]
    got = value_and_gradients(mesh_shape, layout, inputs, product, upstream)
    if norm.startswith("layernorm"):
        y = reference(X)[0]
    else:
        y = length_reference(np.asarray(gain), has_bias)[0]
    expected = [y @ weight, np.einsum("bsi,bso->io", y, upstream)]
    assert_all_close(got[:2], expected, 2e-6)
    assert kinds == {MadeAgain}
