"""A graph in named dimensions as one processor sees it: sizes of slices, insides of kernels."""

from __future__ import annotations

import re
from typing import Optional

from inspection.kernel_trace import KernelTrace, trace_kernel
from models.kernels.operation import KernelGradientOperation, KernelOperation
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

_NUMBER = re.compile(r"_\d+$")


def kind_of(operation: mtf.Operation) -> str:
    """The operation's name without scopes and without the number that makes it unique."""
    return _NUMBER.sub("", operation.name.rpartition("/")[2])


def differentiated_name(operation: KernelGradientOperation) -> str:
    """Name of the kernel that a gradient belongs to: mtf.gradients puts it into the scope."""
    return operation.name.rpartition("/gradients/")[0]


def contracted_space(operation: mtf.EinsumOperation) -> Optional[mtf.Shape]:
    """The index space of a matrix product.

    None when one of the tensors has all dimensions: Mesh TensorFlow then multiplies element by
    element (and sums up).
    """
    shapes = [tensor.shape for tensor in operation.inputs]
    dims = list(dict.fromkeys(dim for shape in shapes for dim in shape.dims))
    widest = max(shape.ndims for shape in [*shapes, operation.outputs[0].shape])
    return None if widest == len(dims) else mtf.Shape(dims)


class ProcessorView:
    """One processor's part of a graph.

    Args:
        graph: in named dimensions.
        mesh_layout: how it will be split.
    """

    def __init__(self, graph: mtf.Graph, mesh_layout: MeshLayout):
        self.graph = graph
        self.mesh_layout = mesh_layout
        self._mesh_impl = mtf.MeshImpl(mesh_layout.mesh_shape, mesh_layout.layout)
        self._slices: dict[tuple[mtf.Dimension, ...], list[int]] = {}
        self._traces: dict[tuple[object, ...], KernelTrace] = {}
        self._gradients = {
            differentiated_name(operation): operation
            for operation in graph.operations
            if isinstance(operation, KernelGradientOperation)
        }

    def slice_shape(self, shape: mtf.Shape) -> list[int]:
        """Sizes of the processor's slice of a tensor."""
        key = tuple(shape.dims)
        if key not in self._slices:
            self._slices[key] = self._mesh_impl.slice_shape(shape)
        return self._slices[key]

    def trace(self, operation: KernelOperation) -> KernelTrace:
        """The trace of a kernel; those of one kind and of equal tensors are taken for equal.

        Raises:
            ValueError: the layout splits a dimension that the kernel needs whole.
        """
        gradient = self._gradients.get(operation.name)
        tensors = operation.inputs + operation.outputs
        if gradient is not None:
            tensors += gradient.inputs
        shapes = [(tuple(tensor.shape.dims), tensor.dtype) for tensor in tensors]
        key = (kind_of(operation), gradient is None, *shapes)
        if key not in self._traces:
            self._traces[key] = trace_kernel(operation, gradient, self.mesh_layout)
        return self._traces[key]
