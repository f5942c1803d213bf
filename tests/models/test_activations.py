"""Every activation against a formula in numpy, and its slope against differences of the formula."""

import math

import numpy as np
import pytest

from configs.names import ACTIVATIONS
from models.activations import FUNCTIONS, activation
from tests.support import run_named
from utils.mesh_tensorflow import mtf

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def hard_sigmoid(x):
    return np.clip(x / 6 + 0.5, 0, 1)


def elu(x, scale=1.0, alpha=1.0):
    return scale * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


FORMULAS = {
    "gelu": gelu,
    "gelu_exact": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": elu,
    "selu": lambda x: elu(x, 1.0507009873554805, 1.6732632423543772),
    "celu": elu,  # the same at alpha = 1
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softplus": softplus,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": lambda x: x * hard_sigmoid(x),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "hardshrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "softshrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "tanhshrink": lambda x: x - np.tanh(x),
    "log_sigmoid": lambda x: -softplus(-x),
    "sin": np.sin,
    "cos": np.cos,
    "sinc": lambda x: np.sinc(x / math.pi),
    "exp": np.exp,
    "gaussian": lambda x: np.exp(-(x**2)),
    "arctan": np.arctan,
    "arcsinh": np.arcsinh,
    "bent_identity": lambda x: (np.sqrt(x**2 + 1) - 1) / 2 + x,
    "elish": lambda x: elu(x) * sigmoid(x),
    "elliotsig": lambda x: x / (1 + np.abs(x)),
    "cosid": lambda x: np.cos(x) - x,
    "tanhexp": lambda x: x * np.tanh(np.exp(x)),
    "lisht": lambda x: x * np.tanh(x),
    "phish": lambda x: x * np.tanh(gelu(x)),
    "serf": lambda x: x * erf(softplus(x)),
    "cube": lambda x: x**3,
    "square": lambda x: x**2,
    "identity": lambda x: x,
    "abs": np.abs,
}
# No point lies on a kink, of which there are some at 0, ±0.5, ±1, ±3 and 6.
POINTS = np.array([-20, -7, -2.5, -0.8, -0.3, -0.01, 0.02, 0.4, 0.7, 1.3, 5, 20], np.float64)
KINKS = np.array([-3, -1, -0.5, 0, 0.5, 1, 3, 6], np.float32)
ALL = np.concatenate([POINTS.astype(np.float32), KINKS])
DIM = mtf.Dimension("intermediate_expanded", len(ALL))


@pytest.fixture(scope="module")
def measured() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name -> (values, slopes) at ALL, from one graph."""

    def build(_, x):
        values = [activation(x, name) for name in FUNCTIONS]
        slopes = [mtf.gradients([mtf.reduce_sum(value)], [x])[0] for value in values]
        return values + slopes

    results = run_named("x:1", "", [(ALL, [DIM])], build)
    return dict(zip(FUNCTIONS, zip(results, results[len(FUNCTIONS) :])))


def test_the_config_names_exactly_these():
    assert set(FUNCTIONS) == set(ACTIVATIONS) == set(FORMULAS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values(measured, name):
    expected = FORMULAS[name](ALL.astype(np.float64))
    np.testing.assert_allclose(measured[name][0], expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes(measured, name):
    slopes = measured[name][1]
    assert np.isfinite(slopes).all()
    step = 1e-5
    expected = (FORMULAS[name](POINTS + step) - FORMULAS[name](POINTS - step)) / (2 * step)
    np.testing.assert_allclose(slopes[: len(POINTS)], expected, rtol=2e-5, atol=2e-5)


def test_every_dimension_may_be_split(measured):
    [values] = run_named(
        "x:4", "intermediate_expanded:x", [(ALL, [DIM])], lambda _, x: [activation(x, "gelu")]
    )
    np.testing.assert_allclose(values, measured["gelu"][0], atol=1e-6)
