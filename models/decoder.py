"""What every way to generate text has in common: feeding against a cache, and drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from configs.schema import Config
from models.dimensions import CACHE_BLOCK, Dimensions
from models.gpt import GPT
from models.kernels.operation import kernel
from models.kernels.sampling import draw, penalized, scores_of, token_at
from models.layer_caches import CACHE_KINDS, Caches, Fed
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

PREFILL_CHUNKS = {256: 128, CACHE_BLOCK: 0}
"""Positions of a prompt that are processed at once, while more than so many are left. Each chunk
reads all weights, so large ones come first."""

ROW_SETTINGS = {
    "seeds": tf.int32,
    "temperature": tf.float32,
    "top_k": tf.int32,
    "top_p": tf.float32,
    "entmax": tf.bool,
    "repetition_penalty": tf.float32,
}
"""How the tokens of a row are drawn, each [batch]; see kernels/sampling.py."""

TOP_TOKENS = 5  # of a step whose log-probabilities can be had


def cache_dims(config: Config, batch_size: int) -> Dimensions:
    """The dimensions of generation: keys and values in whole blocks."""
    length = -(-config.n_ctx // CACHE_BLOCK) * CACHE_BLOCK
    return Dimensions.from_config(config, batch_size).with_cache(length)


def prefill_chunks(dims: Dimensions) -> dict[int, int]:
    """The chunks that fit into the cache; see ``PREFILL_CHUNKS``."""
    cache = dims.memory_length.size
    return {length: left for length, left in PREFILL_CHUNKS.items() if length <= cache}


class Decoder:
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

    def next_logits(
        self, text: mtf.Tensor, position: mtf.Tensor, active: mtf.Tensor, caches: Caches
    ) -> tuple[mtf.Tensor, Caches]:
        """Feeds the token at ``position`` [batch] of each row of text [batch, memory_length].

        Rows whose ``active`` [batch] is 0 leave no trace in a running state.

        Returns:
            (logits [batch, sequence = 1, vocab], caches).
        """
        shape = [self.dims.batch, self.dims.sequence]
        last_token = integers(token_at, [text, position], shape, "last_token")
        fed = Fed(*(mtf.reshape(x, mtf.Shape(shape)) for x in (position, active)))
        hidden, written = self.advance(last_token, fed, caches)
        return self.model.logits(hidden), written


def integers(function: Any, inputs: Sequence[mtf.Tensor], dims: Any, name: str) -> mtf.Tensor:
    """A kernel over rows that makes int32 [dims]; the batch may be split."""
    output = [(mtf.Shape(dims), tf.int32)]
    [result] = kernel(function, inputs, output, dims[:1], name, differentiable=False)
    return result


class Drawn(NamedTuple):
    """The next token of each row.

    Attributes:
        tokens: [batch] int32.
        log_probabilities: [batch] float32: of those tokens, by the model's own distribution.
        top_tokens: [batch, top_tokens] int32: its most likely ones.
        top_log_probabilities: [batch, top_tokens] float32.
    """

    tokens: mtf.Tensor
    log_probabilities: mtf.Tensor
    top_tokens: mtf.Tensor
    top_log_probabilities: mtf.Tensor


def _usable(config: Config) -> int:
    """Tokens that may be drawn: ids that no token of the dataset has only pad the embedding."""
    return min(config.token_count, config.dataset.n_vocab) if config.dataset else config.token_count


def _whole(decoder: Decoder, logits: mtf.Tensor) -> mtf.Tensor:
    """Logits [batch, sequence = 1, vocab] as [batch, candidates], which no layout splits."""
    dims = decoder.dims
    candidates = mtf.Dimension("candidates", dims.vocab.size)
    return mtf.reshape(logits, mtf.Shape([dims.batch, candidates]))


def next_tokens(
    decoder: Decoder,
    logits: mtf.Tensor,
    text: mtf.Tensor,
    position: mtf.Tensor,
    rows: Mapping[str, mtf.Tensor],
) -> mtf.Tensor:
    """Draws what follows ``position`` in each row.

    Args:
        decoder: whose logits they are.
        logits: [batch, sequence = 1, vocab].
        text: [batch, memory_length] int32: the text so far.
        position: [batch] int32: its last position.
        rows: see ``ROW_SETTINGS``.

    Returns:
        [batch] int32.
    """
    usable = _usable(decoder.model.config)

    def drawn(
        values: tf.Tensor, text: tf.Tensor, at: tf.Tensor, penalty: tf.Tensor, *settings: tf.Tensor
    ) -> tf.Tensor:
        return draw(penalized(values[:, :usable], text, at + 1, penalty), at + 1, *settings)

    settings = [rows[name] for name in ROW_SETTINGS if name != "repetition_penalty"]
    inputs = [_whole(decoder, logits), text, position, rows["repetition_penalty"], *settings]
    return integers(drawn, inputs, [decoder.dims.batch], "draw")


def with_scores(
    decoder: Decoder, logits: mtf.Tensor, tokens: mtf.Tensor, scored: mtf.Tensor
) -> Drawn:
    """Drawn tokens with their log-probabilities.

    Args:
        decoder: whose logits they are.
        logits: [batch, sequence = 1, vocab].
        tokens: [batch] int32.
        scored: [batch] bool: rows whose log-probabilities are asked for.
    """
    usable = _usable(decoder.model.config)
    count = min(TOP_TOKENS, usable)
    row = mtf.Shape([decoder.dims.batch])
    top = mtf.Shape([*row.dims, decoder.dims.top_tokens(count)])

    def scores(values: tf.Tensor, tokens: tf.Tensor, wanted: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return scores_of(values[:, :usable], tokens, wanted, count)

    inputs = [_whole(decoder, logits), tokens, scored]
    outputs = [(row, tf.float32), (top, tf.int32), (top, tf.float32)]
    return Drawn(tokens, *kernel(scores, inputs, outputs, row.dims, "scores", differentiable=False))
