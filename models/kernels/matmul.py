"""Products with a weight matrix, as one two-dimensional matrix product per slice.

``mtf.einsum`` lowers to TensorFlow's Einsum, which on the CPU does not reach oneDNN; a plain
MatMul does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from models.kernels.operation import Slices, held_back, kernel
from utils.mesh_tensorflow import mtf

FEW_ROWS = 64
"""Up to so many rows, the product with a matrix is about as fast as the matrix is read."""


def _product(x: tf.Tensor, matrix: tf.Tensor, transposed: bool) -> tf.Tensor:
    """``x`` [rows, in] times ``matrix`` [in, out], or [out, in] if ``transposed``: [rows, out]."""
    rows = x.shape[0]
    if not transposed or x.dtype != tf.float32 or rows > FEW_ROWS:
        return tf.matmul(x, matrix, transpose_b=transposed)
    # Faster by half for eight rows of float32 on the CPU, and never slower.
    product = tf.matmul(matrix, x, transpose_b=True)
    return tf.reshape(product, [1, -1]) if rows == 1 else tf.transpose(product)


def _rounded(weight: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """``weight`` in the dtype of what it is multiplied by, once that is there.

    TensorFlow would round all weights of a model at the start of a step, and keep that for the
    gradients.
    """
    if weight.dtype == like.dtype:
        return weight
    with tf.control_dependencies([like]):
        return tf.cast(weight, like.dtype)


def matmul(
    x: mtf.Tensor,
    weight: mtf.Tensor,
    out_dims: Sequence[mtf.Dimension],
    bias: Optional[mtf.Tensor] = None,
) -> mtf.Tensor:
    """Contracts the last dimension of ``x`` with ``weight`` and adds ``bias``.

    Args:
        x: [..., in_dim], floating. Every dimension may be split.
        weight: [in_dim, *out_dims] or [*out_dims, in_dim]; rounded to x's dtype for the product.
        out_dims: the dimensions of ``weight`` that stay; at most one of them may be split.
        bias: [out_dim] of the only out_dim, rounded to x's dtype; None for none. Not
            differentiable: it is for generation, where TensorFlow adds it to a single row within
            the product, which is much faster in bfloat16. Elsewhere see ``bias_add``.

    Returns:
        [..., *out_dims], of x's dtype.
    """
    in_dim, rows = x.shape.dims[-1], x.shape.dims[:-1]
    transposed = weight.shape.dims[-1] == in_dim
    expected = [*out_dims, in_dim] if transposed else [in_dim, *out_dims]
    assert weight.shape.dims == expected, (x.shape, weight.shape)

    def flat(values: tf.Tensor, dims: int = 1) -> tf.Tensor:
        """As a matrix whose columns are the last ``dims`` dimensions."""
        return tf.reshape(values, [-1, math.prod(values.shape[-dims:])])

    def matrix(weight_slice: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        return _rounded(flat(weight_slice, 1 if transposed else len(out_dims)), like)

    def share(values: tf.Tensor, held: tf.Tensor) -> tf.Tensor:
        """``values`` on the processors whose partial sums contain the bias, 0 on the others."""
        if held.shape[0] == in_dim.size:
            return values
        return values * tf.cast(tf.equal(held[0], 0), values.dtype)

    def forward(x_slice: tf.Tensor, weight_slice: tf.Tensor, *added: tf.Tensor) -> tf.Tensor:
        values, dtype = flat(x_slice), x_slice.dtype
        product = _product(values, matrix(weight_slice, values), transposed)
        kept = weight_slice.shape[:-1] if transposed else weight_slice.shape[1:]
        shape = [*x_slice.shape[:-1], *kept]
        if not added:
            return tf.reshape(product, shape)
        # Next to each other, product and sum become one operation: slower but for a single row.
        bias_slice = share(tf.cast(added[0], dtype), added[1])
        if values.shape[0] == 1:
            return tf.reshape(tf.nn.bias_add(product, bias_slice), shape)
        return tf.nn.bias_add(tf.reshape(product, shape), bias_slice)

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        x_slice, weight_slice = xs
        d_flat = flat(dys[0], len(out_dims))
        left, right = (d_flat, flat(x_slice)) if transposed else (flat(x_slice), d_flat)
        d_weight = tf.reshape(tf.matmul(left, right, transpose_a=True), weight_slice.shape)
        # The backward pass must not run ahead of the weights' gradients: they read much.
        [d_flat] = held_back([d_flat], [d_weight])
        dx = tf.matmul(d_flat, matrix(weight_slice, d_flat), transpose_b=not transposed)
        return [tf.reshape(dx, x_slice.shape), tf.cast(d_weight, weight_slice.dtype)]

    output = mtf.Shape([*rows, *out_dims])
    # A layout that splits in_dim leaves partial sums: only those over its first slice get the bias.
    added = [] if bias is None else [bias, mtf.range(x.mesh, in_dim, tf.int32)]
    [y] = kernel(
        forward,
        [x, weight, *added],
        [(output, x.dtype)],
        splittable=output.dims,
        summed_dims=[in_dim],
        gradient=None if added else gradient,
        differentiable=not added,
        name="matmul",
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
        return [*held_back(dys, [summed]), tf.cast(tf.reshape(summed, [-1]), xs[1].dtype)]

    [y] = kernel(
        lambda values, added: tf.nn.bias_add(values, tf.cast(added, values.dtype)),
        [x, bias],
        [(x.shape, x.dtype)],
        splittable=x.shape.dims,
        gradient=gradient,
        name="bias_add",
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
        product = tf.matmul(flat_x, _rounded(weight_slice, flat_x))
        return tf.reshape(product, [count, *x_slice.shape[0 if shared else 1 : -1], width])

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        x_slice, weight_slice = xs
        count = weight_slice.shape[0]
        flat_x, d_flat = flat(x_slice, 1 if shared else count), flat(dys[0], count)
        d_weight = tf.matmul(flat_x, d_flat, transpose_a=True)
        [d_flat] = held_back([d_flat], [d_weight])
        dx = tf.matmul(d_flat, _rounded(weight_slice, d_flat), transpose_b=True)
        if shared:
            dx = tf.reduce_sum(dx, 0)
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


def unstack(x: mtf.Tensor, dim: mtf.Dimension) -> list[mtf.Tensor]:
    """The parts of ``x`` [..., dim, last] along its last dimension but one, each [..., last]."""
    part = x.shape - dim
    return kernel(
        lambda values: tuple(tf.unstack(values, axis=-2)),
        [x],
        [(part, x.dtype)] * dim.size,
        splittable=part.dims,
        name="unstack",
        differentiable=False,
    )
