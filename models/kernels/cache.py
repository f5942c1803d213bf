"""Attention over a key-value cache that is written in place.

A cache is laid out [batch, heads, cache_length, features_per_head], so that one position of one
head is one row of a matrix and ``InplaceUpdate`` can write rows without a copy. XLA, which compiles
what runs on TPUs, knows no such operation (it decides itself what to write in place) and no
slices whose size depends on values: there the rows are scattered and all of the cache is read.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import tensorflow as tf

from models.dimensions import Dimensions
from models.kernels.attention import MemorySlots, with_slots
from models.kernels.attention_blocks import MASKED, Window
from models.kernels.operation import kernel
from utils.mesh_tensorflow import mtf


class KeyValueCache(NamedTuple):
    """Keys and values of one layer, each [batch, heads, cache_length, features_per_head]."""

    keys: mtf.Tensor
    values: mtf.Tensor


def empty_cache(
    mesh: mtf.Mesh, dims: Dimensions, dtype: tf.DType, compiled: bool = False
) -> KeyValueCache:
    """Two fresh buffers of zeros.

    Unless XLA compiles the graph (``compiled``), ``tf.zeros`` would not do: the graph optimizer
    folds equal constants into one buffer, and in-place writes would then meet in it.
    """
    shape = mtf.Shape([dims.batch, dims.heads, dims.memory_length, dims.features_per_head])

    def allocate(rows: tf.Tensor, heads: tf.Tensor) -> tf.Tensor:
        size = [*rows.shape.as_list(), *heads.shape.as_list(), shape[2].size, shape[3].size]
        if compiled:
            return tf.zeros(size, dtype)
        return tf.raw_ops.Empty(shape=size, dtype=dtype, init=True)

    ranges = [mtf.range(mesh, dim, tf.int32) for dim in (dims.batch, dims.heads)]
    buffers = [
        kernel(allocate, ranges, [(shape, dtype)], shape.dims[:2], "cache", differentiable=False)[0]
        for _ in range(2)
    ]
    return KeyValueCache(*buffers)


def _write(cache: tf.Tensor, rows: tf.Tensor, positions: tf.Tensor, compiled: bool) -> tf.Tensor:
    """Writes ``rows`` [b, s, h, f] at ``positions`` [b, s] of ``cache`` [b, h, m, f]."""
    batch, heads, length, features = cache.shape.as_list()
    first_rows = tf.range(batch * heads)[:, tf.newaxis] * length
    indices = first_rows + tf.repeat(positions, heads, axis=0)
    flat, indices = tf.reshape(cache, [-1, features]), tf.reshape(indices, [-1])
    flat_rows = tf.reshape(tf.transpose(rows, [0, 2, 1, 3]), [-1, features])
    if compiled:
        flat = tf.tensor_scatter_nd_update(flat, indices[:, tf.newaxis], flat_rows)
    else:
        flat = tf.raw_ops.InplaceUpdate(x=flat, i=indices, v=flat_rows)
    return tf.reshape(flat, [batch, heads, length, features])


def _read_part(positions: tf.Tensor, window: Window, length: int, compiled: bool) -> tuple:
    """First position of the cache that some query sees, and the one behind the last."""
    if compiled:
        return 0, length
    radius = window.radius
    start = 0 if radius is None else tf.maximum(tf.reduce_min(positions) + 1 - radius, 0)
    return start, tf.reduce_max(positions) + 1


def cached_attention(
    queries: mtf.Tensor,
    keys: mtf.Tensor,
    values: mtf.Tensor,
    cache: KeyValueCache,
    positions: mtf.Tensor,
    window: Window,
    slots: Optional[MemorySlots] = None,
    compiled: bool = False,
) -> tuple[mtf.Tensor, KeyValueCache]:
    """Appends keys and values to the cache and attends to what it then holds.

    Only the filled part of the cache (for local attention: of the window) is read, or all of it
    if XLA compiles the graph.

    Args:
        queries: [batch, sequence, heads, features_per_head].
        keys: as queries.
        values: as queries.
        cache: of this layer; its buffers must not be read by anything else.
        positions: [batch, sequence] int32: where each query stands in its own text.
        window: which keys a query sees; causal.
        slots: learned keys and values beside those of the cache.
        compiled: whether XLA compiles the graph; see MeshLayout.

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
        *slot_parts: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        new_keys = _write(old_keys, k, at, compiled)
        new_values = _write(old_values, v, at, compiled)
        start, end = _read_part(at, window, new_keys.shape[2], compiled)
        seen_keys, seen_values = new_keys[:, :, start:end], new_values[:, :, start:end]
        seen = window.sees(at[:, tf.newaxis, :, tf.newaxis], tf.range(start, end))
        if slot_parts:
            seen_keys = with_slots(slot_parts[0], seen_keys)
            seen_values = with_slots(slot_parts[1], seen_values)
            count = slot_parts[0].shape[0]
            seen = tf.pad(seen, [[0, 0], [0, 0], [0, 0], [count, 0]], constant_values=True)
        q = tf.transpose(q, [0, 2, 1, 3])
        scores = tf.matmul(q, seen_keys, transpose_b=True)
        weights = tf.nn.softmax(scores + tf.cast(tf.where(seen, 0.0, MASKED), scores.dtype))
        mixed = tf.matmul(weights, seen_values)
        return tf.transpose(mixed, [0, 2, 1, 3]), new_keys, new_values

    shapes = [queries.shape, cache.keys.shape, cache.values.shape]
    mixed, new_keys, new_values = kernel(
        attend,
        [queries, keys, values, *cache, positions, *(slots or ())],
        [(shape, queries.dtype) for shape in shapes],
        splittable=[batch, heads],
        name="cached_attention",
        differentiable=False,
    )
    return mixed, KeyValueCache(new_keys, new_values)
