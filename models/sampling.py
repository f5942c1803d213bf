"""Text generation in named dimensions: prefill of the prompt, then one token at a time.

Both phases run the same blocks against the same cache. Rows are aligned at their first token
and each stands at its own position, so prompts of different length need no padding that could be
seen, and no token id has a special meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from configs.schema import Config
from models.dimensions import CACHE_BLOCK, Dimensions
from models.gpt import GPT
from models.kernels.operation import kernel
from models.kernels.sampling import draw
from models.layer_caches import CACHE_KINDS, Caches, Fed, empty_caches, flatten, unflatten
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

PREFILL_CHUNKS = {256: 128, CACHE_BLOCK: 0}
"""Positions of a prompt that are processed at once, while more than so many are left. Each chunk
reads all weights, so large ones come first."""

FEATURES = {
    "tokens": tf.int32,
    "lengths": tf.int32,
    "ends": tf.int32,
    "stop_ids": tf.int32,
    "seeds": tf.int32,
    "temperature": tf.float32,
    "top_k": tf.int32,
    "top_p": tf.float32,
    "entmax": tf.bool,
}
"""Inputs of the prediction graph: tokens [batch, n_ctx] (text from position 0), the others
[batch]: lengths of the prompts (at least 1), ends (length at which a row stops, at most n_ctx),
stop_ids (token that ends a row, -1 for none), seeds, and sampling settings (kernels/sampling.py).
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


class _Decoder:
    """One model that feeds ``sequence`` positions at a time against a cache."""

    def __init__(
        self,
        mesh: mtf.Mesh,
        config: Config,
        dims: Dimensions,
        mesh_layout: MeshLayout,
        length: int,
        prepares: bool,
    ):
        self.dims = dims.with_sequence(length)
        self.model = GPT(mesh, config, self.dims, mesh_layout, prepares=prepares)

    def advance(self, tokens: mtf.Tensor, fed: Fed, caches: Caches) -> tuple[mtf.Tensor, Caches]:
        """Feeds tokens [batch, sequence]; returns hidden states and what is kept of all so far."""
        written = dict(caches)

        def attend(
            queries: mtf.Tensor, keys: mtf.Tensor, values: mtf.Tensor, layer: int
        ) -> mtf.Tensor:
            kind = CACHE_KINDS[self.model.config.attention_layers[layer]]
            mixed, written[layer] = kind.attend(
                self.model, layer, queries, keys, values, caches[layer], fed
            )
            return mixed

        return self.model.hidden_states(tokens, fed.positions, attend), written


def _integers(function: Any, inputs: Sequence[mtf.Tensor], dims: Any, name: str) -> mtf.Tensor:
    """A kernel over rows that makes int32 [dims]; the batch may be split."""
    output = [(mtf.Shape(dims), tf.int32)]
    [result] = kernel(function, inputs, output, dims[:1], name, differentiable=False)
    return result


def _prefill(
    decoder: _Decoder,
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
        part = _integers(part_of, [tokens, start], shape, "chunk")
        positions = _integers(count_up, [part, start], shape, "positions")
        fed = Fed(positions, _integers(belongs, [positions, last], shape, "counts"))
        _, written = decoder.advance(part, fed, unflatten(loop_vars, caches))
        return [start + length, *flatten(written)]

    end, *filled = mtf.while_loop(more, chunk, [start, *flatten(caches)])
    return end, unflatten(filled, caches)


def _next_tokens(
    logits: mtf.Tensor, state: _State, rows: dict[str, mtf.Tensor], dims: Dimensions, usable: int
) -> mtf.Tensor:
    """Draws a token per row from logits [batch, sequence=1, vocab].

    Ids from ``usable`` on only pad the embedding and are never drawn.
    """
    whole = mtf.Dimension("candidates", dims.vocab.size)
    logits = mtf.reshape(logits, mtf.Shape([dims.batch, whole]))

    def draw_usable(values: tf.Tensor, position: tf.Tensor, *settings: tf.Tensor) -> tf.Tensor:
        return draw(values[:, :usable], position + 1, *settings)

    settings = [rows[name] for name in ("seeds", "temperature", "top_k", "top_p", "entmax")]
    return _integers(draw_usable, [logits, state.position, *settings], [dims.batch], "draw")


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

    tokens = _integers(write, [*state, drawn], dims, "append")
    position = state.position + state.active
    inputs = [position, state.active, drawn, rows["ends"], rows["stop_ids"]]
    return _State(tokens, position, _integers(still_active, inputs, dims[:1], "active"))


def _decode(
    decoder: _Decoder,
    state: _State,
    rows: dict[str, mtf.Tensor],
    caches: Caches,
    usable: int,
) -> _State:
    """Writes one token per row and round until no row is active."""
    dims = decoder.dims

    def more(*loop_vars: mtf.Tensor) -> mtf.Tensor:
        return mtf.greater(mtf.reduce_sum(_State(*loop_vars[:3]).active), 0)

    def step(*loop_vars: mtf.Tensor) -> list[mtf.Tensor]:
        state = _State(*loop_vars[:3])
        shape = [dims.batch, dims.sequence]
        last_token = _integers(
            lambda text, at: tf.gather(text, at[:, tf.newaxis], batch_dims=1),
            [state.tokens, state.position],
            shape,
            "last_token",
        )
        fed = Fed(*(mtf.reshape(x, mtf.Shape(shape)) for x in (state.position, state.active)))
        hidden, written = decoder.advance(last_token, fed, unflatten(loop_vars[3:], caches))
        drawn = _next_tokens(decoder.model.logits(hidden), state, rows, dims, usable)
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
    cache_length = -(-config.n_ctx // CACHE_BLOCK) * CACHE_BLOCK
    dims = Dimensions.from_config(config, batch_size).with_cache(cache_length)
    rows = {
        name: mtf.import_tf_tensor(mesh, features[name], mtf.Shape([dims.batch]))
        for name in FEATURES
        if name != "tokens"
    }
    padded = tf.pad(features["tokens"], [[0, 0], [0, cache_length - config.n_ctx]])
    tokens = mtf.import_tf_tensor(mesh, padded, mtf.Shape([dims.batch, dims.memory_length]))
    # The last token of a prompt is fed by the first decoding step, which needs its logits.
    position = rows["lengths"] - 1
    longest = mtf.import_tf_tensor(mesh, tf.reduce_max(features["lengths"]) - 1, mtf.Shape([]))
    start = mtf.zeros(mesh, mtf.Shape([]), tf.int32)
    caches: Caches = {}
    for length, left in PREFILL_CHUNKS.items():
        if length > cache_length:
            continue
        decoder = _Decoder(mesh, config, dims, mesh_layout, length, prepares)
        caches = caches or empty_caches(decoder.model)
        start, caches = _prefill(decoder, tokens, position, start, longest - left, caches)
    active = _integers(
        lambda at, ends: tf.cast(at + 1 < ends, tf.int32), [position, rows["ends"]],
        [dims.batch], "active",
    )  # fmt: skip
    usable = min(config.n_vocab, config.dataset.n_vocab) if config.dataset else config.n_vocab
    decoder = _Decoder(mesh, config, dims, mesh_layout, 1, prepares)
    state = _decode(decoder, _State(tokens, position, active), rows, caches, usable)
    return Generated(state.tokens, state.position + 1)
