"""A Mesh Transformer JAX checkpoint as our variables, weights and Adam's moments."""

from __future__ import annotations

from typing import Optional

import numpy as np

from configs.schema import Config
from interop.mtj_configs import check_division
from interop.mtj_files import MtjFiles
from interop.mtj_leaves import EMBEDDING, EMBEDDING_BIAS, Leaf, Merge, leaves
from interop.tensors import DTYPES, TensorSpec, check_tensors

MOMENTS = ("/adam_m", "/adam_v")
"""What names of our variables end in that are Adam's moments."""

_SCALARS = 3  # of a state with an optimizer: Adam's count, the schedule's, the step


class MtjSource:
    """Reads our variables; a shard's part of one is in memory beside the whole.

    Attributes:
        specs: our weights, and Adam's moments of each if the checkpoint has them, in float32.
        has_optimizer: whether it has them.
        step: updates that the weights have seen.
        adam_count: updates that the moments have seen; None without.
        schedule_count: updates that the schedule of the learning rate has seen; None without.

    Args:
        files: of the step.
        config: of the model.

    Raises:
        ValueError: the leaves are not those of the config.
    """

    def __init__(self, files: MtjFiles, config: Config):
        self._files = files
        self._leaves = leaves(config)
        self._positions = {leaf.name: number for number, leaf in enumerate(self._leaves)}
        self._by_variable = {leaf.variable: leaf for leaf in self._leaves if leaf.variable}
        self.has_optimizer = self._has_optimizer()
        self._check_shards(config)
        check_division(config, files.shards, files.folder)
        self._check_counts()
        for shard in range(files.shards):
            self._check_shapes(shard)
        count = len(self._leaves)
        self.step = self._scalar(-1)
        self.adam_count: Optional[int] = self._scalar(0) if self.has_optimizer else None
        self.schedule_count: Optional[int] = (
            self._scalar(1 + 2 * count) if self.has_optimizer else None
        )
        float32 = DTYPES["fp32"]
        weights = {name: TensorSpec(leaf.shape, float32) for name, leaf in
                   self._by_variable.items()}  # fmt: skip
        suffixes = ("", *MOMENTS) if self.has_optimizer else ("",)
        self.specs = {
            f"{name}{suffix}": spec for suffix in suffixes for name, spec in weights.items()
        }

    def _has_optimizer(self) -> bool:
        """Whether there is an optimizer, which the number of leaves says."""
        count = len(self._leaves)
        slim, full = count + 1, 3 * count + _SCALARS
        found = len(self._files.specs(0))
        if found not in (slim, full):
            raise ValueError(
                f"a shard must have the {slim} leaves of the config's weights and step, or {full} "
                f"with its optimizer; got {found} in {self._files.folder}. Name the config of "
                "this model with --model, or copy the files again."
            )
        return found == full

    def _check_counts(self) -> None:
        first = len(self._files.specs(0))
        for shard in range(1, self._files.shards):
            number = len(self._files.specs(shard))
            if number != first:
                raise ValueError(
                    f"all shards must have as many leaves; got {first} in shard_0 and {number} in "
                    f"shard_{shard} of {self._files.folder}. Copy the files again."
                )

    def _first_weight(self) -> int:
        """Position of the first weight: the optimizer is before them."""
        return len(self._files.specs(0)) - 1 - len(self._leaves)

    def _check_shards(self, config: Config) -> None:
        """Compares the number of shards with the part of the vocabulary that each has."""
        position = self._first_weight() + self._positions[EMBEDDING]
        shape = self._files.specs(0)[position].shape
        is_part = len(shape) == 2 and shape[1] == config.n_embd and shape[0]
        if not is_part or config.n_vocab % shape[0]:
            return  # of another config, which the comparison of shapes says
        shards = config.n_vocab // shape[0]
        if shards != self._files.shards:
            raise ValueError(
                f"a checkpoint must have all of its {shards} shards, since each has {shape[0]} of "
                f"{config.n_vocab} rows of the embedding; got {self._files.shards} in "
                f"{self._files.folder}. Copy the rest."
            )

    def _check_shapes(self, shard: int) -> None:
        """Compares the shapes of weights, then of moments, by name."""
        specs, count = self._files.specs(shard), len(self._leaves)
        begins = {"": self._first_weight()}
        if self.has_optimizer:
            begins |= {"mu ": 1, "nu ": 1 + count}
        for prefix, begin in begins.items():
            names = [f"{prefix}{leaf.name}" for leaf in self._leaves]
            got = dict(zip(names, specs[begin : begin + count]))
            shapes = [leaf.piece(self._files.shards) for leaf in self._leaves]
            where = f"{self._files.folder}, shard_{shard}"
            check_tensors(got, dict(zip(names, shapes)), where, ())
        for position in {0, 1 + 2 * count, 3 * count + 2} if self.has_optimizer else {count}:
            if specs[position].dtype.kind not in "iu" or np.prod(specs[position].shape) != 1:
                raise ValueError(
                    f"a count of updates must be a whole number; got {specs[position].dtype} "
                    f"{list(specs[position].shape)} at position {position} in "
                    f"{self._files.folder}, shard_{shard}. Name the config of this model."
                )

    def _scalar(self, position: int) -> int:
        position %= len(self._files.specs(0))
        return int(self._files.read(0, position).reshape(()))

    def read(self, name: str) -> np.ndarray:
        """Reads one variable.

        Raises:
            ValueError: a file is damaged.
        """
        moment = next((suffix for suffix in MOMENTS if name.endswith(suffix)), "")
        leaf = self._by_variable[name.removesuffix(moment)]
        if moment:
            return self._moment(leaf, MOMENTS.index(moment))
        begin = self._first_weight()
        whole = self._merged(leaf, begin, leaf.merge)
        if leaf.name == EMBEDDING:  # the bias is added to every token's row alike
            bias = self._leaves[self._positions[EMBEDDING_BIAS]]
            whole += self._merged(bias, begin, bias.merge)
        return whole

    def _moment(self, leaf: Leaf, number: int) -> np.ndarray:
        """Of the first or second moment.

        Every term of a sum has the gradient of the sum, so the moments of one are its own; so it
        is with copies.
        """
        is_split = leaf.merge in (Merge.ROWS, Merge.COLUMNS)
        begin = 1 + number * len(self._leaves)
        return self._merged(leaf, begin, leaf.merge if is_split else Merge.FIRST)

    def _merged(self, leaf: Leaf, begin: int, merge: Merge) -> np.ndarray:
        """A leaf of all shards; ``begin`` is the first position of the leaves of its kind."""
        position = begin + self._positions[leaf.name]
        shards = range(1 if merge is Merge.FIRST else self._files.shards)
        whole = np.zeros(leaf.shape, np.float32)
        for shard in shards:
            piece = self._files.read(shard, position)
            if merge in (Merge.ROWS, Merge.COLUMNS):
                size = piece.shape[merge.value]
                place = slice(shard * size, (shard + 1) * size)
                whole[(slice(None),) * merge.value + (place,)] = piece
            else:
                whole += piece.astype(np.float32)
            del piece  # before the next one is read
        if merge is Merge.MEAN:
            whole /= len(shards)
        return whole
