"""What an update rule is given, and what it gives back."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from utils.mesh_tensorflow import mtf


class Parameter(NamedTuple):
    """One trained variable, in the dims of its optimizer slots.

    Attributes:
        name: of the variable.
        weight: its value, float32.
        gradient: of the same dims, float32.
        factor: what the gradient is multiplied by (clipping), float32 scalar that depends on all
            gradients of the step.
        rate: learning rate, float32 scalar.
        weight_decay: decoupled, times ``rate``.
    """

    name: str
    weight: mtf.Tensor
    gradient: mtf.Tensor
    factor: mtf.Tensor
    rate: mtf.Tensor
    weight_decay: float

    @property
    def shape(self) -> mtf.Shape:
        """Of weight, gradient and slots."""
        return self.weight.shape

    def slot(self, suffix: str, shape: mtf.Shape) -> mtf.Tensor:
        """The optimizer's variable ``<name><suffix>``: it starts at 0 and is in checkpoints."""
        return mtf.get_variable(
            self.weight.mesh,
            self.name + suffix,
            shape,
            dtype=tf.float32,
            initializer=_zeros,
            trainable=False,
        )


def _zeros(shape: list[int], dtype: tf.DType) -> tf.Tensor:
    """Zeros that are there when they are asked for.

    TensorFlow folds those of ``zeros_initializer`` into the graph as constants up to 10 MB, which
    takes seven of the eight seconds in which 125M parameters and their slots are initialized.
    """
    return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=True)


class Update(NamedTuple):
    """One step of one parameter.

    Attributes:
        amount: what is to be subtracted from the weight, of its dims, float32.
        slots: assignments of the optimizer's variables.
    """

    amount: mtf.Tensor
    slots: list[mtf.Operation]
