"""Activation functions by the names that a config may use.

Each is one function of a tf.Tensor; ``activation`` applies it as a kernel. A new one is one
line here and its name in ``configs.names.ACTIVATIONS``.
"""

from __future__ import annotations

from typing import Callable

import tensorflow as tf

from models.kernels.operation import kernel
from utils.mesh_tensorflow import mtf


def _tanh_gelu(x: tf.Tensor) -> tf.Tensor:
    """Hendrycks and Gimpel 2016, the tanh form that GPT-2 and GPT-Neo use."""
    return tf.nn.gelu(x, approximate=True)


def _hard_sigmoid(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu6(x + 3.0) / 6.0


def _shrink_outside(x: tf.Tensor, limit: float = 0.5) -> tf.Tensor:
    return tf.where(tf.abs(x) > limit, x, tf.zeros_like(x))


def _soft_shrink(x: tf.Tensor, limit: float = 0.5) -> tf.Tensor:
    return tf.sign(x) * tf.nn.relu(tf.abs(x) - limit)


def _sinc(x: tf.Tensor) -> tf.Tensor:
    at_zero = tf.equal(x, 0.0)
    safe = tf.where(at_zero, tf.ones_like(x), x)
    return tf.where(at_zero, tf.ones_like(x), tf.sin(safe) / safe)


def _celu(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(x) + tf.minimum(tf.zeros_like(x), tf.exp(tf.minimum(x, 0.0)) - 1.0)


def _elish(x: tf.Tensor) -> tf.Tensor:
    return tf.where(x >= 0.0, x, tf.exp(tf.minimum(x, 0.0)) - 1.0) * tf.sigmoid(x)


FUNCTIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "gelu": _tanh_gelu,
    "gelu_exact": lambda x: tf.nn.gelu(x, approximate=False),
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "squared_relu": lambda x: tf.square(tf.nn.relu(x)),
    "leaky_relu": lambda x: tf.nn.leaky_relu(x, alpha=0.01),
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "celu": _celu,
    "silu": tf.nn.silu,
    "swish": tf.nn.silu,
    "mish": lambda x: x * tf.tanh(tf.nn.softplus(x)),
    "sigmoid": tf.sigmoid,
    "tanh": tf.tanh,
    "softplus": tf.nn.softplus,
    "softsign": tf.nn.softsign,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda x: x * _hard_sigmoid(x),
    "hard_tanh": lambda x: tf.clip_by_value(x, -1.0, 1.0),
    "hardshrink": _shrink_outside,
    "softshrink": _soft_shrink,
    "tanhshrink": lambda x: x - tf.tanh(x),
    "log_sigmoid": tf.math.log_sigmoid,
    "sin": tf.sin,
    "cos": tf.cos,
    "sinc": _sinc,
    "exp": tf.exp,
    "gaussian": lambda x: tf.exp(-tf.square(x)),
    "arctan": tf.atan,
    "arcsinh": tf.asinh,
    "bent_identity": lambda x: (tf.sqrt(tf.square(x) + 1.0) - 1.0) / 2.0 + x,
    "elish": _elish,
    "elliotsig": tf.nn.softsign,
    "cosid": lambda x: tf.cos(x) - x,
    "tanhexp": lambda x: x * tf.tanh(tf.exp(x)),
    "lisht": lambda x: x * tf.tanh(x),
    "phish": lambda x: x * tf.tanh(_tanh_gelu(x)),
    "serf": lambda x: x * tf.math.erf(tf.nn.softplus(x)),
    "cube": lambda x: x * x * x,
    "square": tf.square,
    "identity": tf.identity,
    "abs": tf.abs,
}


def activation(x: mtf.Tensor, name: str) -> mtf.Tensor:
    """Applies the activation ``name`` to every element of ``x`` (any dims, all splittable)."""
    [y] = kernel(
        FUNCTIONS[name],
        [x],
        [(x.shape, x.dtype)],
        splittable=x.shape.dims,
        name=name,
        fusion=name,
        cheap=True,
    )
    return y
