"""Normalisation layers."""

from __future__ import annotations

from configs.schema import Config
from models.kernels.normalization import normalize
from models.weights import Weights
from utils.mesh_tensorflow import mtf

EPSILON = 1e-5  # GPT-2's, GPT-Neo's and GPT-J's


def layer_norm(weights: Weights, x: mtf.Tensor, dim: mtf.Dimension, name: str) -> mtf.Tensor:
    """Layer normalisation over ``dim`` with gain ``<name>/g`` and bias ``<name>/b``.

    Args:
        weights: of the model.
        x: [..., dim], floating; every dimension may be split.
        dim: the normalised dimension.
        name: scope of the two variables.

    Returns:
        As ``x``.

    Source: Ba, Kiros and Hinton 2016, equation 4; biased variance.
    """
    gain = weights.ones(f"{name}/g", [dim])
    bias = weights.zeros(f"{name}/b", [dim])
    return normalize(x, gain, bias, dim, EPSILON)


def scale_norm(weights: Weights, x: mtf.Tensor, dim: mtf.Dimension, name: str) -> mtf.Tensor:
    """Normalisation with one learned gain ``<name>/g`` for the whole vector; as ``layer_norm``.

    Source: Nguyen and Salazar 2019, section 2.2, with GPT-Neo's differences: the mean is
    subtracted, and the length is taken as the root of the mean square.
    """
    gain = weights.ones(f"{name}/g", [])
    return normalize(x, gain, None, dim, EPSILON)


def norm_of(
    config: Config, weights: Weights, x: mtf.Tensor, dim: mtf.Dimension, name: str
) -> mtf.Tensor:
    """The norm that ``config.norm`` names; arguments else as ``layer_norm``.

    ``rmsnorm`` and ``scalenorm`` divide a vector by its length and start with gains of
    sqrt(features): one for each feature, or one for all.

    Source: Zhang and Sennrich 2019 (RMSNorm), equation 4; Nguyen and Salazar 2019 (ScaleNorm),
    equation 4; epsilon, initial gains and biases are those of Mesh Transformer JAX.
    """
    kind, _, variant = config.norm.partition("-")
    if kind == "layernorm":
        if not variant:
            return layer_norm(weights, x, dim, name)
        return normalize(x, weights.ones(f"{name}/g", [dim]), None, dim, EPSILON)
    gain_dims = [dim] if kind == "rmsnorm" else []
    gain = weights.constant(f"{name}/g", gain_dims, dim.size**0.5)
    bias = weights.zeros(f"{name}/b", [dim]) if variant == "bias" else None
    return normalize(x, gain, bias, dim, EPSILON, centers=False)


def rezero(weights: Weights, x: mtf.Tensor, name: str) -> mtf.Tensor:
    """``x`` times the learned scalar ``<name>/g``, which starts at 0.

    Source: Bachlechner et al. 2020 (ReZero), equation 1.
    """
    gain = weights.zeros(f"{name}/g", [])
    return x * mtf.cast(gain, x.dtype)
