"""Products with a weight matrix, as one two-dimensional matrix product per slice.

``mtf.einsum`` lowers to TensorFlow's Einsum, which on the CPU does not reach oneDNN; a plain
MatMul does.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.kernels.operation import Slices, kernel
from utils.mesh_tensorflow import mtf


def matmul(x: mtf.Tensor, weight: mtf.Tensor, out_dim: mtf.Dimension) -> mtf.Tensor:
    """Contracts the last dimension of ``x`` with ``weight``.

    Args:
        x: [..., in_dim], floating. Every dimension may be split.
        weight: [in_dim, out_dim] or [out_dim, in_dim]; rounded to x's dtype for the product.
        out_dim: the dimension of ``weight`` that stays.

    Returns:
        [..., out_dim], of x's dtype.
    """
    in_dim = x.shape.dims[-1]
    assert set(weight.shape.dims) == {in_dim, out_dim}, (x.shape, weight.shape)
    transposed = weight.shape.dims[0] == out_dim
    rows = x.shape.dims[:-1]

    def forward(x_slice: tf.Tensor, weight_slice: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(x_slice, [-1, x_slice.shape[-1]])
        product = tf.matmul(flat, tf.cast(weight_slice, flat.dtype), transpose_b=transposed)
        return tf.reshape(product, [*x_slice.shape[:-1], product.shape[-1]])

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        x_slice, weight_slice = xs
        flat = tf.reshape(x_slice, [-1, x_slice.shape[-1]])
        d_flat = tf.reshape(dys[0], [-1, dys[0].shape[-1]])
        rounded = tf.cast(weight_slice, d_flat.dtype)
        dx = tf.matmul(d_flat, rounded, transpose_b=not transposed)
        left, right = (d_flat, flat) if transposed else (flat, d_flat)
        d_weight = tf.matmul(left, right, transpose_a=True)
        return [tf.reshape(dx, x_slice.shape), tf.cast(d_weight, weight_slice.dtype)]

    output = mtf.Shape([*rows, out_dim])
    [y] = kernel(
        forward,
        [x, weight],
        [(output, x.dtype)],
        splittable=output.dims,
        summed_dims=[in_dim],
        gradient=gradient,
        name="matmul",
        multiply_adds=output.size * in_dim.size,
    )
    return y


def expert_matmul(x: mtf.Tensor, weight: mtf.Tensor, out_dim: mtf.Dimension) -> mtf.Tensor:
    """Contracts the last dimension of ``x`` with the weights of each expert.

    Args:
        x: [experts, ..., in_dim], or [..., in_dim] of which every expert gets all; floating.
        weight: [experts, in_dim, out_dim]; rounded to x's dtype for the product.
        out_dim: the dimension of ``weight`` that stays. Every dimension may be split.

    Returns:
        [experts, ..., out_dim], of x's dtype.
    """
    experts, in_dim = weight.shape.dims[:2]
    shared = experts not in x.shape.dims
    rows = x.shape.dims[0 if shared else 1 : -1]

    def flat(values: tf.Tensor, count: int) -> tf.Tensor:
        return tf.reshape(values, [count, -1, values.shape[-1]])

    def forward(x_slice: tf.Tensor, weight_slice: tf.Tensor) -> tf.Tensor:
        count, _, width = weight_slice.shape
        flat_x = flat(x_slice, 1 if shared else count)
        product = tf.matmul(flat_x, tf.cast(weight_slice, x_slice.dtype))
        return tf.reshape(product, [count, *x_slice.shape[0 if shared else 1 : -1], width])

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        x_slice, weight_slice = xs
        count = weight_slice.shape[0]
        flat_x, d_flat = flat(x_slice, 1 if shared else count), flat(dys[0], count)
        dx = tf.matmul(d_flat, tf.cast(weight_slice, d_flat.dtype), transpose_b=True)
        if shared:
            dx = tf.reduce_sum(dx, 0)
        d_weight = tf.matmul(flat_x, d_flat, transpose_a=True)
        return [tf.reshape(dx, x_slice.shape), tf.cast(d_weight, weight_slice.dtype)]

    output = mtf.Shape([experts, *rows, out_dim])
    [y] = kernel(
        forward,
        [x, weight],
        [(output, x.dtype)],
        splittable=output.dims,
        summed_dims=[in_dim],
        gradient=gradient,
        name="expert_matmul",
        multiply_adds=output.size * in_dim.size,
    )
    return y


def bias_add(x: mtf.Tensor, bias: mtf.Tensor) -> mtf.Tensor:
    """Adds ``bias`` [dim] to the last dimension of ``x`` [..., dim]; all dims may be split.

    The bias is rounded to x's dtype.
    """

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        d_flat = tf.reshape(dys[0], [-1, dys[0].shape[-1]])
        # A product with ones sums rows faster than a reduction does on the CPU.
        summed = tf.matmul(tf.ones([1, tf.shape(d_flat)[0]], d_flat.dtype), d_flat)
        return [dys[0], tf.cast(tf.reshape(summed, [-1]), xs[1].dtype)]

    [y] = kernel(
        lambda values, added: tf.nn.bias_add(values, tf.cast(added, values.dtype)),
        [x, bias],
        [(x.shape, x.dtype)],
        splittable=x.shape.dims,
        gradient=gradient,
        name="bias_add",
    )
    return y
