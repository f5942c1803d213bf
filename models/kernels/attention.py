"""Unscaled softmax attention over a masked window, in one kernel per slice.

The keys' dimension may be split: each slice attends to the keys that it holds and also returns
the logarithm of its normaliser, and the slices are merged by their share of the whole softmax
(the merge rule of blockwise attention: Milakov and Gimelshein 2018; Dao et al. 2022, section 3.1).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import tensorflow as tf

from models.kernels.attention_blocks import MASKED, Block, BlockAttention, Mixed, Scene, Window
from models.kernels.noise import Dropout
from models.kernels.operation import Slices, kernel
from utils.mesh_tensorflow import mtf

_SLOT_POSITIONS = 1 << 30  # of memory slots in the dropout's noise: beyond every real position


class MemorySlots(NamedTuple):
    """Learned keys and values that every query sees, each [memory_slots, heads, features_per_head].

    Source: Sukhbaatar et al. 2019 (all-attention), section 3.
    """

    keys: mtf.Tensor
    values: mtf.Tensor


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
    table: Optional[mtf.Tensor] = None,
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
        table: of relative positions, [heads, relative_buckets] float32; added to the scores of
            the sequence's keys by their distance.

    Returns:
        [batch, sequence, heads, features_per_head].
    """
    batch, sequence, heads, _ = queries.shape.dims
    memory = keys.shape.dims[1]
    mesh = queries.mesh
    slot_count = slots.keys.shape.dims[0].size if slots is not None else 0
    drops = dropout is not None and rate > 0.0
    learned = [*(slots or ()), *([] if table is None else [table])]

    pieces = mtf.Dimension(memory.name, key_slices)
    exact = queries.dtype if key_slices == 1 else tf.float32  # to be added up

    def prepared(slices: Slices) -> tuple[BlockAttention, list[tf.Tensor], Scene]:
        """The attention of a slice; queries, keys and values; what is seen."""
        q, k, v = (tf.transpose(x, [0, 2, 1, 3]) for x in slices[:3])
        query_positions, key_positions = slices[3:5]
        rest = list(slices[5:])
        slot_bias = tf.constant(0.0)
        if slot_count:
            k, v = with_slots(rest.pop(0), k), with_slots(rest.pop(0), v)
            # The slice that holds the first position has the slots; elsewhere they are hidden.
            slot_bias = tf.where(tf.equal(key_positions[0], 0), 0.0, MASKED)
            numbers = tf.range(_SLOT_POSITIONS, _SLOT_POSITIONS + slot_count)
            key_positions = tf.concat([numbers, key_positions], 0)
        table_slice = None if table is None else rest.pop(0)
        length, key_count = query_positions.shape.as_list()[0], slices[4].shape.as_list()[0]
        # Which keys a block may leave out is known where queries and keys are whole.
        whole = length == sequence.size and key_count == memory.size
        blocks = window.blocks(length) if whole else [Block(0, length, 0, key_count)]
        attention = BlockAttention(window, rate if drops else 0.0, tuple(blocks), slot_count)
        scene = Scene(query_positions, key_positions, slot_bias, rest, table_slice)
        return attention, [q, k, v], scene

    def forward(*slices: tf.Tensor) -> Any:
        attention, (q, k, v), scene = prepared(slices)
        mixed, *statistics = attention(q, k, v, scene)
        mixed = tf.cast(tf.transpose(mixed, [0, 2, 1, 3]), exact)
        return tuple(_of_slice(x) for x in (mixed, *statistics))

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        # Else TensorFlow would keep what the forward pass made of them, block by block.
        with tf.control_dependencies([dys[0]]):
            xs = [*map(tf.identity, xs[:3]), *xs[3:]]
        attention, (q, k, v), scene = prepared(xs)
        mixed, upstream = (tf.transpose(x[..., 0], [0, 2, 1, 3]) for x in (ys[0], dys[0]))
        made = Mixed(mixed, *(x[..., 0] for x in ys[1:]))
        # What is done with the two numbers of a row hangs on largest + log(total) alone.
        d_normalizer = None if dys[2] is None else dys[2][..., 0] * made.total
        upstream = tf.cast(upstream, q.dtype)
        d_q, *d_kv = attention.gradient(q, k, v, scene, made, upstream, d_normalizer)
        d_kv, d_learned = d_kv[:2], d_kv[2:]
        if slot_count:
            d_slots = [_slot_gradient(x[:, :, :slot_count], xs[5].dtype) for x in d_kv]
            d_kv, d_learned = [x[:, :, slot_count:] for x in d_kv], [*d_slots, *d_learned]
        gradients = [tf.transpose(x, [0, 2, 1, 3]) for x in (d_q, *d_kv)]
        return [*gradients, None, None, *d_learned, *[None] * (len(xs) - 5 - len(d_learned))]

    inputs = [
        queries,
        keys,
        values,
        mtf.range(mesh, sequence, tf.int32),
        mtf.range(mesh, memory, tf.int32),
        *learned,
    ]
    if dropout is not None and drops:
        inputs += [dropout.key(label), dropout.positions(batch), dropout.positions(heads)]
    rows = mtf.Shape([batch, heads, sequence, pieces])
    mixed, largest, total = kernel(
        forward,
        inputs,
        [(queries.shape + pieces, exact), (rows, tf.float32), (rows, tf.float32)],
        splittable=[batch, heads, sequence, memory],
        name="attention",
        gradient=gradient,
        keeps_outputs=True,
        multiply_adds=2 * queries.shape.size * (memory.size + slot_count),
    )
    if key_slices == 1:
        return mtf.reshape(mixed, queries.shape)
    share = mtf.softmax(largest + mtf.log(total), pieces)
    return mtf.cast(mtf.einsum([mixed, share], queries.shape), queries.dtype)


def _of_slice(x: tf.Tensor) -> tf.Tensor:
    """One of the pieces that a split makes, whose number is the last dimension."""
    return x[..., tf.newaxis]


def _slot_gradient(gradient: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """[b, h, m, f], one for each row, to that of the slots that all rows share: [m, h, f]."""
    return tf.cast(tf.transpose(tf.reduce_sum(gradient, 0), [1, 0, 2]), dtype)
