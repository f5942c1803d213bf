"""What generation keeps of the positions behind it: each attention type has its kind of cache.

A cache is a named tuple of tensors. Layers without attention have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Callable, NamedTuple, Union

from models.attention import attention_window
from models.gpt import GPT
from models.kernels.cache import KeyValueCache, cached_attention, empty_cache
from models.kernels.linear_cache import LinearCache, cached_linear_attention, empty_linear_cache
from utils.mesh_tensorflow import mtf

LayerCache = Union[KeyValueCache, LinearCache]
Caches = dict[int, LayerCache]
"""By the number of the layer."""


class Fed(NamedTuple):
    """Where the tokens stand that are fed to the model, each [batch, sequence] int32.

    Attributes:
        positions: in their own text.
        counts: 1 for those that belong to their text so far, 0 for what only fills up the chunk
            or the batch. Whatever is fed at a position a second time replaces rows of a
            key-value cache, but would be added to a running state.
    """

    positions: mtf.Tensor
    counts: mtf.Tensor


class CacheKind(NamedTuple):
    """The cache of one attention type.

    Attributes:
        empty: from a model and the number of a layer to the cache of an empty text.
        attend: from a model, the number of a layer, queries, keys and values (each [batch,
            sequence, heads, features_per_head]), a cache and where they stand to (mixed values,
            the cache that holds the new positions too).
        idle: values of the cache's tensors where there is no text yet, if the cache stays from
            one run of a graph to the next.
        in_place: whether new positions are written into the cache's own buffers.
    """

    empty: Callable[[GPT, int], Any]
    attend: Callable[..., tuple[mtf.Tensor, Any]]
    idle: tuple[float, ...]
    in_place: bool


def _empty_keys_and_values(model: GPT, layer: int) -> KeyValueCache:
    return empty_cache(model.mesh, model.dims, model.dtype, model.mesh_layout.compiled)


def _attend_to_keys(
    model: GPT,
    layer: int,
    queries: mtf.Tensor,
    keys: mtf.Tensor,
    values: mtf.Tensor,
    cache: KeyValueCache,
    fed: Fed,
) -> tuple[mtf.Tensor, KeyValueCache]:
    return cached_attention(
        queries,
        keys,
        values,
        cache,
        fed.positions,
        attention_window(model.config, layer),
        model.slots(layer),
        model.mesh_layout.compiled,
        model.relative_positions(),
    )


def _empty_state(model: GPT, layer: int) -> LinearCache:
    return empty_linear_cache(model.mesh, model.dims, model.slots(layer))


def _attend_to_state(
    model: GPT,
    layer: int,
    queries: mtf.Tensor,
    keys: mtf.Tensor,
    values: mtf.Tensor,
    cache: LinearCache,
    fed: Fed,
) -> tuple[mtf.Tensor, LinearCache]:
    return cached_linear_attention(queries, keys, values, cache, fed.counts)


_KEYS_AND_VALUES = CacheKind(_empty_keys_and_values, _attend_to_keys, (0.0, 0.0), in_place=True)
CACHE_KINDS = {
    "global": _KEYS_AND_VALUES,
    "local": _KEYS_AND_VALUES,
    # Whoever divides by an idle normalizer gets finite values.
    "linear": CacheKind(_empty_state, _attend_to_state, (0.0, 1.0, 0.0), in_place=False),
}
"""By the name of the attention type in a config."""


def empty_caches(model: GPT) -> Caches:
    """The caches of an empty text, for the model's batch and its ``memory_length``."""
    types = enumerate(model.config.attention_layers)
    return {n: CACHE_KINDS[name].empty(model, n) for n, name in types if name in CACHE_KINDS}


def flatten(caches: Caches) -> list[mtf.Tensor]:
    """All tensors, as loop variables."""
    return [tensor for cache in caches.values() for tensor in cache]


def unflatten(tensors: Sequence[mtf.Tensor], like: Caches) -> Caches:
    """The inverse of ``flatten``, for caches of the kinds of ``like``."""
    rest = iter(tensors)
    return {layer: type(cache)(*islice(rest, len(cache))) for layer, cache in like.items()}
