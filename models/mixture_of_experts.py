"""The mixture-of-experts layer: a feed-forward layer of which each token uses two parts.

In training every expert takes a limited number of tokens of each sequence, so that all tensors
have a fixed size; what is beyond goes past it. Evaluation and generation compute every expert for
every token instead and weight what comes out: no token is left out, and nothing depends on what
else is in the batch or on how much of the text is fed at once.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import tensorflow as tf

from configs.mixture_keys import MixtureKeys
from configs.schema import Config
from models.activations import activation
from models.dimensions import Dimensions, ExpertDims
from models.kernels.matmul import expert_matmul
from models.kernels.noise import Dropout
from models.kernels.routing import Gating, assign_slots, combine, dispatch, top_2
from models.products import for_products, product
from models.weights import Weights
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf


class ExpertsOutput(NamedTuple):
    """What a layer makes of its tokens.

    Attributes:
        mixed: [batch, sequence, embd].
        auxiliary_loss: float32 scalar, the weighted load-balance loss; None outside training.
    """

    mixed: mtf.Tensor
    auxiliary_loss: Optional[mtf.Tensor]


def mixture_of_experts(
    weights: Weights,
    x: mtf.Tensor,
    dims: Dimensions,
    config: Config,
    mesh_layout: MeshLayout,
    layer: int,
    dropout: Optional[Dropout],
) -> ExpertsOutput:
    """Sends each token to its two best experts.

    Args:
        weights: of the model.
        x: [batch, sequence, embd].
        dims: of the model.
        config: moe_params.
        mesh_layout: how the graph will be split; the numbers do not depend on it.
        layer: number of the layer, from 0.
        dropout: of the training step; None outside training.

    Source: Lepikhin et al. 2021 (GShard), section 2.2, after Shazeer et al. 2017; names, initial
    values and defaults of the variables are those of Mesh TensorFlow's
    ``transformer_moe_layer_v1``, which GPT-Neo calls.
    """
    mixture = dims.mixture
    assert mixture is not None, "the config has no mixture of experts"
    scope = weights.layer_scope(layer)
    # Gating is float32 throughout: rounded gates choose worse (Fedus et al. 2022, section 2.4).
    logits = product(
        weights,
        mtf.cast(x, tf.float32),
        _kernel(weights, f"{scope}/top_2_gating", [], dims.embd, mixture.routes),
    )
    gating = top_2(logits)

    def expert_kernel(name: str, in_dim: mtf.Dimension, out_dim: mtf.Dimension) -> mtf.Tensor:
        kernel = _kernel(weights, f"{scope}/{name}", [mixture.experts], in_dim, out_dim)
        return for_products(weights, kernel, in_dim, x.dtype)

    experts = _Experts(
        first=expert_kernel("wi", dims.embd, mixture.hidden),
        second=expert_kernel("wo", mixture.hidden, dims.embd),
        activation=config.expert_activation,
    )
    batch = _batch_of_experts(dims, mixture, mesh_layout)
    params = config.moe_params
    if dropout is None:
        kept = _second_kept(gating, params, noise=None)
        gating = gating._replace(second_gate=gating.second_gate * kept)
        return ExpertsOutput(_weighted(x, gating, experts, mixture, batch), None)
    noise = dropout.uniform([dims.batch, dims.sequence], f"h{layer}/mlp/second_expert")
    kept = _second_kept(gating, params, noise)
    slots = assign_slots(gating.first, gating.second, kept, mixture.routes, mixture.capacity)
    slotted = dispatch(x, slots)
    taken = mtf.reshape(slotted, mtf.Shape([mixture.experts, batch, *slotted.shape.dims[2:]]))
    hidden = experts.hidden(taken)
    if params.moe_dropout_rate:
        hidden = dropout.over(batch)(hidden, params.moe_dropout_rate, f"h{layer}/mlp/experts")
    made = mtf.reshape(experts.output(hidden), slotted.shape)
    loss = _balance_loss(gating, params, mixture.routes, dims.sequence)
    return ExpertsOutput(combine(made, gating, slots), loss * params.moe_loss_coef)


def _kernel(
    weights: Weights,
    scope: str,
    experts: list[mtf.Dimension],
    in_dim: mtf.Dimension,
    out_dim: mtf.Dimension,
) -> mtf.Tensor:
    """``<scope>/kernel`` [experts, in_dim, out_dim], of variance 1 / inputs before truncation."""
    stddev = in_dim.size**-0.5
    return weights.truncated_normal(f"{scope}/kernel", [*experts, in_dim, out_dim], stddev)


class _Experts(NamedTuple):
    """The experts' two dense layers, without biases.

    Attributes:
        first: [experts, embd, hidden].
        second: [experts, hidden, embd].
        activation: name of the activation between them.
    """

    first: mtf.Tensor
    second: mtf.Tensor
    activation: str

    def hidden(self, x: mtf.Tensor) -> mtf.Tensor:
        """[(experts,) ..., embd] -> [experts, ..., hidden]."""
        return activation(expert_matmul(x, self.first, self.first.shape.dims[-1]), self.activation)

    def output(self, hidden: mtf.Tensor) -> mtf.Tensor:
        """[experts, ..., hidden] -> [experts, ..., embd]."""
        return expert_matmul(hidden, self.second, self.second.shape.dims[-1])


def _batch_of_experts(
    dims: Dimensions, mixture: ExpertDims, mesh_layout: MeshLayout
) -> mtf.Dimension:
    """The sequences' dimension in what experts work on.

    On the mesh axis of the batch, experts take the batch's place: processors exchange tokens
    (all-to-all). On another axis each processor keeps its sequences.
    """
    axes = dict(mesh_layout.rules)
    shared = axes.get(mixture.experts.name) == axes.get(dims.batch.name)
    return mixture.whole_batch if shared else dims.batch


def _second_kept(gating: Gating, params: MixtureKeys, noise: Optional[mtf.Tensor]) -> mtf.Tensor:
    """Where the second expert is used: 0 or 1, float32 [batch, sequence].

    Args:
        gating: of the tokens.
        params: policy and threshold.
        noise: [batch, sequence] float32, uniform in (0, 1); None outside training, where nothing
            is random and the policy ``random`` uses all.
    """
    gate = mtf.stop_gradient(gating.second_gate)
    policy, threshold = params.moe_second_policy_train, params.moe_second_threshold_train
    if policy == "none":
        return mtf.zeros_like(gate)
    if policy == "threshold":
        return mtf.to_float(mtf.greater(gate, threshold))
    if policy == "random" and noise is not None:
        return mtf.to_float(mtf.less(noise * threshold, gate))
    return mtf.ones_like(gate)


def _weighted(
    x: mtf.Tensor, gating: Gating, experts: _Experts, mixture: ExpertDims, batch: mtf.Dimension
) -> mtf.Tensor:
    """Every expert applied to x [batch, sequence, embd], added up with the gates as weights."""
    routes = mixture.routes
    gates = gating.first_gate * mtf.one_hot(gating.first, routes, dtype=tf.float32)
    gates += gating.second_gate * mtf.one_hot(gating.second, routes, dtype=tf.float32)
    # First the batch leaves its mesh axis, then the experts take it: see GPT._as_memory.
    own_batch = x.shape.dims[0]
    gates = mtf.replace_dimensions(gates, own_batch, batch)
    gates = mtf.replace_dimensions(gates, routes, mixture.experts)
    whole = mtf.replace_dimensions(x, own_batch, batch)
    made = mtf.cast(experts.output(experts.hidden(whole)), tf.float32)
    mixed = mtf.einsum([made, gates], output_shape=whole.shape)
    return mtf.cast(mtf.reshape(mixed, x.shape), x.dtype)


def _balance_loss(
    gating: Gating, params: MixtureKeys, routes: mtf.Dimension, sequence: mtf.Dimension
) -> mtf.Tensor:
    """1 when all experts are used alike, up to their number when one of them has all tokens.

    The share of tokens that choose an expert has no gradient; its mean probability has.

    Source: Shazeer et al. 2017 in the form of GShard (Lepikhin et al. 2021, equation 3), per
    sequence; the second places' part is Mesh TensorFlow's.
    """

    def balance(chosen: mtf.Tensor, probabilities: mtf.Tensor) -> mtf.Tensor:
        share = mtf.reduce_mean(chosen, reduced_dim=sequence)
        likely = mtf.reduce_mean(probabilities, reduced_dim=sequence)
        return mtf.reduce_mean(share * likely) * routes.size**2

    probabilities = gating.probabilities
    first = mtf.one_hot(gating.first, routes, dtype=tf.float32)
    loss = balance(first, probabilities)
    if params.moe_use_second_place_loss:
        second = mtf.one_hot(gating.second, routes, dtype=tf.float32)
        rest = probabilities * (1.0 - first)
        rest /= mtf.reduce_sum(rest, reduced_dim=routes) + 1e-9
        loss += 0.5 * balance(second, rest)
    return loss
