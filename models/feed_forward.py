"""The feed-forward layer."""

from __future__ import annotations

from configs.schema import Config
from models.activations import activation
from models.dimensions import Dimensions
from models.products import product
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
    return product(weights, x, kernel, bias)


def feed_forward_layer(
    weights: Weights, x: mtf.Tensor, dims: Dimensions, config: Config, layer: int, name: str
) -> mtf.Tensor:
    """Two dense layers with ``config.activation_function`` between them.

    With ``mlp_glu`` a third one, ``c_gate``, gates the hidden layer: the activation is applied to
    the gate, and the hidden layer is multiplied by it.

    Args:
        weights: of the model.
        x: [batch, sequence, embd].
        dims: of the model.
        config: scale_by_in multiplies both kernels' initial values by 1/sqrt(inputs);
            scale_by_depth multiplies the second's by 1/sqrt(n_layer) (GPT-2 paper, 2.3).
        layer: number of the layer, from 0.
        name: scope of its variables within the layer.

    Returns:
        [batch, sequence, embd].

    Source: Vaswani et al. 2017, section 3.3; gating: Shazeer 2020 (GLU variants), equation 6.
    """
    scope = f"{weights.layer_scope(layer)}/{name}/conv1d_main"

    def stddev(in_dim: mtf.Dimension) -> float:
        return KERNEL_STDDEV * (in_dim.size**-0.5 if config.scale_by_in else 1.0)

    hidden_dim = dims.intermediate_expanded

    def expand(part: str) -> mtf.Tensor:
        return dense(weights, x, dims.embd, hidden_dim, f"{scope}/{part}", stddev(dims.embd))

    hidden = expand("c_fc")
    if config.mlp_glu:
        hidden *= activation(expand("c_gate"), config.activation_function)
    else:
        hidden = activation(hidden, config.activation_function)
    depth_scale = config.n_layer**-0.5 if config.scale_by_depth else 1.0
    return dense(
        weights, hidden, hidden_dim, dims.embd, f"{scope}/c_proj", stddev(hidden_dim) * depth_scale
    )
