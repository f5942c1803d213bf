"""The feed-forward layer."""

from __future__ import annotations

from configs.schema import Config
from models.activations import activation
from models.dimensions import Dimensions
from models.kernels.matmul import bias_add, matmul
from models.weights import Weights
from utils.mesh_tensorflow import mtf

KERNEL_STDDEV = 0.02  # GPT-2 paper's code


def dense(
    weights: Weights,
    x: mtf.Tensor,
    in_dim: mtf.Dimension,
    out_dim: mtf.Dimension,
    name: str,
    stddev: float,
) -> mtf.Tensor:
    """``x`` [..., in_dim] times ``<name>/kernel`` plus ``<name>/bias``: [..., out_dim]."""
    kernel = weights.normal(f"{name}/kernel", [in_dim, out_dim], stddev)
    bias = weights.zeros(f"{name}/bias", [out_dim])
    return bias_add(matmul(x, kernel, out_dim), bias)


def feed_forward_layer(
    weights: Weights, x: mtf.Tensor, dims: Dimensions, config: Config, layer: int
) -> mtf.Tensor:
    """Two dense layers with ``config.activation_function`` between them.

    Args:
        weights: of the model.
        x: [batch, sequence, embd].
        dims: of the model.
        config: scale_by_in multiplies both kernels' initial values by 1/sqrt(inputs);
            scale_by_depth multiplies the second's by 1/sqrt(n_layer) (GPT-2 paper, 2.3).
        layer: number of the layer, from 0.

    Returns:
        [batch, sequence, embd].
    """
    scope = f"h{layer}/mlp/conv1d_main"

    def stddev(in_dim: mtf.Dimension) -> float:
        return KERNEL_STDDEV * (in_dim.size**-0.5 if config.scale_by_in else 1.0)

    hidden_dim = dims.intermediate_expanded
    hidden = dense(weights, x, dims.embd, hidden_dim, f"{scope}/c_fc", stddev(dims.embd))
    hidden = activation(hidden, config.activation_function)
    depth_scale = config.n_layer**-0.5 if config.scale_by_depth else 1.0
    return dense(
        weights, hidden, hidden_dim, dims.embd, f"{scope}/c_proj", stddev(hidden_dim) * depth_scale
    )
