"""Creates the model's variables by their checkpoint names, with reproducible initial values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from models.kernels.noise import label_id
from utils.mesh_tensorflow import mtf


@dataclass(frozen=True)
class Weights:
    """Variables of one model on one mesh.

    Every variable draws its initial values from its own seed, made of the run's seed and its
    name, so that they are the same under every layout and do not move when a layer is added.

    Attributes:
        mesh: of the model.
        seed: of the run.
        dtype: of master copy, slices and activations.
        prefix: scope of all names; ``gpt2`` in GPT-Neo's checkpoints.
    """

    mesh: mtf.Mesh
    seed: int
    dtype: mtf.VariableDType
    prefix: str = "gpt2"

    def _get(self, name: str, dims: Sequence[mtf.Dimension], initializer: Any) -> mtf.Tensor:
        return mtf.get_variable(
            self.mesh,
            f"{self.prefix}/{name}",
            mtf.Shape(dims),
            dtype=self.dtype,
            initializer=initializer,
        )

    def normal(self, name: str, dims: Sequence[mtf.Dimension], stddev: float) -> mtf.Tensor:
        """A variable [dims] drawn from N(0, stddev)."""
        seed = (self.seed * 0x9E3779B1 + label_id(f"{self.prefix}/{name}")) % (2**31 - 1)
        return self._get(
            name, dims, tf.compat.v1.random_normal_initializer(stddev=stddev, seed=seed)
        )

    def zeros(self, name: str, dims: Sequence[mtf.Dimension]) -> mtf.Tensor:
        """A variable [dims] that starts at 0."""
        return self._get(name, dims, tf.compat.v1.zeros_initializer())

    def ones(self, name: str, dims: Sequence[mtf.Dimension]) -> mtf.Tensor:
        """A variable [dims] that starts at 1."""
        return self._get(name, dims, tf.compat.v1.ones_initializer())
