"""Losses of a language model."""

from __future__ import annotations

from typing import NamedTuple

from models.dimensions import Dimensions
from models.kernels.cross_entropy import log_normalizer_and_target
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf


class TokenLoss(NamedTuple):
    """Losses per token, each [batch, sequence] float32, in nats.

    Attributes:
        total: what is trained on: cross entropy plus z-loss.
        cross_entropy: -log p(target).
    """

    total: mtf.Tensor
    cross_entropy: mtf.Tensor


def softmax_cross_entropy(
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    dims: Dimensions,
    mesh_layout: MeshLayout,
    z_loss: float,
) -> TokenLoss:
    """Softmax cross entropy with a penalty on the normaliser.

    Args:
        logits: [batch, sequence, vocab].
        targets: [batch, sequence] int32.
        dims: of the model.
        mesh_layout: how the graph will be split.
        z_loss: weight of log(Z)^2.

    Source: z-loss from Mesh TensorFlow's softmax_cross_entropy_with_logits; later described in
    Chowdhery et al. 2022 (PaLM), section 5.
    """
    log_normalizer, target_logit = log_normalizer_and_target(
        logits, targets, dims.vocab, mesh_layout.slices(dims.vocab)
    )
    cross_entropy = log_normalizer - target_logit
    if z_loss == 0.0:
        return TokenLoss(cross_entropy, cross_entropy)
    return TokenLoss(cross_entropy + mtf.square(log_normalizer) * z_loss, cross_entropy)
