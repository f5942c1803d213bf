"""Makes checkpoints as Mesh Transformer JAX writes them, out of variables of ours.

It knows the names of that program's parameters, and puts them in order as its library does. The
converter knows the order only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional

import ml_dtypes
import numpy as np

Arrays = Mapping[str, np.ndarray]
Tree = dict[str, dict[str, np.ndarray]]
ROOT, PIECES = "causal_transformer_shard/~", 16
NORM_MODULES = {"layernorm": "replicated_layer_norm", "rmsnorm": "rms_norm"}


class Sharder:
    """Divides arrays among shards.

    Args:
        shards: how many.
        are_weights: whether biases of row-parallel layers are terms of a sum, and copies differ;
            moments of them are equal instead.
    """

    def __init__(self, shards: int, are_weights: bool):
        self.shards = shards
        self._are_weights = are_weights
        self._random = np.random.default_rng(shards)

    def split(self, whole: np.ndarray, axis: int) -> list[np.ndarray]:
        return np.split(whole, self.shards, axis)

    def noise(self, whole: np.ndarray) -> list[np.ndarray]:
        return [
            self._random.normal(0, 0.1, whole.shape).astype(np.float32)
            for _ in range(self.shards - 1)
        ]

    def terms(self, whole: np.ndarray) -> list[np.ndarray]:
        if not self._are_weights:
            return [whole] * self.shards
        others = self.noise(whole)
        return [(whole - sum(others, np.float32(0))).astype(np.float32), *others]

    def copies(self, whole: np.ndarray, norm: str) -> list[np.ndarray]:
        """A layer norm's first copy counts, of other norms the mean."""
        if norm != "layernorm":
            return self.terms(whole * self.shards) if self._are_weights else [whole] * self.shards
        return [whole] + self.noise(whole)


def modules(
    ours: Arrays, norm: str, sharder: Sharder, embedding_bias: np.ndarray
) -> Iterator[tuple[str, str, list[np.ndarray]]]:
    """Module, parameter and one array per shard, in no order."""
    yield "embedding_shard/~/linear", "w", sharder.split(ours["gpt2/wte"] - embedding_bias, 0)
    yield "embedding_shard/~/linear", "b", sharder.terms(embedding_bias)
    if "gpt2/wpe" in ours:
        yield "embedding_shard", "pos_embs", sharder.split(ours["gpt2/wpe"], 1)
    if "gpt2/relative_positions/table" in ours:
        table = ours["gpt2/relative_positions/table"]
        yield "relative_position_embs", "rel_embedding", sharder.split(table, 0)
    places = {"projection_shard": "gpt2/ln_f"}
    layer = 0
    while f"gpt2/h{layer}/attn/q" in ours:
        theirs, scope = f"layer_{layer}/~/linear", f"gpt2/h{layer}"
        places[f"layer_{layer}"] = f"{scope}/norm_1"
        for suffix, name in (("", "q"), ("_1", "v"), ("_2", "k")):
            yield f"{theirs}{suffix}", "w", sharder.split(ours[f"{scope}/attn/{name}"], 1)
        yield f"{theirs}_3", "w", sharder.split(ours[f"{scope}/attn/o"], 0)
        mlp = f"{scope}/mlp/conv1d_main"
        yield f"{theirs}_4", "w", sharder.split(ours[f"{mlp}/c_fc/kernel"], 1)
        yield f"{theirs}_4", "b", sharder.split(ours[f"{mlp}/c_fc/bias"], 0)
        yield f"{theirs}_5", "w", sharder.split(ours[f"{mlp}/c_proj/kernel"], 0)
        yield f"{theirs}_5", "b", sharder.terms(ours[f"{mlp}/c_proj/bias"])
        layer += 1
    head = "gpt2/wte_final_linear/conv1d_main/linear_out"
    yield "projection_shard/~/linear", "w", sharder.split(ours[f"{head}/kernel"], 1)
    yield "projection_shard/~/linear", "b", sharder.split(ours[f"{head}/bias"], 0)
    for theirs, scope in places.items():
        module = f"{theirs}/~/{NORM_MODULES[norm]}"
        for parameter, name in (("scale", "g"), ("offset", "b")):
            if f"{scope}/{name}" in ours:
                yield module, parameter, sharder.copies(ours[f"{scope}/{name}"], norm)


def flattened(ours: Arrays, norm: str, shards: int, are_weights: bool) -> list[list[np.ndarray]]:
    """The leaves of each shard, in the order of the sorted keys of nested dictionaries."""
    width = ours["gpt2/wte"].shape[1]
    bias = np.linspace(-0.3, 0.2, width, dtype=np.float32) if are_weights else np.zeros(width)
    trees: list[Tree] = [{} for _ in range(shards)]
    pieces = modules(ours, norm, Sharder(shards, are_weights), bias.astype(np.float32))
    for module, parameter, arrays in pieces:
        for tree, array in zip(trees, arrays):
            tree.setdefault(f"{ROOT}/{module}", {})[parameter] = array
    return [
        [module[name] for _, module in sorted(tree.items()) for name in sorted(module)]
        for tree in trees
    ]


def write_mtj(
    folder: Path,
    ours: Arrays,
    shards: int,
    *,
    step: int = 7,
    moments: Optional[tuple[Arrays, Arrays]] = None,
    counts: tuple[int, int] = (7, 7),
    dtype: type = np.float32,
    norm: str = "layernorm",
) -> Path:
    """Writes ``step_<step>`` with its shards, full with Adam's moments or slim; returns it.

    Args:
        folder: of the run.
        ours: weights by the names of our variables.
        shards: how many.
        step: updates of the weights.
        moments: Adam's first and second, by names of our variables.
        counts: updates of the moments, and of the schedule.
        dtype: of the weights.
        norm: layernorm or rmsnorm.
    """
    weights = flattened(ours, norm, shards, are_weights=True)
    others = [flattened(moment, norm, shards, are_weights=False) for moment in moments or ()]
    for shard in range(shards):
        leaves = [stored(leaf, dtype) for leaf in weights[shard]]
        leaves.append(np.array(step, np.int32))
        if moments:
            optimizer = [np.array(counts[0], np.int32), *others[0][shard], *others[1][shard]]
            leaves = [*optimizer, np.array(counts[1], np.int32), *leaves]
        place = folder / f"step_{step}" / f"shard_{shard}"
        place.mkdir(parents=True)
        most, longer = divmod(len(leaves), PIECES)
        begin = 0
        for piece in range(PIECES):
            end = begin + most + (piece < longer)
            np.savez(place / f"{piece}.npz", *leaves[begin:end])
            begin = end
    return folder / f"step_{step}"


def stored(leaf: np.ndarray, dtype: type) -> np.ndarray:
    """A leaf in a number format; NumPy's files have no bfloat16, only its bytes."""
    array = np.asarray(leaf, dtype)
    return array.view("V2") if dtype is ml_dtypes.bfloat16 else array


def with_spare_rows(ours: Arrays, rows: int) -> dict[str, np.ndarray]:
    """Variables with more rows of the vocabulary at its end."""
    head = "gpt2/wte_final_linear/conv1d_main/linear_out"
    axes = {"gpt2/wte": 0, f"{head}/kernel": 1, f"{head}/bias": 0}
    return {
        name: np.pad(
            array,
            [(0, rows * (axis == axes.get(name))) for axis in range(array.ndim)],
            constant_values=0.5,
        )
        for name, array in ours.items()
    }


def random_moments(ours: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A first and a second moment of every variable."""
    random = np.random.default_rng(3)
    first, second = (
        {name: random.normal(0, 1, array.shape).astype(np.float32) for name, array in ours.items()}
        for _ in range(2)
    )
    return first, {name: array**2 for name, array in second.items()}
