"""Unscaled softmax attention over a masked window, in one kernel per slice.

The keys' dimension may be split: each slice attends to the keys that it holds and also returns
the logarithm of its normaliser, and the slices are merged by their share of the whole softmax
(the merge rule of blockwise attention: Milakov and Gimelshein 2018; Dao et al. 2022, section 3.1).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import tensorflow as tf

from models.kernels.noise import Dropout, keep_mask
from models.kernels.operation import kernel
from utils.mesh_tensorflow import mtf

MASKED = -1e9  # added to scores that must not count; exp of it is 0 in float32 and bfloat16
_SLOT_POSITIONS = 1 << 30  # of memory slots in the dropout's noise: beyond every real position


class Window(NamedTuple):
    """Which keys a query sees.

    Attributes:
        causal: whether keys behind the query's own position are hidden.
        radius: of local attention: query i sees the keys j with |i - j| < radius; None for all.
    """

    causal: bool
    radius: Optional[int]

    def sees(self, query_positions: tf.Tensor, key_positions: tf.Tensor) -> tf.Tensor:
        """Boolean; the two int32 arguments are broadcast against each other."""
        ahead = query_positions - key_positions
        seen = ahead >= 0 if self.causal else tf.ones_like(ahead, tf.bool)
        if self.radius is not None:
            seen = tf.logical_and(seen, tf.abs(ahead) < self.radius)
        return seen


class MemorySlots(NamedTuple):
    """Learned keys and values that every query sees, each [memory_slots, heads, features_per_head].

    Source: Sukhbaatar et al. 2019 (all-attention), section 3.
    """

    keys: mtf.Tensor
    values: mtf.Tensor


def window_bias(query_positions: tf.Tensor, key_positions: tf.Tensor, window: Window) -> tf.Tensor:
    """What is added to the scores so that a query sees its own window only.

    Args:
        query_positions: int32 [sequence].
        key_positions: int32 [memory_length].
        window: what is seen.

    Returns:
        float32 [sequence, memory_length]: 0 for the keys that are seen, else MASKED.
    """
    seen = window.sees(query_positions[:, tf.newaxis], key_positions[tf.newaxis, :])
    return tf.where(seen, 0.0, MASKED)


def with_slots(slots: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Puts slots [m, h, f], the same for every row, before the rows [b, h, k, f]."""
    shared = tf.cast(tf.transpose(slots, [1, 0, 2]), rows.dtype)
    shared = tf.tile(shared[tf.newaxis], [tf.shape(rows)[0], 1, 1, 1])
    return tf.concat([shared, rows], 2)


def masked_attention(
    queries: mtf.Tensor,
    keys: mtf.Tensor,
    values: mtf.Tensor,
    window: Window,
    key_slices: int,
    dropout: Optional[Dropout],
    rate: float,
    label: str,
    slots: Optional[MemorySlots] = None,
) -> mtf.Tensor:
    """Softmax attention within a window.

    The scores are not scaled by 1/sqrt(features_per_head): in the GPT-Neo family the query's
    initializer carries that factor.

    Args:
        queries: [batch, sequence, heads, features_per_head].
        keys: [batch, memory_length, heads, features_per_head].
        values: as keys.
        window: which keys a query sees.
        key_slices: pieces into which the layout splits memory_length.
        dropout: of the attention weights; None outside training.
        rate: probability of dropping a weight.
        label: place in the model, for the dropout's noise.
        slots: learned keys and values beside those of the sequence.

    Returns:
        [batch, sequence, heads, features_per_head].
    """
    batch, sequence, heads, features = queries.shape.dims
    memory = keys.shape.dims[1]
    mesh = queries.mesh
    pieces = mtf.Dimension(memory.name, key_slices)
    slot_count = slots.keys.shape.dims[0].size if slots is not None else 0

    def attend(
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        query_positions: tf.Tensor,
        key_positions: tf.Tensor,
        *rest: tf.Tensor,
    ) -> Any:
        q, k, v = (tf.transpose(x, [0, 2, 1, 3]) for x in (q, k, v))
        bias = window_bias(query_positions, key_positions, window)
        if slot_count:
            k, v = with_slots(rest[0], k), with_slots(rest[1], v)
            # The slice that holds the first position has the slots; elsewhere they are hidden.
            hidden = tf.where(tf.equal(key_positions[0], 0), 0.0, MASKED)
            bias = tf.concat([tf.fill([bias.shape[0], slot_count], hidden), bias], 1)
            numbers = tf.range(_SLOT_POSITIONS, _SLOT_POSITIONS + slot_count)
            key_positions = tf.concat([numbers, key_positions], 0)
        noise = rest[2:] if slot_count else rest
        scores = tf.matmul(q, k, transpose_b=True)
        scores += tf.cast(bias, scores.dtype)
        weights = tf.nn.softmax(scores)
        if noise:
            key, batch_positions, head_positions = noise
            mask = keep_mask(
                key, [batch_positions, head_positions, query_positions, key_positions], rate
            )
            weights *= tf.cast(mask, weights.dtype)
        mixed = tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3])
        if key_slices == 1:
            return mixed
        log_normalizer = tf.reduce_logsumexp(tf.cast(scores, tf.float32), -1)
        return (
            tf.cast(mixed, tf.float32)[..., tf.newaxis],
            tf.transpose(log_normalizer, [0, 2, 1])[..., tf.newaxis],
        )

    inputs = [
        queries,
        keys,
        values,
        mtf.range(mesh, sequence, tf.int32),
        mtf.range(mesh, memory, tf.int32),
        *(slots or ()),
    ]
    if dropout is not None and rate > 0.0:
        inputs += [dropout.key(label), dropout.positions(batch), dropout.positions(heads)]
    splittable = [batch, heads, sequence, memory]
    multiply_adds = 2 * queries.shape.size * (memory.size + slot_count)
    if key_slices == 1:
        outputs = [(queries.shape, queries.dtype)]
        [mixed] = kernel(
            attend, inputs, outputs, splittable, "attention", multiply_adds=multiply_adds
        )
        return mixed
    partial = mtf.Shape([batch, sequence, heads, features, pieces])
    normalizers = mtf.Shape([batch, sequence, heads, pieces])
    mixed, log_normalizer = kernel(
        attend,
        inputs,
        [(partial, tf.float32), (normalizers, tf.float32)],
        splittable,
        "attention",
        multiply_adds=multiply_adds,
    )
    share = mtf.softmax(log_normalizer, pieces)
    return mtf.cast(mtf.einsum([mixed, share], queries.shape), queries.dtype)
