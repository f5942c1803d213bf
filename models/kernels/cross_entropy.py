"""The two numbers per token that a softmax cross entropy needs, without a one-hot.

For logits x and target t the loss is log sum exp(x) - x[t]; both terms are computed here, so
that a z-loss on the first stays differentiable. The vocabulary may be split.
"""

from __future__ import annotations

import tensorflow as tf

from models.kernels.operation import kernel
from utils.mesh_tensorflow import mtf


def log_normalizer_and_target(
    logits: mtf.Tensor, targets: mtf.Tensor, vocab: mtf.Dimension, vocab_slices: int
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Logarithm of the softmax's normaliser, and the logit of the target.

    Args:
        logits: [batch, sequence, vocab], floating.
        targets: [batch, sequence], int32, each within [0, vocab).
        vocab: the vocabulary's dimension.
        vocab_slices: pieces into which the layout splits it.

    Returns:
        (log_normalizer, target_logit), each [batch, sequence] float32.
    """
    pieces = mtf.Dimension(vocab.name, vocab_slices)

    def local_targets(targets_slice: tf.Tensor, held: tf.Tensor, count: int):
        local = targets_slice - held[0]
        found = tf.logical_and(local >= 0, local < count)
        return tf.where(found, local, tf.zeros_like(local)), found

    def forward(x: tf.Tensor, targets_slice: tf.Tensor, held: tf.Tensor):
        x = tf.cast(x, tf.float32)
        local, found = local_targets(targets_slice, held, x.shape[-1])
        target_logit = tf.gather(x, local, batch_dims=2) * tf.cast(found, tf.float32)
        return tf.reduce_logsumexp(x, -1, keepdims=True), target_logit

    def gradient(xs, ys, dys):
        x, targets_slice, held = xs
        d_normalizer, d_target = dys
        count = x.shape[-1]
        local, found = local_targets(targets_slice, held, count)
        dx = tf.zeros_like(x, tf.float32)
        if d_normalizer is not None:
            dx = tf.exp(tf.cast(x, tf.float32) - ys[0]) * d_normalizer
        if d_target is not None:
            flat = tf.reshape(dx, [-1, count])
            rows = tf.range(tf.shape(flat)[0])
            where = tf.stack([rows, tf.reshape(local, [-1])], 1)
            updates = tf.reshape(d_target * tf.cast(found, tf.float32), [-1])
            dx = tf.reshape(tf.tensor_scatter_nd_add(flat, where, updates), tf.shape(dx))
        return [tf.cast(dx, x.dtype), None, None]

    rows = logits.shape - vocab
    partial, target_logit = kernel(
        forward,
        [logits, targets, mtf.range(logits.mesh, vocab, tf.int32)],
        [(rows + pieces, tf.float32), (rows, tf.float32)],
        splittable=rows.dims,
        summed_dims=[vocab],
        gradient=gradient,
        name="cross_entropy",
    )
    if vocab_slices == 1:
        return mtf.reshape(partial, rows), target_logit
    return mtf.reduce_logsumexp(partial, pieces), target_logit
