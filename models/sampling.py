"""Text generation in named dimensions: prefill of the prompt, then one token at a time.

Both phases run the same blocks against the same cache. Rows are aligned at their first token
and each stands at its own position, so prompts of different length need no padding that could be
seen, and no token id has a special meaning.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from configs.schema import Config
from models.decoder import (
    ROW_SETTINGS,
    Decoder,
    cache_dims,
    integers,
    next_tokens,
    prefill_chunks,
)
from models.layer_caches import Caches, Fed, empty_caches, flatten, unflatten
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

FEATURES = {
    "tokens": tf.int32,
    "lengths": tf.int32,
    "ends": tf.int32,
    "stop_ids": tf.int32,
    **ROW_SETTINGS,
}
"""Inputs of the prediction graph: tokens [batch, n_ctx] (text from position 0), the others
[batch]: lengths of the prompts (at least 1), ends (length at which a row stops, at most n_ctx),
stop_ids (token that ends a row, -1 for none), and how its tokens are drawn.
"""


class Generated(NamedTuple):
    """What was written.

    Attributes:
        tokens: [batch, cache_length] int32: prompt and continuation; meaningless past the length.
        lengths: [batch] int32: of prompt and continuation, a stop token included.
    """

    tokens: mtf.Tensor
    lengths: mtf.Tensor


class _State(NamedTuple):
    """Loop variables: the text so far, each row's last position, which rows go on."""

    tokens: mtf.Tensor
    position: mtf.Tensor
    active: mtf.Tensor


def _prefill(
    decoder: Decoder,
    tokens: mtf.Tensor,
    last: mtf.Tensor,
    start: mtf.Tensor,
    enough: mtf.Tensor,
    caches: Caches,
) -> tuple[mtf.Tensor, Caches]:
    """Fills the caches for the positions before ``last`` [batch], from ``start`` to ``enough``.

    Rows that are shorter are fed what is behind their end, too, but it does not count.

    Returns:
        (where the next position to be fed stands, caches).
    """
    dims, length = decoder.dims, decoder.dims.sequence.size
    window = dims.embed_sequence.size
    shape = [dims.batch, dims.sequence]

    def more(start: mtf.Tensor, *unused: mtf.Tensor) -> mtf.Tensor:
        return mtf.less(start, enough)

    def part_of(text: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        return tf.gather(text, tf.minimum(at + tf.range(length), text.shape[1] - 1), axis=1)

    def count_up(text: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        # A chunk may reach past the window; no prompt does, so what it writes there is not read.
        return tf.zeros_like(text) + tf.minimum(at + tf.range(length), window - 1)

    def belongs(at: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        return tf.cast(at < end[:, tf.newaxis], tf.int32)

    def chunk(start: mtf.Tensor, *loop_vars: mtf.Tensor) -> list[mtf.Tensor]:
        part = integers(part_of, [tokens, start], shape, "chunk")
        positions = integers(count_up, [part, start], shape, "positions")
        fed = Fed(positions, integers(belongs, [positions, last], shape, "counts"))
        _, written = decoder.advance(part, fed, unflatten(loop_vars, caches))
        return [start + length, *flatten(written)]

    end, *filled = mtf.while_loop(more, chunk, [start, *flatten(caches)])
    return end, unflatten(filled, caches)


def _append(state: _State, drawn: mtf.Tensor, rows: dict[str, mtf.Tensor]) -> _State:
    """Writes the drawn tokens behind the active rows and ends rows that are done."""
    dims = state.tokens.shape.dims

    def write(
        text: tf.Tensor, position: tf.Tensor, active: tf.Tensor, token: tf.Tensor
    ) -> tf.Tensor:
        here = tf.equal(tf.range(dims[1].size), (position + 1)[:, tf.newaxis])
        here = tf.logical_and(here, active[:, tf.newaxis] > 0)
        return tf.where(here, token[:, tf.newaxis] + tf.zeros_like(text), text)

    def still_active(
        position: tf.Tensor,
        active: tf.Tensor,
        token: tf.Tensor,
        ends: tf.Tensor,
        stop_ids: tf.Tensor,
    ) -> tf.Tensor:
        open_end = tf.logical_and(position + 1 < ends, tf.not_equal(token, stop_ids))
        return active * tf.cast(open_end, tf.int32)

    tokens = integers(write, [*state, drawn], dims, "append")
    position = state.position + state.active
    inputs = [position, state.active, drawn, rows["ends"], rows["stop_ids"]]
    return _State(tokens, position, integers(still_active, inputs, dims[:1], "active"))


def _decode(
    decoder: Decoder,
    state: _State,
    rows: dict[str, mtf.Tensor],
    caches: Caches,
) -> _State:
    """Writes one token per row and round until no row is active."""

    def more(*loop_vars: mtf.Tensor) -> mtf.Tensor:
        return mtf.greater(mtf.reduce_sum(_State(*loop_vars[:3]).active), 0)

    def step(*loop_vars: mtf.Tensor) -> list[mtf.Tensor]:
        state = _State(*loop_vars[:3])
        logits, written = decoder.next_logits(*state, unflatten(loop_vars[3:], caches))
        drawn = next_tokens(decoder, logits, state.tokens, state.position, rows)
        return [*_append(state, drawn, rows), *flatten(written)]

    return _State(*mtf.while_loop(more, step, [*state, *flatten(caches)])[:3])


def generate(
    mesh: mtf.Mesh,
    config: Config,
    mesh_layout: MeshLayout,
    features: dict[str, tf.Tensor],
    prepares: bool = False,
) -> Generated:
    """Continues each row of tokens.

    Args:
        mesh: to build on.
        config: a checked config.
        mesh_layout: how the graph will be split (batch, heads, embd, vocab and
            intermediate_expanded may be).
        features: see ``FEATURES``.
        prepares: whether the graph is one that keeps weights in the form of products, and does
            nothing else with them (products.py).
    """
    batch_size = features["tokens"].shape.as_list()[0]
    dims = cache_dims(config, batch_size)
    rows = {
        name: mtf.import_tf_tensor(mesh, features[name], mtf.Shape([dims.batch]))
        for name in FEATURES
        if name != "tokens"
    }
    padded = tf.pad(features["tokens"], [[0, 0], [0, dims.memory_length.size - config.n_ctx]])
    tokens = mtf.import_tf_tensor(mesh, padded, mtf.Shape([dims.batch, dims.memory_length]))
    # The last token of a prompt is fed by the first decoding step, which needs its logits.
    position = rows["lengths"] - 1
    longest = mtf.import_tf_tensor(mesh, tf.reduce_max(features["lengths"]) - 1, mtf.Shape([]))
    start = mtf.zeros(mesh, mtf.Shape([]), tf.int32)
    caches: Caches = {}
    for length, left in prefill_chunks(dims).items():
        decoder = Decoder(mesh, config, dims, mesh_layout, length, prepares)
        caches = caches or empty_caches(decoder.model)
        start, caches = _prefill(decoder, tokens, position, start, longest - left, caches)
    active = integers(
        lambda at, ends: tf.cast(at + 1 < ends, tf.int32), [position, rows["ends"]],
        [dims.batch], "active",
    )  # fmt: skip
    decoder = Decoder(mesh, config, dims, mesh_layout, 1, prepares)
    state = _decode(decoder, _State(tokens, position, active), rows, caches)
    return Generated(state.tokens, state.position + 1)
