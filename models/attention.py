"""The attention layer: projections, one of the attention types, output projection.

A new type is one line of ``attention_window`` (or, when it is no masked softmax, one function
beside ``masked_attention``), one of ``layer_caches.CACHE_KINDS`` and its name in
``configs.names.ATTENTION_TYPES``.
"""

from __future__ import annotations

from typing import Callable, Optional

from configs.schema import Config
from models.dimensions import Dimensions
from models.initial_values import weight
from models.kernels.attention import MemorySlots
from models.kernels.attention_blocks import Window
from models.kernels.matmul import bias_add
from models.kernels.rotary import rotary
from models.products import product, products
from models.weights import Weights
from utils.mesh_tensorflow import mtf

Attend = Callable[[mtf.Tensor, mtf.Tensor, mtf.Tensor, int], mtf.Tensor]
"""From queries, keys, values, each [batch, sequence, heads, features_per_head], and the number
of the layer to mixed values, dimensions as the queries."""


def attention_window(config: Config, layer: int) -> Window:
    """Which keys a query of layer ``layer`` sees."""
    radius = {"global": None, "local": config.local_attention_radius}
    return Window(config.causal, radius[config.attention_layers[layer]])


def memory_slots(weights: Weights, dims: Dimensions, layer: int) -> Optional[MemorySlots]:
    """A layer's learned keys and values ``mem_k`` and ``mem_v``; None when there are none."""
    if dims.memory_slots is None:
        return None
    scope = f"{weights.layer_scope(layer)}/attn/attention"
    shape = [dims.memory_slots, dims.heads, dims.features_per_head]
    stddev = dims.features_per_head.size**-0.5  # GPT-Neo's
    keys, values = (weights.normal(f"{scope}/{name}", shape, stddev) for name in ("mem_k", "mem_v"))
    return MemorySlots(keys, values)


def attention_layer(
    weights: Weights,
    x: mtf.Tensor,
    positions: mtf.Tensor,
    dims: Dimensions,
    config: Config,
    layer: int,
    attend: Attend,
) -> mtf.Tensor:
    """Multi-head attention with GPT-Neo's variables ``h<layer>/attn/{q,k,v,o}`` and biases.

    Args:
        weights: of the model.
        x: [batch, sequence, embd].
        positions: [sequence] or [batch, sequence] int32: where the queries stand.
        dims: of the model.
        config: attention_bias, scaled_attention, rotary_emb, rotary_dim, rotary_interleaved.
        layer: number of the layer, from 0.
        attend: mixes values by queries and keys.

    Returns:
        [batch, sequence, embd].

    Source: Vaswani et al. 2017, section 3.2.2. Without ``scaled_attention`` the
    1/sqrt(features_per_head) of the scores is folded into the query's initial values, as in Mesh
    TensorFlow's attention.
    """
    scope = f"{weights.layer_scope(layer)}/attn"
    joined = dims.heads_and_features
    heads = [dims.batch, dims.sequence, dims.heads, dims.features_per_head]

    scales = config.scaled_attention and config.attention_layers[layer] != "linear"
    parts = {"q": "projection" if scales else "folding query", "k": "projection", "v": "projection"}
    kernels = [
        weight(weights, config, part, f"{scope}/{name}", [dims.embd, joined])
        for name, part in parts.items()
    ]
    projected = products(weights, x, kernels, dims.projections)
    if config.attention_bias == "all":
        projected = [
            bias_add(y, weights.zeros(f"{scope}/compute_{name}_bias/{name}_b", [joined]))
            for name, y in zip(parts, projected)
        ]
    queries, keys, values = (mtf.reshape(y, mtf.Shape(heads)) for y in projected)
    if scales:
        queries *= dims.features_per_head.size**-0.5
    if config.rotary_emb:
        queries, keys = (
            rotary(y, positions, config.rotary_features, config.rotary_interleaved)
            for y in (queries, keys)
        )
    mixed = attend(queries, keys, values, layer)
    flat = mtf.reshape(mixed, mtf.Shape([dims.batch, dims.sequence, joined]))
    kernel = weight(weights, config, "attention output", f"{scope}/o", [joined, dims.embd])
    bias = None
    if config.attention_bias != "none":
        bias = weights.zeros(f"{scope}/compute_output_bias/o_b", [dims.embd])
    return product(weights, flat, kernel, bias)
