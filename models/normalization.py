"""Normalisation layers."""

from __future__ import annotations

from models.weights import Weights
from utils.mesh_tensorflow import mtf

EPSILON = 1e-5  # GPT-2's and GPT-Neo's


def layer_norm(weights: Weights, x: mtf.Tensor, dim: mtf.Dimension, name: str) -> mtf.Tensor:
    """Layer normalisation over ``dim`` with gain ``<name>/g`` and bias ``<name>/b``.

    Args:
        weights: of the model.
        x: [..., dim, ...], floating; ``dim`` may be split.
        dim: the normalised dimension.
        name: scope of the two variables.

    Returns:
        As ``x``.

    Source: Ba, Kiros and Hinton 2016, equation 4; biased variance.
    """
    gain = weights.ones(f"{name}/g", [dim])
    bias = weights.zeros(f"{name}/b", [dim])
    centered = x - mtf.reduce_mean(x, reduced_dim=dim)
    variance = mtf.reduce_mean(mtf.square(centered), reduced_dim=dim)
    return centered * mtf.rsqrt(variance + EPSILON) * gain + bias
