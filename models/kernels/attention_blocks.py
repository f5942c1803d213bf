"""Softmax attention of one slice and its gradient, a block of queries at a time.

A block looks only at the keys that one of its queries can see, so causal attention costs half of
the square and local attention grows with the window, not with the length. Scores exist for one
block at a time, in the backward pass too, which makes them again.

Source: blocks as in Dao et al. 2022 (FlashAttention), algorithms 1 and 4, for queries alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from models.kernels.fusion import fused
from models.kernels.noise import keep_mask

MASKED = -1e9  # added to scores that must not count; exp of it is 0 in float32 and bfloat16
MIN_BLOCK = 128
"""Queries of a block at least: smaller products are slower than what they leave out."""
MAX_BLOCKS = 8
"""Of attention to all keys: each block more has programs of its own, which take time to compile."""


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

    def block_size(self, length: int) -> int:
        """Queries that are worked on together."""
        if self.radius is None and not self.causal:
            return length
        size = -(-length // MAX_BLOCKS)
        if self.radius is not None:
            size = min(size, self.radius)
        return min(max(size, MIN_BLOCK), length)

    def blocks(self, length: int) -> list[Block]:
        """Blocks of a whole sequence; keys begin and end where blocks of queries do."""
        size = self.block_size(length)
        blocks = []
        for first in range(0, length, size):
            end = min(first + size, length)
            lowest, highest = 0, length
            if self.radius is not None:
                lowest = max(0, first - self.radius + 1) // size * size
                highest = min(length, -(-(end + self.radius - 1) // size) * size)
            blocks.append(Block(first, end, lowest, end if self.causal else highest))
        return blocks


class Block(NamedTuple):
    """Queries [first, end) and the keys [first_key, end_key) that they may see."""

    first: int
    end: int
    first_key: int
    end_key: int


@dataclass(frozen=True)
class BlockAttention:
    """Attention of one slice; q, k, v are [b, h, length, f].

    Attributes:
        window: what a query sees.
        rate: probability of dropping a weight.
        blocks: all queries, in order.
        slots: learned keys in front of the others.
    """

    window: Window
    rate: float
    blocks: tuple[Block, ...]
    slots: int

    def _weights(
        self,
        scores: tf.Tensor,
        query_positions: tf.Tensor,
        key_positions: tf.Tensor,
        slot_bias: tf.Tensor,
        *noise: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """(softmax, logarithm of its normaliser [b, h, q] float32, dropout's factors if any)."""
        wide = tf.cast(scores, tf.float32)
        seen = self.window.sees(
            query_positions[:, tf.newaxis], key_positions[tf.newaxis, self.slots :]
        )
        bias = tf.where(seen, 0.0, MASKED)
        if self.slots:
            in_front = tf.fill([bias.shape[0], self.slots], slot_bias)
            bias = tf.concat([in_front, bias], 1)
        wide += bias
        largest = tf.reduce_max(wide, -1, keepdims=True)
        powers = tf.exp(wide - largest)
        total = tf.reduce_sum(powers, -1, keepdims=True)
        normalizer = tf.squeeze(largest + tf.math.log(total), -1)
        weights = powers / total
        if not noise:
            return tf.cast(weights, scores.dtype), normalizer
        key, batch, heads = noise
        factors = keep_mask(key, [batch, heads, query_positions, key_positions], self.rate)
        kept = tf.cast(weights * factors, scores.dtype)
        return tf.cast(weights, scores.dtype), normalizer, kept, tf.cast(factors, scores.dtype)

    def weights(self, scores: tf.Tensor, *rest: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Softmax, normaliser, and with dropout the kept weights and the factors."""
        return fused(("attention weights", self.window, self.rate, self.slots), self._weights)(
            scores, *rest
        )

    def __call__(
        self,
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        query_positions: tf.Tensor,
        key_positions: tf.Tensor,
        slot_bias: tf.Tensor,
        noise: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(mixed values [b, h, queries, f], log normalisers [b, h, queries] float32)."""
        mixed, normalizers = [], []
        for block in self.blocks:
            keys, values, numbers = (
                self._keys(x, block, a) for x, a in ((k, 2), (v, 2), (key_positions, 0))
            )
            scores = tf.matmul(_queries(q, block), keys, transpose_b=True)
            found = self.weights(
                scores, query_positions[block.first : block.end], numbers, slot_bias, *noise
            )
            mixed.append(tf.matmul(found[2] if noise else found[0], values))
            normalizers.append(found[1])
        return _joined(mixed), _joined(normalizers)

    def gradient(
        self,
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        query_positions: tf.Tensor,
        key_positions: tf.Tensor,
        slot_bias: tf.Tensor,
        noise: Sequence[tf.Tensor],
        d_mixed: tf.Tensor,
        d_normalizer: Optional[tf.Tensor],
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Gradients of q, k and v."""
        d_q: list[tf.Tensor] = []
        d_k, d_v = _Pieces(self), _Pieces(self)
        for block in self.blocks:
            queries, upstream = (_queries(x, block) for x in (q, d_mixed))
            keys, values, numbers = (
                self._keys(x, block, a) for x, a in ((k, 2), (v, 2), (key_positions, 0))
            )
            if d_q:  # one block after another, so that one is in memory
                with tf.control_dependencies([d_q[-1]]):
                    queries = tf.identity(queries)
            scores = tf.matmul(queries, keys, transpose_b=True)
            found = self.weights(
                scores, query_positions[block.first : block.end], numbers, slot_bias, *noise
            )
            d_weights = tf.matmul(upstream, values, transpose_b=True)
            inputs = [found[0], d_weights, *(found[3:] if noise else ())]
            if d_normalizer is not None:
                inputs.append(d_normalizer[:, :, block.first : block.end])
            key = ("attention gradient", bool(noise), d_normalizer is not None)
            d_scores = fused(key, _softmax_gradient(bool(noise)))(*inputs)
            d_q.append(tf.matmul(d_scores, keys))
            d_k.add(block, tf.matmul(d_scores, queries, transpose_a=True))
            d_v.add(block, tf.matmul(found[2] if noise else found[0], upstream, transpose_a=True))
        return _joined(d_q), d_k.joined(), d_v.joined()

    def _keys(self, x: tf.Tensor, block: Block, axis: int) -> tf.Tensor:
        """What a block sees along ``axis``: the slots, and its keys."""
        before = [slice(None)] * axis
        first, end = block.first_key + self.slots, block.end_key + self.slots
        part = x[(*before, slice(first, end))]
        if not self.slots:
            return x if block.first_key == 0 and block.end_key == x.shape[axis] else part
        if block.first_key == 0:
            return x[(*before, slice(0, end))]
        return tf.concat([x[(*before, slice(0, self.slots))], part], axis)


def _softmax_gradient(has_noise: bool) -> Any:
    def gradient(weights: tf.Tensor, d_weights: tf.Tensor, *rest: tf.Tensor) -> tf.Tensor:
        """Gradient by the scores: w * (d - sum(w * d) + d_normalizer)."""
        dtype = weights.dtype
        weights, d_weights = tf.cast(weights, tf.float32), tf.cast(d_weights, tf.float32)
        others = list(rest)
        if has_noise:
            d_weights *= tf.cast(others.pop(0), tf.float32)
        change = d_weights - tf.reduce_sum(weights * d_weights, -1, keepdims=True)
        if others:
            change += others[0][..., tf.newaxis]
        return tf.cast(weights * change, dtype)

    return gradient


class _Pieces:
    """Sums of gradients by keys of several blocks; edges of blocks cut them into pieces."""

    def __init__(self, attention: BlockAttention):
        self._slots = attention.slots
        edges = {block.first_key for block in attention.blocks}
        edges |= {block.end_key for block in attention.blocks}
        self._edges = sorted(edges)
        self._parts: dict[int, list[tf.Tensor]] = {}

    def add(self, block: Block, gradient: tf.Tensor) -> None:
        """Adds the gradient of a block's slots and keys."""
        if self._slots:
            self._parts.setdefault(-1, []).append(gradient[:, :, : self._slots])
        edges = [x for x in self._edges if block.first_key <= x <= block.end_key]
        for first, end in zip(edges, edges[1:]):
            begin = self._slots + first - block.first_key
            part = gradient[:, :, begin : begin + end - first]
            self._parts.setdefault(first, []).append(part)

    def joined(self) -> tf.Tensor:
        """The gradient by all keys."""
        return _joined([tf.add_n(self._parts[first]) for first in sorted(self._parts)])


def _joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(list(parts), 2)


def _queries(x: tf.Tensor, block: Block) -> tf.Tensor:
    """The part of [b, h, queries, f] that belongs to a block."""
    is_whole = block.end - block.first == x.shape[2]
    return x if is_whole else x[:, :, block.first : block.end]
