"""Rules between `layout`, `mesh_shape` and the sizes of the model."""

from collections.abc import Iterator
from itertools import combinations

from configs.errors import choose_from, problem
from configs.names import DIMENSION_NAMES, LAYOUT_DIMENSIONS, MODEL_TENSORS, MODEL_WEIGHTS
from configs.schema import Config

_FEED_FORWARD_FACTOR = 4

# Dimension -> the key that gives its size, and the size as a multiple of that key's value.
_SIZES: dict[str, tuple[str, int]] = {
    "heads": ("n_head", 1),
    "embd": ("n_embd", 1),
    "vocab": ("n_vocab", 1),
    "intermediate_expanded": ("n_embd", _FEED_FORWARD_FACTOR),
    "sequence": ("n_ctx", 1),
    "memory_length": ("n_ctx", 1),
    "embed_sequence": ("n_ctx", 1),
}


def dimensions_are_known(config: Config) -> Iterator[str]:
    """Layout names dimensions that exist, each once, and none that cannot be split."""
    seen: set[str] = set()
    for dim, axis in config.layout_rules:
        if dim not in DIMENSION_NAMES:
            remedy = choose_from(dim, LAYOUT_DIMENSIONS)
            yield problem("layout", "names an unknown dimension", f"{dim}:{axis}", remedy)
        elif dim in seen:
            yield problem(
                "layout", f"must name '{dim}' once", config.layout, "keep one of its rules"
            )
        elif dim == "features_per_head":
            yield problem(
                "layout",
                "must not split 'features_per_head'",
                f"{dim}:{axis}",
                f"split heads instead, heads:{axis}",
            )
        seen.add(dim)


def layout_axes_exist(config: Config) -> Iterator[str]:
    """Layout names axes that the mesh has."""
    axes = [name for name, _ in config.mesh_axes]
    for dim, axis in config.layout_rules:
        if axis not in axes:
            yield problem(
                "layout",
                f"names mesh axis '{axis}', which mesh_shape {config.mesh_shape} does not have",
                f"{dim}:{axis}",
                f"use {' or '.join(axes)}, or add '{axis}' to mesh_shape",
            )


def optimizer_axis_exists(config: Config) -> Iterator[str]:
    """Optimizer slots are split over an axis that the mesh has."""
    axes = [name for name, _ in config.mesh_axes]
    axis = config.optimizer_shard_axis
    if axis is not None and axis not in axes:
        yield problem(
            "optimizer_shard_axis",
            f"must be an axis of mesh_shape {config.mesh_shape}",
            axis,
            f"use {' or '.join(axes)}, or remove it",
        )


def shards_optimizer(config: Config) -> bool:
    """Whether `optimizer_shard_axis` splits a slot that `layout` alone does not split.

    True without the key, which then asks for nothing.
    """
    axis, sizes = config.optimizer_shard_axis, dict(config.mesh_axes)
    if axis is None:
        return True
    pieces, rules = sizes.get(axis, 1), dict(config.layout_rules)
    lengths = {
        "embd": config.n_embd,
        "heads": config.n_embd,
        "vocab": config.n_vocab,
        "intermediate_expanded": _FEED_FORWARD_FACTOR * config.n_embd,
    }
    return pieces > 1 and any(
        axis not in map(rules.get, dims)
        and any(sizes.get(rules.get(d, ""), 1) == 1 and lengths[d] % pieces == 0 for d in dims)
        for dims in MODEL_WEIGHTS
    )


def tensors_use_an_axis_once(config: Config) -> Iterator[str]:
    """No tensor has two dimensions on one mesh axis."""
    rules = dict(config.layout_rules)
    for first, second in combinations(rules, 2):
        if rules[first] != rules[second]:
            continue
        tensor = next((dims for dims in MODEL_TENSORS if {first, second} <= set(dims)), None)
        if tensor is not None:
            axis = rules[first]
            yield problem(
                "layout",
                f"must not put '{first}' and '{second}' on one mesh axis, tensor "
                f"[{', '.join(tensor)}] has both",
                f"{first}:{axis},{second}:{axis}",
                "give them different axes or split one of them only",
            )


def _splits(config: Config) -> Iterator[tuple[str, str, int]]:
    """Yields (dimension, mesh axis, axis size) of the rules whose axis exists."""
    sizes = dict(config.mesh_axes)
    for dim, axis in dict(config.layout_rules).items():
        if axis in sizes:
            yield dim, axis, sizes[axis]


def experts_divide(config: Config) -> Iterator[str]:
    """Experts, and the hidden layer of each, are shared equally among the processors."""
    if not config.moe_layers:
        return
    keys = {"experts": "moe_num_experts", "intermediate_expanded": "moe_hidden_size"}
    for dim, axis, size in _splits(config):
        if dim in keys and getattr(config.moe_params, keys[dim]) % size:
            value = getattr(config.moe_params, keys[dim])
            yield problem(
                f"moe_params.{keys[dim]}",
                f"must be a multiple of {size}, the size of mesh axis '{axis}' that layout gives "
                f"to '{dim}'",
                value,
                f"set it to {_next_multiple(value, size)}, or take {dim}:{axis} out of layout",
            )


def experts_see_whole_sequences(config: Config) -> Iterator[str]:
    """Experts take the tokens of a sequence in order, which splits of it cannot count."""
    for dim, axis in config.layout_rules:
        if dim == "sequence" and config.moe_layers:
            yield problem(
                "layout",
                "must not split 'sequence' with moe_layers, experts count a sequence's tokens",
                f"{dim}:{axis}",
                f"split batch or experts instead, experts:{axis}",
            )


def linear_layers_see_whole_sequences(config: Config) -> Iterator[str]:
    """Linear attention sums up the positions in order, which splits of them cannot do alone."""
    for dim, axis, size in _splits(config):
        if dim == "sequence" and size > 1 and "linear" in config.attention_layers:
            yield problem(
                "layout",
                "must not split 'sequence' with linear layers, a position needs the sum over all "
                "before it",
                f"{dim}:{axis}",
                f"split batch or heads instead, heads:{axis}",
            )


def _next_multiple(value: int, factor: int) -> int:
    return -(-value // factor) * factor


def batch_sizes_divide(config: Config) -> Iterator[str]:
    """The batches of training and evaluation are shared equally among the processors."""
    for dim, axis, size in _splits(config):
        if dim != "batch":
            continue
        for key in ("train_batch_size", "eval_batch_size"):
            value = getattr(config, key)
            if value % size:
                yield problem(
                    key,
                    f"must be a multiple of {size}, the size of mesh axis '{axis}' that layout "
                    f"gives to 'batch'",
                    value,
                    f"set it to {_next_multiple(value, size)} or change mesh_shape",
                )


def sizes_divide(config: Config) -> Iterator[str]:
    """Every split dimension is shared equally among the processors of its axis."""
    for dim, axis, size in _splits(config):
        if dim not in _SIZES:
            continue
        key, factor = _SIZES[dim]
        value = getattr(config, key)
        if value * factor % size == 0:
            continue
        if dim == "vocab":
            remedy = f"set it to {_next_multiple(value, size)}, rows beyond the dataset are padding"
        else:
            remedy = f"change it, or take {dim}:{axis} out of layout"
        times = f"times {factor} " if factor > 1 else ""
        yield problem(
            key,
            f"{times}must be a multiple of {size}, the size of mesh axis '{axis}' that layout "
            f"gives to '{dim}'",
            value,
            remedy,
        )
