"""Linear attention within a sequence, as one kernel per slice."""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

from models.kernels.attention import MemorySlots
from models.kernels.linear_state import (
    absorb,
    attend_behind,
    by_position,
    by_row,
    multiply_adds,
    read,
    start,
)
from models.kernels.operation import kernel
from utils.mesh_tensorflow import mtf


def linear_attention(
    queries: mtf.Tensor,
    keys: mtf.Tensor,
    values: mtf.Tensor,
    causal: bool,
    slots: Optional[MemorySlots] = None,
) -> mtf.Tensor:
    """Linear attention within a sequence.

    Args:
        queries: [batch, sequence, heads, features_per_head].
        keys: as queries.
        values: as queries.
        causal: whether keys behind the query's own position are hidden.
        slots: learned keys and values in front of the sequence.

    Returns:
        As queries; computed in float32. Batch and heads may be split.
    """
    batch, sequence, heads, features = queries.shape.dims

    def attend(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, *slot_parts: tf.Tensor) -> tf.Tensor:
        dtype = q.dtype
        local_batch, _, local_heads, width = q.shape.as_list()
        q, k, v = tf.nn.softmax(by_row(q)), by_row(k), by_row(v)
        state = start(local_batch, local_heads, width, causal, slot_parts)
        if causal:
            mixed, _ = attend_behind(q, k, v, state)
        else:
            mixed = read(absorb(state, k, v), q)
        return by_position(mixed, local_heads, dtype)

    slot_count = slots.keys.shape.dims[0].size if slots is not None else 0
    of_slots = slot_count * features.size**2
    of_row = multiply_adds(sequence.size, features.size, causal) + of_slots
    [mixed] = kernel(
        attend,
        [queries, keys, values, *(slots or ())],
        [(queries.shape, queries.dtype)],
        splittable=[batch, heads],
        name="linear_attention",
        multiply_adds=batch.size * heads.size * of_row,
    )
    return mixed
