"""Softmax attention of one slice and its gradient, a block of queries at a time.

A block looks only at the keys that one of its queries can see, so causal attention costs half of
the square and local attention grows with the window, not with the length. Scores exist for one
block at a time, in the backward pass too, which makes them again.

Source: blocks as in Dao et al. 2022 (FlashAttention), algorithms 1 and 4, for queries alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Optional

import tensorflow as tf

from models.kernels.fusion import fused
from models.kernels.noise import keep_mask
from models.kernels.relative_positions import relative_bias

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


class Mixed(NamedTuple):
    """What attention makes of its queries.

    Attributes:
        values: mixed, [b, h, queries, f].
        largest: score of each query, [b, h, queries] float32.
        total: of exp(score - largest), likewise.
    """

    values: tf.Tensor
    largest: tf.Tensor
    total: tf.Tensor


class Scene(NamedTuple):
    """Which keys count, by how much, and which weights are dropped.

    Attributes:
        query_positions: [queries] int32.
        key_positions: [slots and keys] int32.
        slot_bias: added to the scores of the slots, scalar.
        noise: key of the dropout and positions in batch and heads, or nothing.
        table: of relative positions, [h, buckets] float32, or None.
    """

    query_positions: tf.Tensor
    key_positions: tf.Tensor
    slot_bias: tf.Tensor
    noise: Sequence[tf.Tensor]
    table: Optional[tf.Tensor]


@dataclass(frozen=True)
class BlockAttention:
    """Attention of one slice; q, k, v are [b, h, length, f].

    Passes over scores are what it costs beside products, so there are few: those of XLA's
    programs have no sums along rows, which it makes one number after the other, and rows are
    divided by their totals when values are mixed.

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

    def _masked(
        self,
        scores: tf.Tensor,
        query_positions: tf.Tensor,
        key_positions: tf.Tensor,
        slot_bias: tf.Tensor,
        *relative: tf.Tensor,
    ) -> tf.Tensor:
        """Scores as float32, those of hidden keys with MASKED added, and their relative bias."""
        seen = self.window.sees(
            query_positions[:, tf.newaxis], key_positions[tf.newaxis, self.slots :]
        )
        bias = tf.where(seen, 0.0, MASKED)
        if self.slots:
            in_front = tf.fill([bias.shape[0], self.slots], slot_bias)
            bias = tf.concat([in_front, bias], 1)
        masked = tf.cast(scores, tf.float32) + bias
        return masked + relative[0] if relative else masked

    def _relative(self, here: Scene) -> list[tf.Tensor]:
        """Bias by distance of a block's scores, [1, h, queries, slots and keys], or nothing."""
        if here.table is None:
            return []
        first = here.query_positions[:1] - here.key_positions[self.slots : self.slots + 1]
        queries, keys = here.query_positions.shape[0], here.key_positions.shape[0] - self.slots
        bias = relative_bias(here.table, first, queries, keys, self.window.causal)
        if self.slots:  # they stand nowhere
            bias = tf.pad(bias, [[0, 0], [0, 0], [0, 0], [self.slots, 0]])
        return [bias]

    def _factors(
        self, query_positions: tf.Tensor, key_positions: tf.Tensor, *noise: tf.Tensor
    ) -> tf.Tensor:
        """Of the dropout, [b, h, queries, keys] float32."""
        key, batch, heads = noise
        return keep_mask(key, [batch, heads, query_positions, key_positions], self.rate)

    def _powers(
        self,
        masked: tf.Tensor,
        largest: tf.Tensor,
        *places: tf.Tensor,
        dtype: tf.DType,
    ) -> tuple[tf.Tensor, ...]:
        """exp(score - largest), and with dropout those that are kept."""
        powers = tf.exp(masked - largest[..., tf.newaxis])
        if not places:
            return (tf.cast(powers, dtype),)
        return tf.cast(powers, dtype), tf.cast(powers * self._factors(*places), dtype)

    def _score_gradient(
        self,
        scores: tf.Tensor,
        d_weights: tf.Tensor,
        largest: tf.Tensor,
        total: tf.Tensor,
        d_rows: tf.Tensor,
        query_positions: tf.Tensor,
        key_positions: tf.Tensor,
        slot_bias: tf.Tensor,
        *rest: tf.Tensor,
        biases: int,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """(kept weights, gradient by the scores: weight * (d_weight + d_row)).

        ``rest`` are as many relative biases as ``biases`` says, and the noise.
        """
        relative, noise = rest[:biases], rest[biases:]
        masked = self._masked(scores, query_positions, key_positions, slot_bias, *relative)
        inverse = 1.0 / total[..., tf.newaxis]
        weights = tf.exp(masked - largest[..., tf.newaxis]) * inverse
        d_kept, kept = tf.cast(d_weights, tf.float32), weights
        if noise:
            factors = self._factors(query_positions, key_positions, *noise)
            kept, d_kept = weights * factors, d_kept * factors
        d_scores = weights * (d_kept + d_rows[..., tf.newaxis])
        return tf.cast(kept, scores.dtype), tf.cast(d_scores, scores.dtype)

    def __call__(self, q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, scene: Scene) -> Mixed:
        """Attends."""
        key = ("attention", self.window, self.rate, self.slots)
        parts = []
        for block, here, queries in zip(self.blocks, self._scenes(scene), self._queries(q, 2)):
            keys, values = (self._keys(x, block, 2) for x in (k, v))
            scores = tf.matmul(queries, keys, transpose_b=True)
            masked = fused((*key, "scores"), self._masked)(scores, *here[:3], *self._relative(here))
            largest = tf.reduce_max(masked, -1)
            places = (*here[:2], *here.noise) if here.noise else ()
            program = partial(self._powers, dtype=scores.dtype)
            powers, *kept = fused((*key, "powers", scores.dtype), program)(masked, largest, *places)
            total = tf.reduce_sum(tf.cast(powers, tf.float32), -1)
            summed = tf.matmul(kept[0] if kept else powers, values)
            mixed = summed / tf.expand_dims(tf.cast(total, summed.dtype), -1)
            parts.append(Mixed(mixed, largest, total))
        return Mixed(*(_joined(column) for column in zip(*parts)))

    def gradient(
        self,
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        scene: Scene,
        mixed: Mixed,
        d_mixed: tf.Tensor,
        d_normalizer: Optional[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Gradients of q, k, v and, if there is one, the table of relative positions.

        Args:
            q: queries.
            k: keys.
            v: values.
            scene: as in the forward pass.
            mixed: what the forward pass made.
            d_mixed: gradient by the mixed values.
            d_normalizer: by largest + log(total), [b, h, queries] float32.
        """
        d_q: list[tf.Tensor] = []
        d_table: list[tf.Tensor] = []
        d_k, d_v = _Pieces(self), _Pieces(self)
        # The sum over keys of weight * d_weight, without either (Dao et al. 2022, appendix B.2).
        products = tf.cast(d_mixed, tf.float32) * tf.cast(mixed.values, tf.float32)
        d_rows = -tf.reduce_sum(products, -1)
        if d_normalizer is not None:
            d_rows += d_normalizer
        biases = int(scene.table is not None)
        program = fused(
            ("attention gradient", self.window, self.rate, self.slots, biases),
            partial(self._score_gradient, biases=biases),
        )
        parts = (self._queries(x, 2) for x in (q, d_mixed, mixed.largest, mixed.total, d_rows))
        cut = zip(self.blocks, self._scenes(scene), *parts)
        for block, here, queries, upstream, *rows in cut:
            keys, values = (self._keys(x, block, 2) for x in (k, v))
            if d_q:  # one block after another, so that one is in memory
                with tf.control_dependencies([d_q[-1]]):
                    queries = tf.identity(queries)
                    if here.table is not None:
                        here = here._replace(table=tf.identity(here.table))
            scores = tf.matmul(queries, keys, transpose_b=True)
            d_weights = tf.matmul(upstream, values, transpose_b=True)
            relative = self._relative(here)
            kept, d_scores = program(scores, d_weights, *rows, *here[:3], *relative, *here.noise)
            if relative:
                d_bias = tf.reduce_sum(tf.cast(d_scores, tf.float32), 0, keepdims=True)
                d_table += tf.gradients(relative, here.table, [d_bias])
            d_q.append(tf.matmul(d_scores, keys))
            d_k.add(block, tf.matmul(d_scores, queries, transpose_a=True))
            d_v.add(block, tf.matmul(kept, upstream, transpose_a=True))
        tables = [tf.add_n(d_table)] if d_table else []
        return [_joined(d_q), d_k.joined(), d_v.joined(), *tables]

    def _scenes(self, scene: Scene) -> list[Scene]:
        """What of it concerns each block."""
        positions = self._queries(scene.query_positions, 0)
        return [
            scene._replace(
                query_positions=part,
                key_positions=self._keys(scene.key_positions, block, 0),
            )
            for block, part in zip(self.blocks, positions)
        ]

    def _queries(self, x: tf.Tensor, axis: int) -> Sequence[tf.Tensor]:
        """The parts of ``x`` that belong to each block, queries along ``axis``."""
        return _cut(x, [block.end - block.first for block in self.blocks], axis)

    def _keys(self, x: tf.Tensor, block: Block, axis: int) -> tf.Tensor:
        """What a block sees along ``axis``: the slots, and its keys."""
        first, end = block.first_key + self.slots, block.end_key + self.slots
        if block.first_key == 0 or not self.slots:
            return _part(x, 0 if block.first_key == 0 else first, end, axis)
        return tf.concat([_part(x, 0, self.slots, axis), _part(x, first, end, axis)], axis)


class _Pieces:
    """Sums of gradients by keys of several blocks; edges of blocks cut them into pieces."""

    def __init__(self, attention: BlockAttention):
        self._slots = [attention.slots] if attention.slots else []
        edges = {block.first_key for block in attention.blocks}
        edges |= {block.end_key for block in attention.blocks}
        self._edges = sorted(edges)
        self._parts: dict[int, list[tf.Tensor]] = {}

    def add(self, block: Block, gradient: tf.Tensor) -> None:
        """Adds the gradient of a block's slots and keys."""
        edges = [x for x in self._edges if block.first_key <= x <= block.end_key]
        sizes = [end - first for first, end in zip(edges, edges[1:])]
        names = [-1] * len(self._slots) + edges[:-1]
        for name, part in zip(names, _cut(gradient, self._slots + sizes, 2)):
            self._parts.setdefault(name, []).append(part)

    def joined(self) -> tf.Tensor:
        """The gradient by all keys."""
        return _joined([tf.add_n(self._parts[first]) for first in sorted(self._parts)])


def _joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(list(parts), 2)


def _cut(x: tf.Tensor, sizes: Sequence[int], axis: int) -> Sequence[tf.Tensor]:
    """``x`` in parts along ``axis``, in one operation; indexing would add four for each."""
    if len(sizes) == 1:
        return [x]
    return tf.split(x, len(sizes) if len(set(sizes)) == 1 else list(sizes), axis)


def _part(x: tf.Tensor, first: int, end: int, axis: int) -> tf.Tensor:
    """[first, end) of ``x`` along ``axis``."""
    if first == 0 and end == x.shape[axis]:
        return x
    begin, size = [0] * x.shape.rank, [-1] * x.shape.rank
    begin[axis], size[axis] = first, end - first
    return tf.slice(x, begin, size)
