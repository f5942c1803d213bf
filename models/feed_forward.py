"""The feed-forward layer."""

from __future__ import annotations

from typing import Optional

from configs.schema import Config
from models.activations import activation
from models.dimensions import Dimensions
from models.initial_values import weight
from models.products import product
from models.weights import Weights
from utils.mesh_tensorflow import mtf


def feed_forward_layer(
    weights: Weights,
    x: mtf.Tensor,
    dims: Dimensions,
    config: Config,
    layer: int,
    name: str,
    beside: Optional[mtf.Tensor] = None,
) -> mtf.Tensor:
    """Two dense layers with ``config.activation_function`` between them.

    With ``mlp_glu`` a third one, ``c_gate``, gates the hidden layer: the activation is applied to
    the gate, and the hidden layer is multiplied by it.

    Args:
        weights: of the model.
        x: [batch, sequence, embd].
        dims: of the model.
        config: activation_function, mlp_glu and what ``initial_values`` reads.
        layer: number of the layer, from 0.
        name: scope of its variables within the layer.
        beside: [batch, sequence, embd] that is added to what comes out; see ``product``.

    Returns:
        [batch, sequence, embd].

    Source: Vaswani et al. 2017, section 3.3; gating: Shazeer 2020 (GLU variants), equation 6.
    """
    scope = f"{weights.layer_scope(layer)}/{name}/conv1d_main"

    def dense(
        x: mtf.Tensor,
        out_dim: mtf.Dimension,
        part: str,
        name: str,
        beside: Optional[mtf.Tensor] = None,
    ) -> mtf.Tensor:
        in_dim = x.shape.dims[-1]
        kernel = weight(weights, config, part, f"{scope}/{name}/kernel", [in_dim, out_dim])
        bias = weights.zeros(f"{scope}/{name}/bias", [out_dim])
        return product(weights, x, kernel, bias, beside=beside)

    hidden_dim = dims.intermediate_expanded
    hidden = dense(x, hidden_dim, "dense", "c_fc")
    if config.mlp_glu:
        gate = dense(x, hidden_dim, "dense", "c_gate")
        hidden *= activation(gate, config.activation_function)
    else:
        hidden = activation(hidden, config.activation_function)
    return dense(hidden, dims.embd, "dense output", "c_proj", beside)
