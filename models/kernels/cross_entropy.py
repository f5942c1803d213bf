"""The two numbers per token that a softmax cross entropy needs, without a one-hot.

For logits x and target t the loss is log sum exp(x) - x[t]; both terms are computed here, so
that a z-loss on the first stays differentiable. The vocabulary may be split.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.kernels.operation import Slices, kernel
from utils.mesh_tensorflow import mtf


def log_normalizer_and_target(
    logits: mtf.Tensor, targets: mtf.Tensor, vocab: mtf.Dimension, vocab_slices: int
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Logarithm of the softmax's normaliser, and the logit of the target.

    Args:
        logits: [batch, sequence, vocab], floating.
        targets: [batch, sequence], int32; one outside [0, vocab) has the logit 0.
        vocab: the vocabulary's dimension.
        vocab_slices: pieces into which the layout splits it.

    Returns:
        (log_normalizer, target_logit), each [batch, sequence] float32.
    """
    pieces = mtf.Dimension(vocab.name, vocab_slices)

    def locate(
        targets_slice: tf.Tensor, held: tf.Tensor, count: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Flat local ids, 0 for targets of other slices, and which are local."""
        local = tf.reshape(targets_slice - held[0], [-1])
        found = tf.logical_and(local >= 0, local < count)
        return tf.where(found, local, tf.zeros_like(local)), tf.cast(found, tf.float32)

    def forward(x: tf.Tensor, targets_slice: tf.Tensor, held: tf.Tensor) -> tuple[tf.Tensor, ...]:
        flat = tf.cast(tf.reshape(x, [-1, x.shape[-1]]), tf.float32)
        local, found = locate(targets_slice, held, x.shape[-1])
        probabilities = tf.nn.softmax(flat)
        # log p = x - log Z holds for every entry; the largest is the one that cannot underflow.
        # So the softmax, which the gradient needs anyway, also yields the normaliser.
        log_normalizer = tf.reduce_max(flat, -1) - tf.math.log(tf.reduce_max(probabilities, -1))
        rows = targets_slice.shape
        return (
            tf.reshape(log_normalizer, [*rows, 1]),
            tf.reshape(tf.gather(flat, local, batch_dims=1) * found, rows),
            tf.reshape(probabilities, x.shape),
        )

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        x, targets_slice, held = xs
        count = x.shape[-1]
        local, found = locate(targets_slice, held, count)
        dx = tf.reshape(ys[2], [-1, count])
        if dys[0] is not None:
            dx *= tf.reshape(dys[0], [-1, 1])
        else:
            dx = tf.zeros_like(dx)
        if dys[1] is not None:
            where = tf.stack([tf.range(tf.shape(local)[0]), local], 1)
            dx = tf.tensor_scatter_nd_add(dx, where, tf.reshape(dys[1], [-1]) * found)
        return [tf.cast(tf.reshape(dx, x.shape), x.dtype), None, None]

    rows = logits.shape - vocab
    partial, target_logit, _ = kernel(
        forward,
        [logits, targets, mtf.range(logits.mesh, vocab, tf.int32)],
        [(rows + pieces, tf.float32), (rows, tf.float32), (logits.shape, tf.float32)],
        splittable=rows.dims,
        summed_dims=[vocab],
        gradient=gradient,
        keeps_outputs=True,
        name="cross_entropy",
    )
    if vocab_slices == 1:
        return mtf.reshape(partial, rows), target_logit
    return mtf.reduce_logsumexp(partial, pieces), target_logit
