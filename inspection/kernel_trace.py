"""What a kernel computes and allocates on one processor, read off its TensorFlow function.

A kernel is opaque to Mesh TensorFlow. Here its function, and that of its gradient, are traced
once on placeholders of the slices' sizes; nothing is executed. Equal operations are merged, as
TensorFlow's graph optimizer does: a gradient that repeats its forward part costs nothing twice,
and what it shares with the forward part stays in memory until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import tensorflow as tf

from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

# Operations whose result is the memory of their input.
_VIEWS = frozenset(
    {"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Snapshot"}
)
# Operations that TensorFlow lets write over an input.
_IN_PLACE = frozenset(
    {
        *(
            "Abs",
            "Add",
            "AddN",
            "AddV2",
            "BiasAdd",
            "BitwiseXor",
            "Erf",
            "Exp",
            "Log",
            "LogicalAnd",
        ),
        *("Maximum", "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu", "ReluGrad"),
        *("RightShift", "Rsqrt", "SelectV2", "Sigmoid", "SigmoidGrad", "Sin", "Cos", "Sqrt"),
        *("Square", "Sub", "Tanh", "TanhGrad", "TensorScatterAdd", "Select"),
    }
)


_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


@dataclass(frozen=True)
class Node:
    """One TensorFlow operation of a kernel; values are numbered.

    Attributes:
        reads: numbers of the values that it reads.
        writes: (number, bytes) of the values that it allocates.
        in_place: see liveness.Step.
        label: type of the operation.
        flops: floating-point operations of a matrix product, 0 for any other operation.
    """

    reads: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]
    in_place: bool
    label: str
    flops: int


@dataclass(frozen=True)
class KernelTrace:
    """A kernel on one processor.

    Attributes:
        inputs: value of each input of the kernel.
        outputs: value of each output of the kernel.
        nodes: operations of the kernel.
        gradient_inputs: value of each input of its gradient; empty without a gradient.
        gradient_outputs: value of each output of its gradient.
        gradient_nodes: operations that the gradient adds.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[Node, ...]
    gradient_inputs: tuple[int, ...]
    gradient_outputs: tuple[int, ...]
    gradient_nodes: tuple[Node, ...]


class _Slice:
    """One processor's part of a tensor."""

    def __init__(self, tensor: tf.Tensor):
        self.tensor = tensor

    @property
    def all_slices(self) -> list[tf.Tensor]:
        return [self.tensor]

    def to_laid_out_tensor(self) -> _Slice:
        return self


class _OneProcessor(mtf.MeshImpl):
    """A mesh of which one processor is looked at."""

    fuses_kernels = True

    def slicewise(self, function: Callable[..., Any], *inputs: _Slice) -> Any:
        values = function(*(part.tensor for part in inputs))
        if isinstance(values, (tuple, list)):
            return tuple(_Slice(value) for value in values)
        return _Slice(values)


class _KernelLowering:
    """What a kernel asks of mtf.Lowering."""

    def __init__(self, mesh_impl: _OneProcessor):
        self._mesh_impl = mesh_impl
        self.tensors: dict[mtf.Tensor, Any] = {}

    def mesh_impl(self, operation: mtf.Operation) -> _OneProcessor:
        return self._mesh_impl

    def set_tensor_lowering(self, tensor: mtf.Tensor, value: Any) -> None:
        if isinstance(value, mtf.LazyAllreduceSum):  # the sum replaces the summand
            value = value.laid_out_input
        self.tensors[tensor] = value

    def feed(self, tensors: Sequence[mtf.Tensor]) -> None:
        """Stands placeholders in for tensors that are not there yet."""
        for tensor in tensors:
            if tensor not in self.tensors:
                shape = self._mesh_impl.slice_shape(tensor.shape)
                placeholder = tf.compat.v1.placeholder(tensor.dtype, shape)
                self.tensors[tensor] = _Slice(placeholder)

    def values(self, tensors: Sequence[mtf.Tensor]) -> list[tf.Tensor]:
        return [self.tensors[tensor].tensor for tensor in tensors]


def trace_kernel(
    operation: mtf.Operation, gradient: Optional[mtf.Operation], mesh_layout: MeshLayout
) -> KernelTrace:
    """Traces a kernel and, if it has one, its gradient.

    Args:
        operation: a KernelOperation.
        gradient: its KernelGradientOperation, or None.
        mesh_layout: how the graph will be split.

    Raises:
        ValueError: the layout splits a dimension that the kernel needs whole.
    """
    with tf.Graph().as_default() as graph:
        mesh_impl = _OneProcessor(mesh_layout.mesh_shape, mesh_layout.layout)
        lowering = _KernelLowering(mesh_impl)
        for part in [operation] if gradient is None else [operation, gradient]:
            lowering.feed(part.inputs)
            part.lower(lowering)
        numbering = _Numbering()
        inputs = numbering.numbers(lowering.values(operation.inputs))
        results = lowering.values(operation.outputs)
        nodes = numbering.nodes(graph, results)
        outputs = numbering.numbers(results)
        if gradient is None:
            return KernelTrace(inputs, outputs, nodes, (), (), ())
        results = lowering.values(gradient.outputs)
        gradient_nodes = numbering.nodes(graph, results)
        later = numbering.numbers(lowering.values(gradient.inputs))
        return KernelTrace(
            inputs, outputs, nodes, later, numbering.numbers(results), gradient_nodes
        )


class _Numbering:
    """Numbers the values of a graph; equal operations and views share a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._equal: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._count = 0

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def numbers(self, tensors: Sequence[tf.Tensor]) -> tuple[int, ...]:
        """The values' numbers; a placeholder gets one when it is first asked for."""
        for tensor in tensors:
            if tensor.op.type == "Placeholder" and tensor.name not in self._numbers:
                self._numbers[tensor.name] = self._new()
        return tuple(self._numbers[tensor.name] for tensor in tensors)

    def nodes(self, graph: tf.Graph, results: Sequence[tf.Tensor]) -> tuple[Node, ...]:
        """Operations that ``results`` need, without those numbered already."""
        needed: set[tf.Operation] = set()
        pending = [tensor.op for tensor in results]
        while pending:
            operation = pending.pop()
            if operation not in needed:
                needed.add(operation)
                pending += [tensor.op for tensor in operation.inputs]
                pending += operation.control_inputs
        nodes = [self._node(op) for op in graph.get_operations() if op in needed]
        return tuple(node for node in nodes if node is not None)

    def _node(self, operation: tf.Operation) -> Optional[Node]:
        if operation.type == "Placeholder":
            self.numbers(operation.outputs)
        if all(tensor.name in self._numbers for tensor in operation.outputs):
            return None
        waits_for = [before.outputs[0] for before in operation.control_inputs if before.outputs]
        reads = self.numbers([*operation.inputs, *waits_for])
        if operation.type in _VIEWS and not waits_for:
            self._numbers[operation.outputs[0].name] = reads[0]
            return None
        attributes = operation.node_def.attr
        key = (
            operation.type,
            reads,
            *sorted((name, str(attributes[name])) for name in attributes),
        )
        # TensorFlow merges equal operations, but no calls of compiled programs.
        known = None if operation.type in _CALLS else self._equal.get(key)
        if known is None:
            self._equal[key] = tuple(self._new() for _ in operation.outputs)
        for tensor, number in zip(operation.outputs, self._equal[key]):
            self._numbers[tensor.name] = number
        if known is not None:
            return None
        writes = tuple(
            # A size that depends on values is a count or a shape, and small.
            (number, (tensor.shape.num_elements() or 0) * tensor.dtype.size)
            for tensor, number in zip(operation.outputs, self._equal[key])
        )
        in_place = operation.type in _IN_PLACE | _VIEWS
        return Node(reads, writes, in_place, operation.type, _matrix_product_flops(operation))


def size_bytes(shape: Sequence[int], dtype: tf.DType) -> int:
    """Bytes of a tensor of known shape."""
    return math.prod(shape) * dtype.size


def _matrix_product_flops(operation: tf.Operation) -> int:
    """Multiplications plus additions of a matrix product, 0 for any other operation."""
    if operation.type == "Einsum":
        inputs, output = operation.get_attr("equation").decode().split("->")
        labels = inputs.split(",")
        sizes = {
            label: size
            for term, tensor in zip(labels, operation.inputs)
            for label, size in zip(term, tensor.shape.as_list())
        }
        contracts = len(labels) > 1 and not set(sizes) <= set(output)
        return 2 * math.prod(sizes.values()) if contracts else 0
    if operation.type in ("MatMul", "BatchMatMul", "BatchMatMulV2"):
        flag = "transpose_a" if operation.type == "MatMul" else "adj_x"
        contracted = operation.inputs[0].shape.as_list()[-2 if operation.get_attr(flag) else -1]
        return 2 * contracted * math.prod(operation.outputs[0].shape.as_list())
    return 0
