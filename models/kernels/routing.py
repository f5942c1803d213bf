"""Routing of tokens to experts and back: who goes where, and the moves themselves.

Experts have slots; a token in a slot is one row of what its expert works on. Both directions of
the way are looked up by number, in the forward and in the backward pass, so that nothing of size
[sequence, experts, capacity] is ever built and nothing is added up in a random order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from models.kernels.operation import Slices, kernel
from utils.mesh_tensorflow import mtf


class Gating(NamedTuple):
    """The two experts of each token.

    Attributes:
        probabilities: [batch, sequence, routes] float32, of all experts.
        first_gate: [batch, sequence] float32, weight of the best expert.
        second_gate: [batch, sequence] float32, of the second; the two add up to 1.
        first: [batch, sequence] int32, number of the best expert; the lowest of equals.
        second: [batch, sequence] int32, number of the second.
    """

    probabilities: mtf.Tensor
    first_gate: mtf.Tensor
    second_gate: mtf.Tensor
    first: mtf.Tensor
    second: mtf.Tensor


class Slots(NamedTuple):
    """Which token is in which slot. Slot c of expert e has the number e * capacity + c.

    Attributes:
        of_first: [batch, sequence] int32, slot of a token at its best expert; the number of all
            slots if it has none.
        of_second: [batch, sequence] int32, the same for the second expert.
        tokens: [routes, batch, capacity] int32, token of a slot; the length of the sequence if
            it is empty.
    """

    of_first: mtf.Tensor
    of_second: mtf.Tensor
    tokens: mtf.Tensor


def top_2(logits: mtf.Tensor) -> Gating:
    """Chooses two experts for each token.

    Args:
        logits: [batch, sequence, routes] float32; routes must be whole.

    Source: Lepikhin et al. 2021 (GShard), algorithm 1; the 1e-9 is Mesh TensorFlow's.
    """

    def choose(logits_slice: tf.Tensor) -> tuple[tf.Tensor, ...]:
        probabilities = tf.nn.softmax(logits_slice)
        best, numbers = tf.math.top_k(probabilities, 2)
        gates = best / (tf.reduce_sum(best, -1, keepdims=True) + 1e-9)
        return (probabilities, *tf.unstack(gates, axis=-1), *tf.unstack(numbers, axis=-1))

    rows = mtf.Shape(logits.shape.dims[:-1])
    outputs = [(logits.shape, tf.float32)] + [(rows, tf.float32)] * 2 + [(rows, tf.int32)] * 2
    return Gating(*kernel(choose, [logits], outputs, rows.dims, name="top_2"))


def assign_slots(
    first: mtf.Tensor,
    second: mtf.Tensor,
    second_kept: mtf.Tensor,
    routes: mtf.Dimension,
    capacity: mtf.Dimension,
) -> Slots:
    """Gives slots to the tokens of each sequence in order: first to first choices, then to second.

    Args:
        first: [batch, sequence] int32, numbers of experts; sequence must be whole.
        second: [batch, sequence] int32, other numbers of experts.
        second_kept: [batch, sequence] float32, 1 where the second expert is wanted, else 0.
        routes: the experts.
        capacity: slots of one expert for one sequence.

    Source: Lepikhin et al. 2021 (GShard), algorithm 1, with one sequence as the group.
    """
    batch, sequence = first.shape.dims
    none = routes.size * capacity.size

    def slots_of(wanted: tf.Tensor, used: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Slots of tokens that want experts (0 or 1), and how many each expert then has used."""
        before = used + tf.cumsum(wanted, 1, exclusive=True)
        taken = wanted * tf.cast(before < capacity.size, tf.int32)
        offsets = tf.range(routes.size) * capacity.size + before - none
        used += tf.reduce_sum(taken, 1, keepdims=True)
        return none + tf.reduce_sum(taken * offsets, -1), used

    def assign(first: tf.Tensor, second: tf.Tensor, kept: tf.Tensor) -> tuple[tf.Tensor, ...]:
        wanted_first = tf.one_hot(first, routes.size, dtype=tf.int32)
        wanted_second = tf.one_hot(second, routes.size, dtype=tf.int32)
        wanted_second *= tf.cast(kept, tf.int32)[..., tf.newaxis]
        unused = tf.zeros_like(wanted_first[:, :1])
        of_first, used = slots_of(wanted_first, unused)
        of_second, _ = slots_of(wanted_second, used)
        return of_first, of_second, tokens_of([of_first, of_second])

    def tokens_of(slots: Sequence[tf.Tensor]) -> tf.Tensor:
        """The inverse: [routes, batch, capacity]. What has no slot meets in one that is cut off."""
        count = slots[0].shape[0]
        width = none + 1
        rows = tf.range(count)[:, tf.newaxis] * width
        # Counted from the end: 0, which scatter leaves in empty slots, becomes the length.
        from_end = tf.range(-sequence.size, 0) + tf.zeros_like(slots[0])
        places = tf.reshape(tf.stack([rows + slot for slot in slots]), [-1, 1])
        values = tf.reshape(tf.stack([from_end] * len(slots)), [-1])
        found = sequence.size + tf.scatter_nd(places, values, [count * width])
        found = tf.reshape(found, [count, width])[:, :none]
        found = tf.reshape(found, [count, routes.size, capacity.size])
        return tf.transpose(found, [1, 0, 2])

    outputs = [
        (first.shape, tf.int32),
        (first.shape, tf.int32),
        (mtf.Shape([routes, batch, capacity]), tf.int32),
    ]
    inputs = [first, second, second_kept]
    return Slots(*kernel(assign, inputs, outputs, [batch], "assign_slots", differentiable=False))


def _in_slots(x: tf.Tensor, tokens: tf.Tensor) -> tf.Tensor:
    """Rows of x [batch, sequence, ...] at tokens [routes, batch, capacity], 0 in empty slots."""
    count, length = x.shape[:2]
    rows = tf.range(count)[:, tf.newaxis] * length
    flat = tf.reshape(x, [count * length, *x.shape[2:]])
    values = tf.gather(flat, rows + tf.minimum(tokens, length - 1))
    return values * _broadcast(tokens < length, values)


def _at_tokens(values: tf.Tensor, slots: tf.Tensor) -> tf.Tensor:
    """Rows of values [routes, batch, capacity, width] at slots [batch, sequence], 0 without one."""
    routes, count, capacity, width = values.shape
    safe = tf.minimum(slots, routes * capacity - 1)
    rows = tf.range(count)[:, tf.newaxis]
    places = (safe // capacity * count + rows) * capacity + safe % capacity
    found = tf.gather(tf.reshape(values, [routes * count * capacity, width]), places)
    return found * _broadcast(slots < routes * capacity, found)


def _broadcast(mask: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """A mask of the leading dimensions as factors of ``values``."""
    missing = len(values.shape) - len(mask.shape)
    return tf.reshape(tf.cast(mask, values.dtype), [*mask.shape, *[1] * missing])


def dispatch(x: mtf.Tensor, slots: Slots) -> mtf.Tensor:
    """Copies tokens into their slots.

    Args:
        x: [batch, sequence, embd], floating; batch and embd may be split.
        slots: of the tokens.

    Returns:
        [routes, batch, capacity, embd], of x's dtype, 0 in empty slots.
    """
    batch, _, embd = x.shape.dims

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        return [sum(_at_tokens(dys[0], slot) for slot in xs[2:]), None, None, None]

    [y] = kernel(
        lambda x_slice, tokens, *unused: _in_slots(x_slice, tokens),
        # The slots of the tokens are for the gradient.
        [x, slots.tokens, slots.of_first, slots.of_second],
        [(mtf.Shape([*slots.tokens.shape.dims, embd]), x.dtype)],
        splittable=[batch, embd],
        gradient=gradient,
        name="dispatch",
    )
    return y


def combine(values: mtf.Tensor, gating: Gating, slots: Slots) -> mtf.Tensor:
    """Adds up what a token's experts made of it, weighted with its gates.

    Args:
        values: [routes, batch, capacity, embd], floating; batch and embd may be split.
        gating: the weights.
        slots: of the tokens; what has no slot counts as 0.

    Returns:
        [batch, sequence, embd], of the dtype of ``values``; the sum is made in float32.
    """
    routes, batch, capacity, embd = values.shape.dims

    def found(values_slice: tf.Tensor, slot: tf.Tensor) -> tf.Tensor:
        return tf.cast(_at_tokens(values_slice, slot), tf.float32)

    def forward(values_slice: tf.Tensor, *rest: tf.Tensor) -> tf.Tensor:
        gates, slots_of_tokens = rest[:2], rest[2:4]
        parts = [
            gate[..., tf.newaxis] * found(values_slice, slot)
            for gate, slot in zip(gates, slots_of_tokens)
        ]
        return tf.cast(sum(parts), values_slice.dtype)

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        values_slice, gates, slots_of_tokens, tokens = xs[0], xs[1:3], xs[3:5], xs[5]
        dy = tf.cast(dys[0], tf.float32)
        d_gates = [tf.reduce_sum(dy * found(values_slice, slot), -1) for slot in slots_of_tokens]
        own = tf.reshape(tf.range(routes.size * capacity.size), [routes.size, 1, capacity.size])
        weights = sum(
            _in_slots(gate, tokens) * tf.cast(tf.equal(_in_slots(slot, tokens), own), tf.float32)
            for gate, slot in zip(gates, slots_of_tokens)
        )
        d_values = _in_slots(dys[0], tokens) * tf.cast(weights, dys[0].dtype)[..., tf.newaxis]
        return [d_values, *d_gates, None, None, None]

    [y] = kernel(
        forward,
        # The tokens of the slots are for the gradient.
        [values, gating.first_gate, gating.second_gate, *slots],
        [(mtf.Shape([*slots.of_first.shape.dims, embd]), values.dtype)],
        splittable=[batch, embd],
        gradient=gradient,
        name="combine",
    )
    return y
