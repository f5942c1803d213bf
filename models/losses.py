"""Losses of a language model."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from configs.schema import Config
from models.dimensions import Dimensions
from models.gpt import GPT
from models.kernels.cross_entropy import log_normalizer_and_target
from models.kernels.entmax import fenchel_young_loss
from models.kernels.head_loss import head_loss
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

IGNORED = -1  # as a label: the position does not count


class TokenLoss(NamedTuple):
    """Losses per token, each [batch, sequence] float32; 0 where the label is IGNORED.

    Attributes:
        total: what is trained on: cross entropy plus z-loss in nats, or the entmax loss.
        cross_entropy: -log p(target) in nats, p the softmax of the logits.
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


def entmax_loss(logits: mtf.Tensor, targets: mtf.Tensor, dims: Dimensions) -> mtf.Tensor:
    """Entmax loss per token, [batch, sequence] float32; arguments as softmax_cross_entropy.

    A vocabulary that is split is gathered first: the threshold of entmax hangs on all logits of a
    token, and finding it slice by slice would take one reduction over the mesh per iteration.
    """
    whole = mtf.Dimension("whole_vocab", dims.vocab.size)  # no layout splits it
    gathered = mtf.replace_dimensions(logits, dims.vocab, whole)
    return fenchel_young_loss(gathered, targets, whole) * counted(targets)


def training_loss(
    model: GPT, hidden: mtf.Tensor, targets: mtf.Tensor, tokens: mtf.Tensor
) -> mtf.Tensor:
    """The loss that the config trains on, without those of single layers: float32 scalar.

    Args:
        model: dims, layout and config are its own.
        hidden: [batch, sequence, embd], what the head reads.
        targets: [batch, sequence] int32, each an id or IGNORED.
        tokens: float32 scalar, by which the sum over tokens is divided.
    """
    config = model.config
    if config.entmax_loss:
        losses = entmax_loss(model.logits(hidden), targets, model.dims)
        return mtf.reduce_sum(losses) / tokens
    head = model.head(hidden)
    return head_loss(
        head.inputs,
        head.weight,
        head.bias,
        targets,
        counted(targets) / tokens,
        model.dims.vocab,
        config.z_loss,
    )


def evaluation_losses(
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    dims: Dimensions,
    mesh_layout: MeshLayout,
    config: Config,
) -> TokenLoss:
    """The loss that the config trains on, and the cross entropy of the softmax.

    Entmax gives some tokens the probability 0, so its own cross entropy is infinite as soon as one
    of them occurs. With ``entmax_loss`` the cross entropy is therefore, as ever, that of the
    softmax of the logits, from which texts are drawn unless asked otherwise: finite, and
    comparable with other models, though not what was trained.
    """
    softmax = softmax_cross_entropy(logits, targets, dims, mesh_layout, config.z_loss)
    if not config.entmax_loss:
        return softmax
    return TokenLoss(entmax_loss(logits, targets, dims), softmax.cross_entropy)
