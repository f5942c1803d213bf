"""The arithmetic of linear attention: queries meet keys through sums over positions.

What a query needs of the positions before it is one state whose size does not depend on their
number. With f a feature of the keys and g one of the values, causal attention is

    mixed_i[g] = sum_f softmax(q_i)[f] * sums_i[f, g] / normalizers_i[f]
    sums_i[f, g] = sum_{j <= i} e^(k_j[f]) v_j[g]
    normalizers_i[f] = sum_{j <= i} e^(k_j[f]) + epsilon,

and without a causal order the keys are softmaxed over all positions. A state is kept divided by
e^(largest key so far), so that keys of any size fit. No state is built for single positions:
those of a chunk meet each other by scores, and all earlier ones through the state before the
chunk. Memory is of order n * (CHUNK + f * g / CHUNK), plus a small (n / CHUNK)^2 * f.

All functions work on float32 [rows, n, features], one row per text and head.

Source: Katharopoulos et al. 2020 (transformers are RNNs), sections 3.2 and 3.4; the softmaxes are
those of Shen et al. 2018 (efficient attention), section 3.2; the chunks are those of Hua et al.
2022 (FLASH), section 3.2; the epsilon is GPT-Neo's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from models.kernels.attention_blocks import MASKED

CHUNK = 64  # positions that meet by scores
EPSILON = 1e-6  # of the causal normalisers
_EXPONENTS = 75.0  # at most, of e: sums over a chunk, gradients too, then fit into float32
_TINY = 1e-35  # below every normaliser within the range of those exponents


class LinearState(NamedTuple):
    """What earlier positions leave to a query; float32, one row per text and head.

    Attributes:
        maxima: [rows, f], at least the largest key so far; without a gradient, since it cancels
            out of every result.
        normalizers: [rows, f], divided by e^maxima.
        sums: [rows, f, g], divided by e^maxima.
    """

    maxima: tf.Tensor
    normalizers: tf.Tensor
    sums: tf.Tensor


def absorb(state: LinearState, keys: tf.Tensor, values: tf.Tensor) -> LinearState:
    """The state after further positions; keys and values [rows, n, f]."""
    highest = tf.stop_gradient(tf.reduce_max(keys, 1))
    maxima = tf.maximum(state.maxima, highest)
    kept = tf.exp(state.maxima - maxima)
    grown = tf.exp(keys - maxima[:, tf.newaxis])
    return LinearState(
        maxima,
        state.normalizers * kept + tf.reduce_sum(grown, 1),
        state.sums * kept[..., tf.newaxis] + tf.matmul(grown, values, transpose_a=True),
    )


def read(state: LinearState, queries: tf.Tensor) -> tf.Tensor:
    """What queries [rows, n, f], softmaxed over f, see of a state: [rows, n, g]."""
    return tf.matmul(queries / state.normalizers[:, tf.newaxis], state.sums)


def _chunked(x: tf.Tensor, fill: float = 0.0) -> tf.Tensor:
    """[rows, n, f] to [rows, chunks, positions of a chunk, f], the last one filled up."""
    rows, length, features = x.shape.as_list()
    size = min(CHUNK, length)
    x = tf.pad(x, [[0, 0], [0, -length % size], [0, 0]], constant_values=fill)
    return tf.reshape(x, [rows, -(-length // size), size, features])


def _running_maxima(x: tf.Tensor) -> tf.Tensor:
    """Largest of x [rows, n, f] up to each place of n."""
    places = tf.range(x.shape.as_list()[1])
    seen = places[:, tf.newaxis] >= places
    return tf.reduce_max(tf.where(seen[..., tf.newaxis], x[:, tf.newaxis], MASKED), 2)


def _running_states(single: LinearState) -> LinearState:
    """The state up to each of many, along the second dimension: [rows, n, ...].

    One product with the shares e^(maxima before - maxima now) <= 1 adds all of them up.

    Args:
        single: states of one chunk each, whose maxima are running ones already.
    """
    maxima = tf.transpose(single.maxima, [0, 2, 1])
    shares = tf.exp(maxima[..., tf.newaxis, :] - maxima[..., tf.newaxis])  # [rows, f, now, before]
    shares = tf.linalg.band_part(shares, -1, 0)
    normalizers = tf.transpose(single.normalizers, [0, 2, 1])[..., tf.newaxis, :]
    sums = tf.matmul(shares, tf.transpose(single.sums, [0, 2, 1, 3]))
    return LinearState(
        single.maxima,
        tf.transpose(tf.reduce_sum(shares * normalizers, -1), [0, 2, 1]),
        tf.transpose(sums, [0, 2, 1, 3]),
    )


def _attend_in_chunks(
    queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, state: LinearState
) -> tuple[tf.Tensor, LinearState]:
    """Causal attention behind a state.

    Within a chunk keys and normalisers are divided by e^reference, halfway between the largest
    key before the chunk and the largest up to its end, so that neither overflows while these
    differ by less than 2 * _EXPONENTS. Where they differ by more, only the largest keys count.

    Args:
        queries: [rows, n, f], softmaxed over f.
        keys: [rows, n, f]; MASKED at positions that do not count.
        values: [rows, n, g].
        state: before the first position.

    Returns:
        (mixed values [rows, n, g], state after the last position).
    """
    rows, length, features = queries.shape.as_list()
    q, k, v = _chunked(queries), _chunked(keys, MASKED), _chunked(values)
    highest = tf.stop_gradient(tf.reduce_max(k, 2))
    maxima = _running_maxima(tf.concat([state.maxima[:, tf.newaxis], highest], 1))
    before, after = maxima[:, :-1, tf.newaxis], maxima[:, 1:, tf.newaxis]
    reference = tf.maximum((before + after) / 2, after - _EXPONENTS)
    to_reference, from_reference = tf.exp(before - reference), tf.exp(reference - after)
    grown = tf.exp(k - reference)
    causal = tf.linalg.band_part(tf.ones([k.shape.as_list()[2]] * 2), -1, 0)
    normalizers = tf.matmul(causal, grown)

    added = tf.matmul(grown, v, transpose_a=True)
    added *= tf.transpose(from_reference, [0, 1, 3, 2])
    ends = normalizers[:, :, -1] * from_reference[:, :, 0]
    running = _running_states(
        LinearState(
            maxima,
            tf.concat([state.normalizers[:, tf.newaxis], ends], 1),
            tf.concat([state.sums[:, tf.newaxis], added], 1),
        )
    )

    normalizers += running.normalizers[:, :-1, tf.newaxis] * to_reference
    # Not divided: the gradient of a division squares the divisor, which could overflow.
    q *= tf.exp(-tf.math.log(tf.maximum(normalizers, _TINY)))
    # Scores of later keys may be infinite; they are cut off, not multiplied by 0.
    scores = tf.linalg.band_part(tf.matmul(q, grown, transpose_b=True), -1, 0)
    mixed = tf.matmul(scores, v) + tf.matmul(q * to_reference, running.sums[:, :-1])
    mixed = tf.reshape(mixed, [rows, -1, features])[:, :length]
    return mixed, LinearState(*(part[:, -1] for part in running))


def attend_behind(
    queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, state: LinearState
) -> tuple[tf.Tensor, LinearState]:
    """As ``_attend_in_chunks``, which a single position has no need of."""
    if queries.shape.as_list()[1] > 1:
        return _attend_in_chunks(queries, keys, values, state)
    state = absorb(state, keys, values)
    return read(state, queries), state


def by_row(x: tf.Tensor) -> tf.Tensor:
    """[b, n, h, f] to [b * h, n, f] float32."""
    batch, length, heads, features = x.shape.as_list()
    return tf.reshape(
        tf.transpose(tf.cast(x, tf.float32), [0, 2, 1, 3]), [batch * heads, length, features]
    )


def by_position(x: tf.Tensor, heads: int, dtype: tf.DType) -> tf.Tensor:
    """[b * h, n, g] to [b, n, h, g] of ``dtype``."""
    rows, length, features = x.shape.as_list()
    x = tf.reshape(x, [rows // heads, heads, length, features])
    return tf.cast(tf.transpose(x, [0, 2, 1, 3]), dtype)


def start(
    batch: int, heads: int, features: int, causal: bool, slots: Sequence[tf.Tensor] = ()
) -> LinearState:
    """The state before the first position.

    Args:
        batch: texts; each has ``heads`` rows.
        heads: of the layer.
        features: of a head.
        causal: whether normalisers have an epsilon; it is a key log(epsilon) whose value is 0.
        slots: keys and values [m, heads, features] of memory slots, which come before all
            positions of every text.
    """
    rows = batch * heads
    state = LinearState(
        tf.fill([rows, features], math.log(EPSILON) if causal else MASKED),
        tf.fill([rows, features], 1.0 if causal else 0.0),
        tf.zeros([rows, features, features]),
    )
    if not slots:
        return state
    keys, values = (by_row(tf.tile(x[tf.newaxis], [batch, 1, 1, 1])) for x in slots)
    return absorb(state, keys, values)


def multiply_adds(length: int, features: int, causal: bool) -> int:
    """Of the matrix products for one row of ``length`` positions."""
    absorb_and_read = 2 * length * features**2
    if not causal or length == 1:
        return absorb_and_read
    size = min(CHUNK, length)
    chunks = -(-length // size)
    within = size * (3 * size * features + 2 * features**2)
    return chunks * within + (chunks + 1) ** 2 * features**2
