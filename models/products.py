"""Products of activations with the model's weights, in the form that suits the graph.

Training and evaluation read a weight as checkpoints hold it. Generation reads all weights for
every token; there products read them prepared (kernels/prepared.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import tensorflow as tf

from models.kernels.matmul import bias_add, matmul, unstack
from models.kernels.prepared import prepared, prepared_together
from models.weights import Weights
from utils.mesh_tensorflow import mtf


def product(
    weights: Weights,
    x: mtf.Tensor,
    kernel: mtf.Tensor,
    bias: Optional[mtf.Tensor] = None,
    looked_up: bool = False,
    beside: Optional[mtf.Tensor] = None,
) -> mtf.Tensor:
    """``x`` [..., in_dim] times ``kernel`` [in_dim, out_dim] or [out_dim, in_dim] plus ``bias``.

    Args:
        weights: of the model.
        x: floating.
        kernel: a variable.
        bias: [out_dim], or None.
        looked_up: whether something else reads the kernel too.
        beside: [..., out_dim] that is added; when it and the product are both partial sums over
            the same mesh axes, they are added up over the mesh together.

    Returns:
        [..., out_dim].
    """
    in_dim = x.shape.dims[-1]
    [out_dim] = [dim for dim in kernel.shape.dims if dim != in_dim]
    form = for_products(weights, kernel, in_dim, x.dtype, looked_up)
    fuses_bias = bias is not None and weights.prepares
    y = matmul(x, form, [out_dim], bias if fuses_bias else None)
    if beside is not None:
        y = beside + y  # before the bias, which needs the whole sum
    return y if bias is None or fuses_bias else bias_add(y, bias)


def products(
    weights: Weights, x: mtf.Tensor, kernels: Sequence[mtf.Tensor], number: mtf.Dimension
) -> Sequence[mtf.Tensor]:
    """``x`` [..., in_dim] times each of ``kernels`` [in_dim, out_dim]; prepared, all at once.

    Args:
        weights: of the model.
        x: floating.
        kernels: variables that nothing else reads.
        number: of the kernels; never split.
    """
    out_dim = kernels[0].shape.dims[-1]
    if not weights.prepares:
        return [matmul(x, kernel, [out_dim]) for kernel in kernels]
    together = prepared_together(kernels, number, x.dtype)
    return unstack(matmul(x, together, [number, out_dim]), number)


def for_products(
    weights: Weights,
    kernel: mtf.Tensor,
    in_dim: mtf.Dimension,
    dtype: tf.DType,
    looked_up: bool = False,
) -> mtf.Tensor:
    """``kernel`` as products of ``dtype`` read it: prepared, a matrix is [out_dim, in_dim].

    That order is the faster one for few rows on the CPU, and the one of the embedding, which the
    tied head reads without a copy.
    """
    turned = kernel.shape.ndims == 2 and kernel.shape[0] == in_dim
    if not weights.prepares or (dtype == kernel.dtype and not turned):
        return kernel
    return prepared(kernel, dtype, turned, releases=not looked_up)
