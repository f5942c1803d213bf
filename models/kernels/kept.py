"""Tensors that stay on the mesh between two runs of a graph.

Each slice is a resource variable on its processor. Reading one hands out its buffer, so kernels
that write in place change what the next run reads, and nothing is copied; other values are
assigned. No checkpoint holds them: they are filled when weights are brought to the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from models.kernels.operation import kernel
from models.kernels.prepared import Filling
from utils.mesh_tensorflow import mtf


class KeptTensor(mtf.Operation):
    """Reads a tensor that stays; its only output."""

    def __init__(self, mesh: mtf.Mesh, shape: mtf.Shape, dtype: tf.DType, fill: float, name: str):
        super().__init__([], mesh, name)
        self._fill = fill
        self._outputs = [mtf.Tensor(self, shape, dtype)]

    def lower(self, lowering: Any) -> None:
        """Makes the variables, reads them, and has them filled when weights are loaded."""
        [output] = self.outputs
        mesh_impl = lowering.mesh_impl(self)
        shape = mesh_impl.slice_shape(output.shape)
        variables, fills, values = [], [], []
        for number, device in enumerate(mesh_impl.devices):
            with tf.device(device):
                # A fresh buffer: equal constants are one buffer to the graph optimizer, and
                # assigning it to variables that are written in place would let them meet in it.
                buffer = tf.raw_ops.Empty(shape=shape, dtype=output.dtype, init=True)
                variable = tf.compat.v1.get_variable(
                    f"{self.name}_{number}",
                    shape,
                    output.dtype,
                    tf.compat.v1.zeros_initializer(),
                    collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                    use_resource=True,
                )
                value = buffer + tf.cast(self._fill, output.dtype) if self._fill else buffer
                fills.append(variable.assign(value, read_value=False))
                values.append(variable.read_value())
            variables.append(variable)
        self.variables = variables
        lowering.variables[self] = Filling(tf.group(fills))
        laid_out = mesh_impl.LaidOutTensor.from_tensor_list(values)
        lowering.set_tensor_lowering(output, laid_out)


class KeepOperation(mtf.Operation):
    """Leaves new values in tensors that stay."""

    def __init__(self, kept: Sequence[mtf.Tensor], values: Sequence[mtf.Tensor], in_place: bool):
        super().__init__(list(values), name="keep")
        self._kept = kept
        self._in_place = in_place

    def lower(self, lowering: Any) -> None:
        """Assigns the values, unless making them has written them where they belong."""
        done = []
        for kept, value in zip(self._kept, self.inputs):
            slices = lowering.tensors[value].to_laid_out_tensor().all_slices
            for variable, piece in zip(kept.operation.variables, slices):
                with tf.device(piece.device):
                    is_there = self._in_place
                    done.append(piece.op if is_there else variable.assign(piece, read_value=False))
        lowering.operations[self] = tf.group(done)


def kept_like(tensor: mtf.Tensor, fill: float, name: str) -> mtf.Tensor:
    """A tensor that stays, with the shape and dtype of ``tensor``; at first ``fill``."""
    return KeptTensor(tensor.mesh, tensor.shape, tensor.dtype, fill, name).outputs[0]


def keep(
    kept: Sequence[mtf.Tensor], values: Sequence[mtf.Tensor], in_place: bool = False
) -> mtf.Operation:
    """The operation that leaves ``values`` in ``kept``.

    Args:
        kept: see ``kept_like``.
        values: as many, of the same shapes.
        in_place: whether the values are the buffers of ``kept`` themselves.
    """
    return KeepOperation(kept, values, in_place)


def insert_blocks(
    target: mtf.Tensor, source: mtf.Tensor, slot: mtf.Tensor, count: mtf.Tensor
) -> mtf.Tensor:
    """Writes the first blocks of a text into one row of a cache, in place.

    Args:
        target: [blocks, batch, ...], a buffer that may be written; the batch may be split.
        source: [blocks, one, ...], the same sizes but for the second dimension, which is 1.
        slot: int32 scalar, row of the batch.
        count: int32 scalar, blocks to be written.

    Returns:
        The buffer of ``target``.
    """
    batch = target.shape.dims[1]

    def write(old: tf.Tensor, new: tf.Tensor, rows: tf.Tensor, *where: tf.Tensor) -> tf.Tensor:
        at, blocks = where
        here = at - rows[0]
        held, row_size = old.shape.as_list()[1], old.shape[2:].num_elements()
        is_here = tf.logical_and(here >= 0, here < held)
        blocks = tf.where(is_here, blocks, 0)
        flat = tf.raw_ops.InplaceUpdate(
            x=tf.reshape(old, [-1, row_size]),
            i=tf.range(blocks) * held + here,
            v=tf.reshape(new[:blocks], [-1, row_size]),
        )
        return tf.reshape(flat, old.shape)

    rows = mtf.range(target.mesh, batch, tf.int32)
    return _insert(write, target, [target, source, rows, slot, count], "insert_blocks")


def insert_row(target: mtf.Tensor, source: mtf.Tensor, slot: mtf.Tensor) -> mtf.Tensor:
    """``target`` [batch, ...] with ``source`` [one, ...] in its row ``slot``; a new tensor."""
    batch = target.shape.dims[0]

    def write(old: tf.Tensor, new: tf.Tensor, rows: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        is_row = tf.reshape(tf.equal(rows, at), [-1] + [1] * (old.shape.ndims - 1))
        return tf.where(is_row, new, old)

    rows = mtf.range(target.mesh, batch, tf.int32)
    return _insert(write, target, [target, source, rows, slot], "insert_row")


def _insert(write: Any, target: mtf.Tensor, inputs: Sequence[mtf.Tensor], name: str) -> mtf.Tensor:
    outputs = [(target.shape, target.dtype)]
    [result] = kernel(write, inputs, outputs, target.shape.dims, name, differentiable=False)
    return result
