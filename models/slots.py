"""Generation in slots: graphs that advance a batch of texts which come and go one by one.

Each row of the batch is a slot with a cache of its own that stays on the mesh. One graph feeds the
last token of every slot and draws the next; others feed a prompt in chunks to a cache of one text,
and put that into a slot. All else, texts and settings, is fed at every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from configs.schema import Config
from models.decoder import (
    ROW_SETTINGS,
    Decoder,
    Drawn,
    cache_dims,
    next_tokens,
    prefill_chunks,
    with_scores,
)
from models.dimensions import Dimensions
from models.gpt import GPT
from models.kernels.kept import insert_blocks, insert_row, keep, kept_like
from models.layer_caches import CACHE_KINDS, CacheKind, Caches, Fed, LayerCache, empty_caches
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

STEP_ROWS = {"position": tf.int32, "active": tf.int32, "scored": tf.bool, **ROW_SETTINGS}
"""Inputs of a step beside the text [slots, cache length] int32, each [slots]: position of the last
token, active (0 for slots without a text), scored (whether log-probabilities are asked for), and
how tokens are drawn. An idle slot must stand where an active one does, or more would be read."""

CHUNK_ROWS = ("tokens", "positions", "counts")
"""Inputs of a chunk of a prompt, each [1, length of the chunk] int32; see ``Fed``."""


class SlotGraph(NamedTuple):
    """The graphs, as operations that must be run and tensors that may be looked at.

    Attributes:
        drawn: what a step draws.
        step: leaves what a step adds to the caches.
        chunks: by length, leaves a chunk of a prompt in the prompt's cache.
        begin: makes the prompt's cache that of an empty text.
        insert: puts the prompt's cache into a slot.
    """

    drawn: Drawn
    step: list[mtf.Operation]
    chunks: dict[int, list[mtf.Operation]]
    begin: list[mtf.Operation]
    insert: list[mtf.Operation]


class PromptFeeds(NamedTuple):
    """Inputs of the graphs that deal with a prompt.

    Attributes:
        chunks: by length, by the names of ``CHUNK_ROWS``.
        slot: int32 scalar, into which the prompt is inserted.
        blocks: int32 scalar, blocks of the key-value cache that the prompt fills.
    """

    chunks: Mapping[int, Mapping[str, tf.Tensor]]
    slot: tf.Tensor
    blocks: tf.Tensor


def build_slots(
    mesh: mtf.Mesh,
    config: Config,
    mesh_layout: MeshLayout,
    text: tf.Tensor,
    rows: Mapping[str, tf.Tensor],
    prompt: PromptFeeds,
) -> SlotGraph:
    """Builds the graphs over one set of weights.

    Args:
        mesh: to build on.
        config: a checked config.
        mesh_layout: how the graph will be split (batch, heads, embd, vocab and
            intermediate_expanded may be); not one that XLA compiles.
        text: [slots, cache length] int32, each slot's text from position 0.
        rows: see ``STEP_ROWS``.
        prompt: for the chunks of ``prefill_chunks``.
    """
    assert not mesh_layout.compiled
    dims = cache_dims(config, text.shape.as_list()[0])
    alone = cache_dims(config, 1).for_prompt()

    def decoder(dims: Dimensions, length: int) -> Decoder:
        return Decoder(mesh, config, dims, mesh_layout, length, prepares=True)

    stepper = decoder(dims, 1)
    slots, kept_prompt = _kept(stepper.model, "slots"), None
    drawn, step = _step(stepper, slots, text, rows)
    chunks = {}
    for length in prefill_chunks(alone):
        feeder = decoder(alone, length)
        kept_prompt = kept_prompt or _kept(feeder.model, "prompt")
        chunks[length] = _chunk(feeder, kept_prompt, prompt.chunks[length])
    assert kept_prompt is not None
    begin = _begin(feeder.model, kept_prompt)
    insert = _insert(feeder.model, slots, kept_prompt, prompt)
    return SlotGraph(drawn, step, chunks, begin, insert)


def _kind(model: GPT, layer: int) -> CacheKind:
    return CACHE_KINDS[model.config.attention_layers[layer]]


def _kept(model: GPT, name: str) -> Caches:
    """Caches that stay, of the kinds and shapes of empty ones."""

    def keep_cache(layer: int, cache: LayerCache) -> LayerCache:
        fills = _kind(model, layer).idle
        scope = f"{name}/h{layer}"
        return type(cache)(
            *(kept_like(*x, f"{scope}/{n}") for n, x in enumerate(zip(cache, fills)))
        )

    return {layer: keep_cache(layer, cache) for layer, cache in empty_caches(model).items()}


def _keep(model: GPT, kept: Caches, written: Caches) -> list[mtf.Operation]:
    return [
        keep(cache, written[layer], _kind(model, layer).in_place) for layer, cache in kept.items()
    ]


def _step(
    decoder: Decoder, slots: Caches, text: tf.Tensor, rows: Mapping[str, tf.Tensor]
) -> tuple[Drawn, list[mtf.Operation]]:
    """Feeds the last token of every slot and draws the next."""
    dims, mesh = decoder.dims, decoder.model.mesh
    so_far = mtf.import_tf_tensor(mesh, text, mtf.Shape([dims.batch, dims.memory_length]))
    named = {n: mtf.import_tf_tensor(mesh, rows[n], mtf.Shape([dims.batch])) for n in STEP_ROWS}
    position = named["position"]
    logits, written = decoder.next_logits(so_far, position, named["active"], slots)
    tokens = next_tokens(decoder, logits, so_far, position, named)
    drawn = with_scores(decoder, logits, tokens, named["scored"])
    return drawn, _keep(decoder.model, slots, written)


def _chunk(decoder: Decoder, kept: Caches, feeds: Mapping[str, tf.Tensor]) -> list[mtf.Operation]:
    """Feeds one chunk of a prompt; nobody looks at what comes out."""
    shape = mtf.Shape([decoder.dims.batch, decoder.dims.sequence])
    mesh = decoder.model.mesh
    tokens, *places = (mtf.import_tf_tensor(mesh, feeds[name], shape) for name in CHUNK_ROWS)
    _, written = decoder.advance(tokens, Fed(*places), kept)
    return _keep(decoder.model, kept, written)


def _begin(model: GPT, kept: Caches) -> list[mtf.Operation]:
    """Keys and values need nothing: what no position has written is never seen."""
    empty = {n: cache for n, cache in empty_caches(model).items() if not _kind(model, n).in_place}
    return _keep(model, {layer: kept[layer] for layer in empty}, empty)


def _insert(model: GPT, slots: Caches, kept: Caches, prompt: PromptFeeds) -> list[mtf.Operation]:
    scalar = mtf.Shape([])
    slot, blocks = (
        mtf.import_tf_tensor(model.mesh, x, scalar) for x in (prompt.slot, prompt.blocks)
    )
    inserted = {}
    for layer, cache in slots.items():
        in_place = _kind(model, layer).in_place
        inserted[layer] = type(cache)(
            *(
                insert_blocks(old, new, slot, blocks) if in_place else insert_row(old, new, slot)
                for old, new in zip(cache, kept[layer])
            )
        )
    return _keep(model, slots, inserted)
