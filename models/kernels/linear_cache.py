"""Linear attention over a running state: the cache of a linear layer in generation."""

from __future__ import annotations

from typing import NamedTuple, Optional

import tensorflow as tf

from models.dimensions import Dimensions
from models.kernels.attention import MemorySlots
from models.kernels.attention_blocks import MASKED
from models.kernels.linear_state import (
    LinearState,
    attend_behind,
    by_position,
    by_row,
    start,
)
from models.kernels.operation import kernel
from utils.mesh_tensorflow import mtf


class LinearCache(NamedTuple):
    """The state of one layer in generation; see ``LinearState``.

    Attributes:
        maxima: [batch, heads, features_per_head] float32.
        normalizers: as maxima.
        sums: [batch, heads, features_per_head, value_features] float32.
    """

    maxima: mtf.Tensor
    normalizers: mtf.Tensor
    sums: mtf.Tensor


def empty_linear_cache(
    mesh: mtf.Mesh, dims: Dimensions, slots: Optional[MemorySlots] = None
) -> LinearCache:
    """The state that a text starts from."""
    shape = mtf.Shape([dims.batch, dims.heads, dims.features_per_head])
    shapes = [shape, shape, mtf.Shape([*shape.dims, dims.value_features])]

    def allocate(
        rows: tf.Tensor, heads: tf.Tensor, *slot_parts: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        batch_size, head_count = rows.shape.as_list()[0], heads.shape.as_list()[0]
        state = start(batch_size, head_count, dims.features_per_head.size, True, slot_parts)
        per_text = [batch_size, head_count]
        return tuple(tf.reshape(part, [*per_text, *part.shape.as_list()[1:]]) for part in state)

    ranges = [mtf.range(mesh, dim, tf.int32) for dim in (dims.batch, dims.heads)]
    parts = kernel(
        allocate,
        [*ranges, *(slots or ())],
        [(shape, tf.float32) for shape in shapes],
        splittable=[dims.batch, dims.heads],
        name="linear_cache",
        differentiable=False,
    )
    return LinearCache(*parts)


def cached_linear_attention(
    queries: mtf.Tensor,
    keys: mtf.Tensor,
    values: mtf.Tensor,
    cache: LinearCache,
    counts: mtf.Tensor,
) -> tuple[mtf.Tensor, LinearCache]:
    """Attends behind a state and adds the new positions to it.

    Args:
        queries: [batch, sequence, heads, features_per_head].
        keys: as queries.
        values: as queries.
        cache: of this layer.
        counts: [batch, sequence] int32: 1 for the positions that belong to their row's text so
            far, 0 for those that leave no trace.

    Returns:
        (mixed values with dims as queries, the cache behind the new positions).
    """
    batch, _, heads, _ = queries.shape.dims

    def attend(
        q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, counted: tf.Tensor, *parts: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        local_heads = q.shape.as_list()[2]
        k = tf.where(counted[..., tf.newaxis, tf.newaxis] > 0, tf.cast(k, tf.float32), MASKED)
        state = LinearState(*(tf.reshape(x, [-1, *x.shape.as_list()[2:]]) for x in parts))
        mixed, state = attend_behind(tf.nn.softmax(by_row(q)), by_row(k), by_row(v), state)
        written = [tf.reshape(new, old.shape) for new, old in zip(state, parts)]
        return by_position(mixed, local_heads, q.dtype), *written

    mixed, *written = kernel(
        attend,
        [queries, keys, values, counts, *cache],
        [(queries.shape, queries.dtype), *((part.shape, tf.float32) for part in cache)],
        splittable=[batch, heads],
        name="cached_linear_attention",
        differentiable=False,
    )
    return mixed, LinearCache(*written)
