"""The squared norm of a tensor."""

from __future__ import annotations

import tensorflow as tf

from models.kernels.operation import kernel
from utils.mesh_tensorflow import mtf


def sum_of_squares(x: mtf.Tensor) -> mtf.Tensor:
    """Float32 scalar; in one pass, where a square and a sum would take two and a copy.

    Args:
        x: any dims, float32.
    """
    return kernel(
        lambda part: 2.0 * tf.nn.l2_loss(part),
        [x],
        [(mtf.Shape([]), tf.float32)],
        (),
        "sum_of_squares",
        summed_dims=x.shape.dims,
        differentiable=False,
    )[0]
