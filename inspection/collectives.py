"""What one operation sends between processors, read off its own lowering.

The operation is lowered once on placeholders of the slices' sizes, on a mesh that notes what is
asked of it; nothing is executed. Kernels are not looked into: inside, they never communicate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

import tensorflow as tf

from inspection.kernel_trace import size_bytes
from models.kernels.operation import KernelGradientOperation, KernelOperation
from utils.mesh_tensorflow import mtf

SUM, GATHER, ALL_TO_ALL, SHIFT = "all-reduce", "all-gather", "all-to-all", "shift"


class Sent(NamedTuple):
    """One collective operation.

    Attributes:
        kind: SUM, GATHER, ALL_TO_ALL or SHIFT.
        reduction: ``SUM``, ``MAX`` or ``MIN`` of an all-reduce; empty for the other kinds.
        axes: numbers of the mesh axes along which processors exchange.
        size_bytes: of the tensor on one processor; for GATHER of the whole that each ends with.
        dtype: of the tensor.
    """

    kind: str
    reduction: str
    axes: tuple[int, ...]
    size_bytes: int
    dtype: tf.DType


class Effect(NamedTuple):
    """What an operation does to sums that are still outstanding, and what it sends itself.

    Attributes:
        settled: numbers of the inputs whose outstanding sum it must carry out.
        sent: collectives of its own.
        outputs: of each output: the mesh axes over which it remains to be summed; the number of
            the input whose outstanding sum it is; or None if it is complete.
    """

    settled: tuple[int, ...]
    sent: tuple[Sent, ...]
    outputs: tuple[Union[tuple[int, ...], int, None], ...]


class _Slice:
    """One processor's part of a tensor; ``number`` tells inputs that are outstanding sums."""

    def __init__(self, tensor: tf.Tensor, number: Optional[int] = None):
        self.tensor = tensor
        self.number = number

    @property
    def all_slices(self) -> list[tf.Tensor]:
        return [self.tensor]

    tensor_list = all_slices

    @property
    def slice_shape(self) -> list[int]:
        return self.tensor.shape.as_list()

    def to_laid_out_tensor(self) -> _Slice:
        return self


class _NotingMesh(mtf.MeshImpl):
    """A mesh of which one processor is looked at, and what it sends noted."""

    def __init__(self, shape: mtf.Shape, layout: mtf.LayoutRules):
        super().__init__(shape, layout)
        self.sent: list[Sent] = []
        self.settled: list[int] = []
        self.kernel: Optional[mtf.Operation] = None

    def slicewise(self, fn: Callable[..., Any], *inputs: Any) -> Any:
        inputs = mtf.convert_args_to_laid_out_tensors(inputs)
        if self.kernel is not None:
            outputs = self.kernel.outputs
            return tuple(self.placeholder(output) for output in outputs)
        values = fn(*(x.tensor if isinstance(x, _Slice) else x for x in inputs))
        if isinstance(values, tuple):
            return tuple(_Slice(value) for value in values)
        return _Slice(values)

    def placeholder(self, tensor: mtf.Tensor, number: Optional[int] = None) -> _Slice:
        shape = self.slice_shape(tensor.shape)
        return _Slice(tf.compat.v1.placeholder(tensor.dtype, shape), number)

    def laid_out_pnum(self) -> _Slice:
        return _Slice(tf.compat.v1.placeholder(tf.int32, []))

    def _note(self, kind: str, reduction: str, axes: Sequence[int], tensor: tf.Tensor) -> None:
        size = size_bytes(tensor.shape.as_list(), tensor.dtype)
        self.sent.append(Sent(kind, reduction, tuple(axes), size, tensor.dtype))

    def allreduce(self, x: Any, mesh_axes: Sequence[int], reduction_fn_string: str) -> _Slice:
        x = x.to_laid_out_tensor()
        if x.number is not None:
            self.settled.append(x.number)
        else:
            self._note(SUM, reduction_fn_string, mesh_axes, x.tensor)
        return _Slice(x.tensor)

    def allconcat(self, x: Any, mesh_axis: int, concat_axis: int) -> _Slice:
        tensor = x.to_laid_out_tensor().tensor
        whole = _resized(tensor, concat_axis, self.shape[mesh_axis].size, 1)
        self._note(GATHER, "", [mesh_axis], whole)
        return _Slice(whole)

    def alltoall(self, x: Any, mesh_axis: int, split_axis: int, concat_axis: int) -> _Slice:
        tensor = x.to_laid_out_tensor().tensor
        self._note(ALL_TO_ALL, "", [mesh_axis], tensor)
        pieces = self.shape[mesh_axis].size
        split = _resized(tensor, split_axis, 1, pieces)
        return _Slice(_resized(split, concat_axis, pieces, 1))

    def receive(self, x: Any, mesh_axis: int, source_pcoord: Sequence[Optional[int]]) -> _Slice:
        tensor = x.to_laid_out_tensor().tensor
        self._note(SHIFT, "", [mesh_axis], tensor)
        return _Slice(tensor)


def _resized(tensor: tf.Tensor, axis: int, times: int, divided_by: int) -> tf.Tensor:
    shape = tensor.shape.as_list()
    shape[axis] = shape[axis] * times // divided_by
    return tf.compat.v1.placeholder(tensor.dtype, shape)


class _OperationLowering:
    """What one operation asks of mtf.Lowering."""

    def __init__(self, mesh_impl: _NotingMesh):
        self._mesh_impl = mesh_impl
        self.tensors: dict[mtf.Tensor, Any] = {}

    def mesh_impl(self, operation: mtf.Operation) -> _NotingMesh:
        return self._mesh_impl

    def laid_out_size(self, tensor: mtf.Tensor) -> int:
        return self._mesh_impl.laid_out_size(tensor.shape)

    def add_counter(self, key: str, value: int) -> None:
        """Mesh TensorFlow counts elements, without their type."""

    def set_tensor_lowering(self, tensor: mtf.Tensor, value: Any) -> None:
        self.tensors[tensor] = value


def effect_of(
    operation: mtf.Operation,
    outstanding: Sequence[Optional[tuple[int, ...]]],
    mesh_shape: mtf.Shape,
    layout: mtf.LayoutRules,
) -> Effect:
    """Lowers one operation.

    Args:
        operation: with at least one input; no variable, assignment or loop.
        outstanding: per input the mesh axes over which it remains to be summed, None if complete.
        mesh_shape: of the run.
        layout: of the run.

    Raises:
        ValueError: the layout splits a dimension that the operation needs whole.
    """
    with tf.Graph().as_default():
        mesh_impl = _NotingMesh(mesh_shape, layout)
        if isinstance(operation, (KernelOperation, KernelGradientOperation)):
            mesh_impl.kernel = operation
        lowering = _OperationLowering(mesh_impl)
        for number, (tensor, axes) in enumerate(zip(operation.inputs, outstanding)):
            value = mesh_impl.placeholder(tensor, None if axes is None else number)
            lowering.tensors[tensor] = (
                value if axes is None else mtf.LazyAllreduceSum(mesh_impl, value, list(axes))
            )
        for tensor in getattr(operation, "_dependencies", ()):  # mtf.depend reads more than inputs
            lowering.tensors.setdefault(tensor, mesh_impl.placeholder(tensor))
        operation.lower(lowering)
        outputs = tuple(_remaining(lowering.tensors[tensor]) for tensor in operation.outputs)
    return Effect(tuple(mesh_impl.settled), tuple(mesh_impl.sent), outputs)


def _remaining(value: Any) -> Union[tuple[int, ...], int, None]:
    if not isinstance(value, mtf.LazyAllreduceSum):
        return None
    number = value.laid_out_input.number
    return tuple(value.mesh_axes) if number is None else number
