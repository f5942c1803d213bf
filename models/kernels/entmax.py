"""Entmax: probabilities of which most are exactly 0, and the loss that goes with them.

With alpha = 1.3 and x = (alpha - 1) z the probabilities of logits z are

    p_i = max(x_i - tau, 0) ^ (1 / (alpha - 1)), with the threshold tau for which they add up to 1.

Source: Peters, Niculae and Martins 2019 (Sparse sequence-to-sequence models), equations 8 to 10,
where tau is found by bisection; the loss is that of Blondel, Martins and Niculae 2020 (Learning
with Fenchel-Young losses). ``-log p``, GPT-Neo's loss, is infinite for a target of probability 0.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.kernels.operation import Slices, kernel
from utils.mesh_tensorflow import mtf

ALPHA = 1.3  # GPT-Neo's; 1 is softmax, 2 is sparsemax
_POWER = 1.0 / (ALPHA - 1.0)
_STEPS = 10  # six reach float32's precision with 50,000 logits of any kind that was tried


def entmax(logits: tf.Tensor) -> tf.Tensor:
    """Entmax probabilities along the last dimension.

    The threshold is the root of |max(x - tau, 0)| - 1, with a norm of order 1 / (alpha - 1).
    It falls and is convex in tau, and is not negative at tau = max(x) - 1, so Newton's iterates
    from there rise to the root without overshooting. For logits that are all equal the norm is
    linear and one step is enough; bisection needs a pass over the logits per bit.

    Args:
        logits: [..., count] floating.

    Returns:
        [..., count] float32; each row adds up to 1.
    """
    logits = tf.cast(logits, tf.float32)
    # Only differences count, so the largest is put at 0.
    x = (ALPHA - 1.0) * (logits - tf.reduce_max(logits, -1, keepdims=True))
    threshold = -tf.ones_like(x[..., :1])
    for _ in range(_STEPS):
        above = tf.maximum(x - threshold, 0.0)
        slopes = above ** (_POWER - 1.0)
        total = tf.reduce_sum(slopes * above, -1, keepdims=True)
        # (norm - 1) / |d norm / d tau|, where norm = total ^ (alpha - 1).
        step = (total - total ** (2.0 - ALPHA)) / tf.reduce_sum(slopes, -1, keepdims=True)
        threshold += step
    powers = tf.maximum(x - threshold, 0.0) ** _POWER
    return powers / tf.reduce_sum(powers, -1, keepdims=True)


def log_entmax(logits: tf.Tensor) -> tf.Tensor:
    """Logarithms of the entmax probabilities; the least float32 where they are 0."""
    probabilities = entmax(logits)
    possible = probabilities > 0.0
    logs = tf.math.log(tf.where(possible, probabilities, tf.ones_like(probabilities)))
    return tf.where(possible, logs, logs.dtype.min)


def fenchel_young_loss(logits: mtf.Tensor, targets: mtf.Tensor, vocab: mtf.Dimension) -> mtf.Tensor:
    """Loss (p - y) z + H(p) of logits z, with p = entmax(z) and y one at the target.

    H(p) = sum(p - p ^ alpha) / (alpha (alpha - 1)) is Tsallis' entropy. The loss is convex, never
    negative, finite, and 0 where all probability is on the target; its gradient is p - y. For
    alpha = 1 it would be the cross entropy.

    Args:
        logits: [..., vocab] floating; the vocabulary must not be split.
        targets: [...] int32; one outside [0, vocab) has no y.
        vocab: the vocabulary's dimension.

    Returns:
        [...] float32.
    """

    def locate(targets_slice: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Flat targets, 0 in place of those that have no y, and 1.0 for those that have."""
        flat = tf.reshape(targets_slice, [-1])
        found = tf.logical_and(flat >= 0, flat < vocab.size)
        return tf.where(found, flat, tf.zeros_like(flat)), tf.cast(found, tf.float32)

    def forward(z: tf.Tensor, targets_slice: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        p = entmax(z)
        flat = tf.cast(tf.reshape(z, [-1, vocab.size]), tf.float32)
        flat -= tf.reduce_max(flat, -1, keepdims=True)  # for precision; p - y adds up to 0
        flat_p = tf.reshape(p, flat.shape)
        entropy = (flat_p - flat_p**ALPHA) / (ALPHA * (ALPHA - 1.0))
        ids, found = locate(targets_slice)
        of_targets = tf.gather(flat, ids, batch_dims=1) * found
        loss = tf.reduce_sum(flat_p * flat + entropy, -1) - of_targets
        return tf.reshape(loss, targets_slice.shape), p

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        z, targets_slice = xs
        dloss = tf.reshape(dys[0], [-1])
        ids, found = locate(targets_slice)
        where = tf.stack([tf.range(tf.shape(ids)[0]), ids], 1)
        dz = tf.reshape(ys[1], [-1, vocab.size]) * dloss[:, tf.newaxis]
        dz = tf.tensor_scatter_nd_sub(dz, where, dloss * found)
        return [tf.cast(tf.reshape(dz, z.shape), z.dtype), None]

    rows = logits.shape - vocab
    loss, _ = kernel(
        forward,
        [logits, targets],
        [(rows, tf.float32), (logits.shape, tf.float32)],
        splittable=rows.dims,
        gradient=gradient,
        keeps_outputs=True,
        name="entmax_loss",
    )
    return loss
