"""A graph in named dimensions as one processor sees it: sizes of slices, insides of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Optional

from inspection.kernel_trace import KernelTrace, trace_kernel
from models.kernels.head_loss import HeadLoss
from models.kernels.operation import KernelGradientOperation, KernelOperation
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

_NUMBERS = re.compile(r"(_\d+)?(_gradient)?(_\d+)?$")


def kind_of(operation: mtf.Operation) -> str:
    """The operation's name without scopes and without the numbers that make it unique."""
    return _NUMBERS.sub(r"\2", operation.name.rpartition("/")[2], count=1)


def contracted_space(operation: mtf.EinsumOperation) -> Optional[mtf.Shape]:
    """The index space of a matrix product.

    None when one of the tensors has all dimensions: Mesh TensorFlow then multiplies element by
    element (and sums up).
    """
    shapes = [tensor.shape for tensor in operation.inputs]
    dims = list(dict.fromkeys(dim for shape in shapes for dim in shape.dims))
    widest = max(shape.ndims for shape in [*shapes, operation.outputs[0].shape])
    return None if widest == len(dims) else mtf.Shape(dims)


class LoopBody(NamedTuple):
    """What a loop does in each iteration.

    Attributes:
        inputs: stand for the loop's variables.
        operations: in order.
        outputs: one per output of the loop: first its variables, then what the loop adds up over
            its iterations.
    """

    inputs: tuple[mtf.Tensor, ...]
    operations: tuple[mtf.Operation, ...]
    outputs: tuple[mtf.Tensor, ...]


def loop_body(loop: mtf.WhileLoopOperation) -> LoopBody:
    """The body of a loop (Mesh TensorFlow keeps it to itself)."""
    parts = (loop._body_inputs, loop._body_ops, loop._body_outputs)
    return LoopBody(*(tuple(part) for part in parts))


def body_tensor(tensor: mtf.Tensor) -> mtf.Tensor:
    """The tensor of a loop's body that becomes ``tensor``; itself if no loop made it."""
    loop = tensor.operation
    if not isinstance(loop, mtf.WhileLoopOperation):
        return tensor
    return loop_body(loop).outputs[loop.outputs.index(tensor)]


class ProcessorView:
    """One processor's part of a graph.

    Args:
        graph: in named dimensions.
        mesh_layout: how it will be split.
        loop_iterations: how often the body of a loop runs; all loops are alike.
    """

    def __init__(self, graph: mtf.Graph, mesh_layout: MeshLayout, loop_iterations: int = 1):
        self.graph = graph
        self.mesh_layout = mesh_layout
        self.loop_iterations = loop_iterations
        self._mesh_impl = mtf.MeshImpl(mesh_layout.mesh_shape, mesh_layout.layout)
        self._slices: dict[tuple[mtf.Dimension, ...], list[int]] = {}
        self._traces: dict[tuple[object, ...], KernelTrace] = {}
        self._gradients = {
            operation.forward: operation
            for operation, _ in self.executed()
            if isinstance(operation, KernelGradientOperation)
        }

    def executed(self) -> Iterator[tuple[mtf.Operation, int]]:
        """Every operation and how often it runs; those of a loop's body come before the loop."""
        return _executed(self.graph.operations, 1, self.loop_iterations)

    def slice_shape(self, shape: mtf.Shape) -> list[int]:
        """Sizes of the processor's slice of a tensor."""
        key = tuple(shape.dims)
        if key not in self._slices:
            self._slices[key] = self._mesh_impl.slice_shape(shape)
        return self._slices[key]

    def workspace_bytes(self, operation: HeadLoss) -> int:
        """What the processor holds while the operation runs, beside its inputs and outputs."""
        return operation.workspace_bytes(self._mesh_impl)

    def trace(self, operation: KernelOperation) -> KernelTrace:
        """The trace of a kernel; those of one kind and of equal tensors are taken for equal.

        Raises:
            ValueError: the layout splits a dimension that the kernel needs whole.
        """
        gradient = self._gradients.get(operation)
        tensors = operation.inputs + operation.outputs
        if gradient is not None:
            tensors += gradient.inputs
        shapes = [(tuple(tensor.shape.dims), tensor.dtype) for tensor in tensors]
        key = (kind_of(operation), gradient is None, *shapes)
        if key not in self._traces:
            self._traces[key] = trace_kernel(operation, gradient, self.mesh_layout)
        return self._traces[key]


def _executed(
    operations: Iterable[mtf.Operation], times: int, iterations: int
) -> Iterator[tuple[mtf.Operation, int]]:
    for operation in operations:
        if isinstance(operation, mtf.WhileLoopOperation):
            yield from _executed(loop_body(operation).operations, times * iterations, iterations)
        yield operation, times
