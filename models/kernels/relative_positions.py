"""Bias of attention scores by the distance from query to key, T5's relative positions.

Near distances have a bucket each, further ones share buckets that grow with the distance. Scores
along a diagonal share a distance, so a block of them is made of one row of numbers, shifted by one
from query to query: copies alone, which costs less than to look up every score, and whose gradient
sums along diagonals.

Source: Raffel et al. 2020 (T5), section 2.1, with the buckets of its implementation.
"""

from __future__ import annotations

from functools import cache
from typing import Union

import numpy as np
import tensorflow as tf

from models.dimensions import RELATIVE_BUCKETS

MAX_DISTANCE = 128
"""From here on all distances share a bucket; T5's."""


def _growing_buckets(count: int) -> list[int]:
    """Bucket out of ``count`` of each distance from 0 to MAX_DISTANCE.

    The first half is exact. Beyond, distance n has the bucket half + floor(half * ln(n / half) /
    ln(MAX_DISTANCE / half)), here in whole numbers, which no rounding moves.
    """
    half = count // 2

    def bucket(n: int) -> int:
        if n < half:
            return n
        steps = range(1, half)
        return half + sum(n**half * half**i >= half**half * MAX_DISTANCE**i for i in steps)

    return [bucket(n) for n in range(MAX_DISTANCE + 1)]


@cache
def buckets(causal: bool) -> np.ndarray:
    """Buckets of the distances from -MAX_DISTANCE to MAX_DISTANCE, int32.

    A distance is the query's position minus the key's. Keys ahead (negative distances) have the
    second half of the buckets; where none is seen, they share that of distance 0.
    """
    if causal:
        behind = _growing_buckets(RELATIVE_BUCKETS)
        ahead = [0] * MAX_DISTANCE
    else:
        behind = _growing_buckets(RELATIVE_BUCKETS // 2)
        ahead = [RELATIVE_BUCKETS // 2 + bucket for bucket in behind[:0:-1]]
    return np.array(ahead + behind, np.int32)


def relative_bias(
    table: tf.Tensor,
    first: tf.Tensor,
    queries: int,
    keys: Union[int, tf.Tensor],
    causal: bool,
) -> tf.Tensor:
    """Bias of the scores of neighbouring queries and neighbouring keys.

    Args:
        table: [h, buckets] float32.
        first: [b] int32: position of the first query minus that of the first key.
        queries: their number.
        keys: their number.
        causal: whether keys ahead of a query are hidden.

    Returns:
        [b, h, queries, keys] float32.
    """
    # Query i and key j are first + i - j apart: that is number queries - 1 - i + j of a row.
    # One more than needed fills it up.
    falling = queries - 1 - tf.range(queries + keys)
    distances = tf.clip_by_value(first[:, tf.newaxis] + falling, -MAX_DISTANCE, MAX_DISTANCE)
    numbers = tf.gather(buckets(causal), distances + MAX_DISTANCE)
    row = tf.transpose(tf.gather(table, numbers, axis=1), [1, 0, 2])
    if queries == 1:
        return row[:, :, tf.newaxis, :keys]
    # Behind each other, rows that are one shorter begin one earlier from row to row.
    repeated = tf.tile(row, [1, 1, queries])
    shorter = queries + keys - 1
    shifted = repeated[:, :, queries - 1 : queries - 1 + queries * shorter]
    shape = [first.shape[0], table.shape[0], queries, shorter]
    return tf.reshape(shifted, shape)[..., :keys]
