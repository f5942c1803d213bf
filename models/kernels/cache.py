"""Attention over a key-value cache that is written in place and read without a copy.

A cache is laid out [cache_blocks, batch, heads, cache_block, features_per_head]: blocks of
neighbouring positions come first, so that the filled part is a slice of the first dimension, which
TensorFlow reads where it is, and one position of one head is one row of a matrix, which
``InplaceUpdate`` writes where it is. Whole blocks are read; what lies behind a query is masked. So
shapes change once per block only, and with them the programs that oneDNN compiles for each shape.

XLA, which compiles what runs on TPUs, knows no such operation (it decides itself what to write in
place) and no slices whose size depends on values: there the rows are scattered and all of the
cache is read.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import tensorflow as tf

from models.dimensions import Dimensions
from models.kernels.attention import MemorySlots
from models.kernels.attention_blocks import MASKED, Window
from models.kernels.operation import kernel
from models.kernels.relative_positions import relative_bias
from utils.mesh_tensorflow import mtf


class KeyValueCache(NamedTuple):
    """Keys and values of one layer.

    Each is [cache_blocks, batch, heads, cache_block, features_per_head].
    """

    keys: mtf.Tensor
    values: mtf.Tensor


def empty_cache(
    mesh: mtf.Mesh, dims: Dimensions, dtype: tf.DType, compiled: bool = False
) -> KeyValueCache:
    """Two fresh buffers of zeros.

    Unless XLA compiles the graph (``compiled``), ``tf.zeros`` would not do: the graph optimizer
    folds equal constants into one buffer, and in-place writes would then meet in it.
    """
    blocks, block = dims.cache_blocks
    shape = mtf.Shape([blocks, dims.batch, dims.heads, block, dims.features_per_head])

    def allocate(rows: tf.Tensor, heads: tf.Tensor) -> tf.Tensor:
        held = [*rows.shape.as_list(), *heads.shape.as_list()]
        size = [blocks.size, *held, block.size, dims.features_per_head.size]
        if compiled:
            return tf.zeros(size, dtype)
        return tf.raw_ops.Empty(shape=size, dtype=dtype, init=True)

    ranges = [mtf.range(mesh, dim, tf.int32) for dim in (dims.batch, dims.heads)]
    buffers = [
        kernel(allocate, ranges, [(shape, dtype)], shape.dims[1:3], "cache", differentiable=False)[
            0
        ]
        for _ in range(2)
    ]
    return KeyValueCache(*buffers)


def _write(cache: tf.Tensor, rows: tf.Tensor, positions: tf.Tensor, compiled: bool) -> tf.Tensor:
    """Writes ``rows`` [b, s, h, f] at ``positions`` [b, s] of ``cache`` [n, b, h, p, f]."""
    shape = cache.shape.as_list()
    _, batch, heads, block, features = shape
    first_rows = tf.reshape(tf.range(batch * heads) * block, [batch, 1, heads])
    in_blocks = positions // block * (batch * heads * block) + positions % block
    indices = tf.reshape(in_blocks[..., tf.newaxis] + first_rows, [-1])
    flat, flat_rows = tf.reshape(cache, [-1, features]), tf.reshape(rows, [-1, features])
    if compiled:
        flat = tf.tensor_scatter_nd_update(flat, indices[:, tf.newaxis], flat_rows)
    else:
        flat = tf.raw_ops.InplaceUpdate(x=flat, i=indices, v=flat_rows)
    return tf.reshape(flat, shape)


def _blocks_read(positions: tf.Tensor, window: Window, cache: tf.Tensor, compiled: bool) -> tuple:
    """The first block of ``cache`` that some query sees, and the one behind the last."""
    count, block = cache.shape[0], cache.shape[3]
    if compiled:
        return 0, count
    first = 0
    if window.radius is not None:
        first = tf.maximum(tf.reduce_min(positions) + 1 - window.radius, 0) // block
    return first, tf.reduce_max(positions) // block + 1


def _swapped(x: tf.Tensor) -> tf.Tensor:
    """[a, b, c, d] to [a, c, b, d]; one position at a time stays where it is."""
    if 1 in x.shape[1:3]:
        return tf.reshape(x, [x.shape[0], x.shape[2], x.shape[1], x.shape[3]])
    return tf.transpose(x, [0, 2, 1, 3])


def _readable(blocks: tf.Tensor, queries: int) -> tf.Tensor:
    """``blocks`` [n, b, h, p, f] as they are for one query, else as one block.

    To join the blocks is cheaper than to join the scores of many queries.
    """
    if queries == 1:
        return blocks
    joined = tf.transpose(blocks, [1, 2, 0, 3, 4])
    _, batch, heads, _, features = blocks.shape
    return tf.reshape(joined, [1, batch, heads, -1, features])


def _scores(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Of queries [b, h, s, f] and keys [n, b, h, p, f]: [b, h, s, n * p]."""
    count, batch, heads, block, _ = keys.shape
    if count == 1:
        return tf.matmul(queries, keys[0], transpose_b=True)
    scores = tf.transpose(tf.matmul(queries, keys, transpose_b=True), [1, 2, 3, 0, 4])
    return tf.reshape(scores, [batch, heads, queries.shape[2], tf.shape(keys)[0] * block])


def _mixed(weights: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Values [n, b, h, p, f] mixed by weights [b, h, s, n * p]: [b, h, s, f]."""
    count, batch, heads, block, _ = values.shape
    if count == 1:
        return tf.matmul(weights, values[0])
    by_block = tf.reshape(weights, [batch, heads, weights.shape[2], tf.shape(values)[0], block])
    parts = tf.matmul(tf.transpose(by_block, [3, 0, 1, 2, 4]), values)
    return tf.cast(tf.reduce_sum(tf.cast(parts, tf.float32), 0), values.dtype)


def _slot_block(slots: tf.Tensor, queries: tf.Tensor) -> tf.Tensor:
    """Slots [m, h, f], the same for every row, as one block [1, b, h, m, f]."""
    block = tf.cast(tf.transpose(slots, [1, 0, 2]), queries.dtype)[tf.newaxis, tf.newaxis]
    return tf.tile(block, [1, queries.shape[0], 1, 1, 1])


def cached_attention(
    queries: mtf.Tensor,
    keys: mtf.Tensor,
    values: mtf.Tensor,
    cache: KeyValueCache,
    positions: mtf.Tensor,
    window: Window,
    slots: Optional[MemorySlots] = None,
    compiled: bool = False,
    table: Optional[mtf.Tensor] = None,
) -> tuple[mtf.Tensor, KeyValueCache]:
    """Appends keys and values to the cache and attends to what it then holds.

    Only the filled blocks of the cache (for local attention: of the window) are read, or all of it
    if XLA compiles the graph.

    Args:
        queries: [batch, sequence, heads, features_per_head].
        keys: as queries.
        values: as queries.
        cache: of this layer; its buffers must not be read by anything else.
        positions: [batch, sequence] int32: where each query stands in its own text; one behind
            the other, up to the end of the window.
        window: which keys a query sees; causal.
        slots: learned keys and values beside those of the cache.
        compiled: whether XLA compiles the graph; see MeshLayout.
        table: of relative positions, [heads, relative_buckets] float32; added to the scores of
            the cache's keys by their distance.

    Returns:
        (mixed values with dims as queries, the cache with the new rows).
    """
    assert window.causal
    batch, _, heads, _ = queries.shape.dims

    def attend(
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        old_keys: tf.Tensor,
        old_values: tf.Tensor,
        at: tf.Tensor,
        *learned: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        slot_parts, table_parts = learned[: len(slots or ())], learned[len(slots or ()) :]
        new_keys = _write(old_keys, k, at, compiled)
        new_values = _write(old_values, v, at, compiled)
        first, end = _blocks_read(at, window, new_keys, compiled)
        block = new_keys.shape[3]
        seen = window.sees(at[:, tf.newaxis, :, tf.newaxis], tf.range(first * block, end * block))
        q = _swapped(q)
        seen_keys, seen_values = (
            _readable(cache[first:end], q.shape[2]) for cache in (new_keys, new_values)
        )
        scores = _scores(q, seen_keys)
        bias = tf.where(seen, 0.0, MASKED)
        if table_parts:
            away = at[:, 0] - first * block
            count = (end - first) * block
            bias += relative_bias(table_parts[0], away, q.shape[2], count, window.causal)
        scores += tf.cast(bias, scores.dtype)
        if not slot_parts:
            mixed = _mixed(tf.nn.softmax(scores), seen_values)
        else:
            # Slots stand beside the cache as a block of their own.
            slot_keys, slot_values = (_slot_block(part, q) for part in slot_parts)
            count = slot_keys.shape[3]
            weights = tf.nn.softmax(tf.concat([_scores(q, slot_keys), scores], -1))
            mixed = _mixed(weights[..., :count], slot_values)
            mixed += _mixed(weights[..., count:], seen_values)
        return _swapped(mixed), new_keys, new_values

    tables = [] if table is None else [table]
    shapes = [queries.shape, cache.keys.shape, cache.values.shape]
    mixed, new_keys, new_values = kernel(
        attend,
        [queries, keys, values, *cache, positions, *(slots or ()), *tables],
        [(shape, queries.dtype) for shape in shapes],
        splittable=[batch, heads],
        name="cached_attention",
        differentiable=False,
    )
    return mixed, KeyValueCache(new_keys, new_values)
