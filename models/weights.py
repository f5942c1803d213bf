"""Creates the model's variables by their checkpoint names, with reproducible initial values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from models.kernels.noise import label_id
from utils.mesh_tensorflow import mtf

FLOAT32 = mtf.VariableDType(tf.float32, tf.float32, tf.float32)
"""Of every variable, in checkpoints and on the mesh, also when activations are bfloat16: kernels
round weights as they read them, so that gradients arrive, and are added up, in float32."""


@dataclass(frozen=True)
class Weights:
    """Variables of one model on one mesh.

    Every variable draws its initial values from its own seed, made of the run's seed and its
    name, so that they are the same under every layout and do not move when a layer is added.

    Attributes:
        mesh: of the model.
        seed: of the run.
        shares_layers: whether all layers have the same variables.
        prepares: whether products read the weights in a form of their own; see products.py.
        prefix: scope of all names; ``gpt2`` in GPT-Neo's checkpoints.
    """

    mesh: mtf.Mesh
    seed: int
    shares_layers: bool = False
    prepares: bool = False
    prefix: str = "gpt2"

    def layer_scope(self, layer: int) -> str:
        """Scope of the variables of ``layer``; empty (GPT-Neo's choice) when layers share them."""
        return "" if self.shares_layers else f"h{layer}"

    def _get(self, name: str, dims: Sequence[mtf.Dimension], initializer: Any) -> mtf.Tensor:
        return mtf.get_variable(
            self.mesh,
            f"{self.prefix}/{name}",
            mtf.Shape(dims),
            dtype=FLOAT32,
            initializer=initializer,
        )

    def _seed_of(self, name: str) -> int:
        return (self.seed * 0x9E3779B1 + label_id(f"{self.prefix}/{name}")) % (2**31 - 1)

    def normal(self, name: str, dims: Sequence[mtf.Dimension], stddev: float) -> mtf.Tensor:
        """A variable [dims] drawn from N(0, stddev)."""
        initializer = tf.compat.v1.random_normal_initializer(
            stddev=stddev, seed=self._seed_of(name)
        )
        return self._get(name, dims, initializer)

    def truncated_normal(
        self, name: str, dims: Sequence[mtf.Dimension], stddev: float
    ) -> mtf.Tensor:
        """A variable [dims] drawn from N(0, stddev) without what is beyond two ``stddev``."""
        initializer = tf.compat.v1.truncated_normal_initializer(
            stddev=stddev, seed=self._seed_of(name)
        )
        return self._get(name, dims, initializer)

    def zeros(self, name: str, dims: Sequence[mtf.Dimension]) -> mtf.Tensor:
        """A variable [dims] that starts at 0."""
        return self._get(name, dims, tf.compat.v1.zeros_initializer())

    def ones(self, name: str, dims: Sequence[mtf.Dimension]) -> mtf.Tensor:
        """A variable [dims] that starts at 1."""
        return self._get(name, dims, tf.compat.v1.ones_initializer())

    def constant(self, name: str, dims: Sequence[mtf.Dimension], value: float) -> mtf.Tensor:
        """A variable [dims] that starts at ``value``."""
        return self._get(name, dims, tf.compat.v1.constant_initializer(value))
