"""Losses of a language model."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from models.dimensions import Dimensions
from models.kernels.cross_entropy import log_normalizer_and_target
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf


IGNORED = -1  # as a label: the position does not count


class TokenLoss(NamedTuple):
    """Losses per token, each [batch, sequence] float32, in nats; 0 where the label is IGNORED.

    Attributes:
        total: what is trained on: cross entropy plus z-loss.
        cross_entropy: -log p(target).
    """

    total: mtf.Tensor
    cross_entropy: mtf.Tensor


def counted(targets: mtf.Tensor) -> mtf.Tensor:
    """1 where a label counts, 0 where it is IGNORED: float32 with the targets' dims."""
    return mtf.cast(mtf.not_equal(targets, IGNORED), tf.float32)


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
        targets: [batch, sequence] int32, each an id or IGNORED.
        dims: of the model.
        mesh_layout: how the graph will be split.
        z_loss: weight of log(Z)^2.

    Source: z-loss from Mesh TensorFlow's softmax_cross_entropy_with_logits; later described in
    Chowdhery et al. 2022 (PaLM), section 5.
    """
    log_normalizer, target_logit = log_normalizer_and_target(
        logits, targets, dims.vocab, mesh_layout.slices(dims.vocab)
    )
    counts = counted(targets)
    cross_entropy = (log_normalizer - target_logit) * counts
    if z_loss == 0.0:
        return TokenLoss(cross_entropy, cross_entropy)
    penalty = mtf.square(log_normalizer) * counts * z_loss
    return TokenLoss(cross_entropy + penalty, cross_entropy)
