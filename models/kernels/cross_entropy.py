"""The numbers per token that a softmax cross entropy needs, without a one-hot.

For logits x and target t the loss is log sum exp(x) - x[t]. The vocabulary may be split. Training
takes ``head_loss.py``, which makes its logits a chunk at a time; this is for whoever has them.
"""

from __future__ import annotations

import tensorflow as tf

from models.kernels.operation import kernel
from utils.mesh_tensorflow import mtf


def statistics(
    logits: tf.Tensor, targets: tf.Tensor, ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """What one slice of the vocabulary knows of each token.

    Args:
        logits: [..., n], floating.
        targets: [...] int32; one that is not in ``ids`` has the logit 0.
        ids: [n] int32, the slice's part of the vocabulary.

    Returns:
        (largest logit, sum of exp(logit - largest), logit of the target), each [...] float32.
    """
    scores = tf.cast(logits, tf.float32)
    largest = tf.reduce_max(scores, -1)
    total = tf.reduce_sum(tf.exp(scores - largest[..., tf.newaxis]), -1)
    is_target = tf.equal(targets[..., tf.newaxis], ids)
    return largest, total, tf.reduce_sum(tf.where(is_target, scores, tf.zeros_like(scores)), -1)


def log_normalizer_and_target(
    logits: mtf.Tensor, targets: mtf.Tensor, vocab: mtf.Dimension, vocab_slices: int
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Logarithm of the softmax's normaliser, and the logit of the target; without a gradient.

    Args:
        logits: [batch, sequence, vocab], floating.
        targets: [batch, sequence], int32; one outside [0, vocab) has the logit 0.
        vocab: the vocabulary's dimension.
        vocab_slices: pieces into which the layout splits it.

    Returns:
        (log_normalizer, target_logit), each [batch, sequence] float32.
    """
    pieces = mtf.Dimension(vocab.name, vocab_slices)

    def forward(*slices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        largest, total, target = statistics(*slices)
        return (largest + tf.math.log(total))[..., tf.newaxis], target

    rows = logits.shape - vocab
    partial, target_logit = kernel(
        forward,
        [logits, targets, mtf.range(logits.mesh, vocab, tf.int32)],
        [(rows + pieces, tf.float32), (rows, tf.float32)],
        splittable=rows.dims,
        summed_dims=[vocab],
        name="cross_entropy",
        differentiable=False,
        fusion="cross_entropy",
    )
    if vocab_slices == 1:
        return mtf.reshape(partial, rows), target_logit
    return mtf.reduce_logsumexp(partial, pieces), target_logit


def most_likely(logits: mtf.Tensor, vocab: mtf.Dimension, vocab_slices: int) -> mtf.Tensor:
    """The entry with the largest logit, of equal ones the first; without a gradient.

    Args:
        logits: [batch, sequence, vocab], floating.
        vocab: the vocabulary's dimension.
        vocab_slices: pieces into which the layout splits it.

    Returns:
        [batch, sequence] int32.
    """
    pieces = mtf.Dimension(vocab.name, vocab_slices)

    def forward(scores: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        best = tf.argmax(scores, -1, output_type=tf.int32)
        largest = tf.cast(tf.reduce_max(scores, -1), tf.float32)
        return largest[..., tf.newaxis], tf.gather(ids, best)[..., tf.newaxis]

    rows = logits.shape - vocab
    largest, first = kernel(
        forward,
        [logits, mtf.range(logits.mesh, vocab, tf.int32)],
        [(rows + pieces, tf.float32), (rows + pieces, tf.int32)],
        splittable=rows.dims,
        summed_dims=[vocab],
        name="most_likely",
        differentiable=False,
    )
    if vocab_slices == 1:
        return mtf.reshape(first, rows)
    is_best = mtf.equal(largest, mtf.reduce_max(largest, output_shape=rows))
    beyond = mtf.constant(logits.mesh, vocab.size, first.shape, tf.int32)
    return mtf.reduce_min(mtf.where(is_best, first, beyond), output_shape=rows)
