"""Memory and arithmetic of a training graph in named dimensions, without lowering it.

Method of the memory estimate: the operations are walked in the order in which they were built,
but those that need nothing but variables come first, since TensorFlow's executor starts whatever
is ready. A tensor lives from the operation that makes it to the last that reads it, at the size
of one processor's slice. Reshapes that keep the layout are views; elementwise operations write
over an input that nobody reads later; kernels are looked into (kernel_trace.py). Left out is what
the graph does not show: workspace inside single TensorFlow operations (transposed copies for a
matrix product), buffers of collectives, fragmentation, and TensorFlow itself.

Method of the arithmetic: 2 operations per element of the index space of every matrix product.
Elementwise work is not counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from inspection.kernel_trace import KernelTrace, Node, size_bytes, trace_kernel
from inspection.liveness import Buffer, Lifetime, Step, lifetimes, occupancy
from models.kernels.operation import KernelGradientOperation, KernelOperation
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

_ELEMENTWISE = (
    mtf.SlicewiseOperation,
    mtf.ops.ScalarMultiplyOperation,
    mtf.ops.ScalarAddOperation,
    mtf.ops.BinaryOpWithBroadcasting,
)
_VIEWS = (mtf.ops.ReshapeOperation, mtf.ops.Depend, mtf.ops.StopGradient)


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of the matrix products of one training step.

    Attributes:
        forward: of the whole batch, each product counted once however it is split.
        backward: the same for the backward pass.
        per_processor: what one processor executes, forward and backward.
    """

    forward: int
    backward: int
    per_processor: int


@dataclass(frozen=True)
class StepMemory:
    """Memory of one processor during a training step, beside variables; bytes.

    Attributes:
        gradients: of all trained variables, as they wait for the update.
        activations: largest total of everything else.
        peak: largest total of gradients and activations together.
        phase: of the peak: forward, backward or update.
        largest: (what, bytes) of the kinds of tensors that fill the peak, largest first.
    """

    gradients: int
    activations: int
    peak: int
    phase: str
    largest: tuple[tuple[str, int], ...]


class GraphCosts:
    """Costs of one training graph.

    Args:
        graph: with forward pass, backward pass and updates.
        mesh_layout: how it will be split.
        loss: what is differentiated: the forward pass ends with it.
        gradient_norm: of all gradients: the backward pass ends with it.

    Raises:
        ValueError: the layout splits what a kernel needs whole.
    """

    def __init__(
        self,
        graph: mtf.Graph,
        mesh_layout: MeshLayout,
        loss: mtf.Tensor,
        gradient_norm: mtf.Tensor,
    ):
        self._graph = graph
        self._mesh_layout = mesh_layout
        self._mesh_impl = mtf.MeshImpl(mesh_layout.mesh_shape, mesh_layout.layout)
        self._slices: dict[tuple[mtf.Dimension, ...], list[int]] = {}
        self._traces: dict[tuple[object, ...], KernelTrace] = {}
        numbers = {operation: number for number, operation in enumerate(graph.operations)}
        self._loss_number = numbers[loss.operation]
        self._norm_number = numbers[gradient_norm.operation]
        self._gradients = {
            operation.name.rpartition("/gradients/")[0]: operation
            for operation in graph.operations
            if isinstance(operation, KernelGradientOperation)
        }

    def slice_shape(self, shape: mtf.Shape) -> list[int]:
        """Sizes of one processor's slice."""
        key = tuple(shape.dims)
        if key not in self._slices:
            self._slices[key] = self._mesh_impl.slice_shape(shape)
        return self._slices[key]

    def trace(self, operation: KernelOperation) -> KernelTrace:
        """The trace of a kernel; those of one name and of equal tensors are taken for equal."""
        gradient = self._gradients.get(operation.name)
        tensors = operation.inputs + operation.outputs
        if gradient is not None:
            tensors += gradient.inputs
        shapes = [(tuple(tensor.shape.dims), tensor.dtype) for tensor in tensors]
        key = (re.sub(r"_\d+$", "", operation.name), gradient is None, *shapes)
        if key not in self._traces:
            self._traces[key] = trace_kernel(operation, gradient, self._mesh_layout)
        return self._traces[key]

    def _slices_of(self, operation: mtf.Operation) -> int:
        """Into how many different pieces the processors divide an operation's work."""
        dims = {dim for x in operation.inputs + operation.outputs for dim in x.shape.dims}
        rules = dict(self._mesh_layout.rules)
        axes = {rules[dim.name] for dim in dims if dim.name in rules}
        return math.prod(size for name, size in self._mesh_layout.axes if name in axes)

    def flops(self) -> Flops:
        """Arithmetic of one step."""
        passes = [0, 0]
        per_processor = 0
        for number, operation in enumerate(self._graph.operations):
            backward = number > self._loss_number
            if isinstance(operation, KernelOperation):
                trace, slices = self.trace(operation), self._slices_of(operation)
                for which, nodes in enumerate((trace.nodes, trace.gradient_nodes)):
                    local = sum(node.flops for node in nodes)
                    passes[which] += local * slices
                    per_processor += local
            elif isinstance(operation, mtf.EinsumOperation):
                dims = _contracted_space(operation)
                if dims is not None:
                    passes[backward] += 2 * dims.size
                    per_processor += 2 * math.prod(self.slice_shape(dims))
        return Flops(passes[0], passes[1], per_processor)

    def memory(self) -> StepMemory:
        """Memory of one step."""
        walk = _Walk(self)
        marks = []
        for operation in self._graph.operations:
            walk.add(operation)
            marks.append(len(walk.in_order))
        begun = len(walk.at_once)
        backward_begins = begun + marks[self._loss_number]
        update_begins = begun + marks[self._norm_number]
        steps = walk.at_once + walk.in_order
        intervals = lifetimes(steps)
        gradients = [
            interval
            for interval in intervals
            if backward_begins <= interval.first < update_begins <= interval.last
        ]
        waiting = set(gradients)
        others = [interval for interval in intervals if interval not in waiting]
        totals = occupancy(intervals, len(steps))
        peak = max(range(len(totals)), key=totals.__getitem__)
        phase = "forward" if peak < backward_begins else "backward"
        return StepMemory(
            gradients=sum(interval.buffer.size_bytes for interval in gradients),
            activations=max(occupancy(others, len(steps))),
            peak=totals[peak],
            phase="update" if peak >= update_begins else phase,
            largest=_by_kind([item for item in intervals if item.covers(peak)]),
        )

    def gradient_of(self, operation: KernelGradientOperation) -> str:
        """Name of the kernel that a gradient belongs to."""
        return operation.name.rpartition("/gradients/")[0]


def _by_kind(intervals: list[Lifetime]) -> tuple[tuple[str, int], ...]:
    totals: dict[str, int] = {}
    for interval in intervals:
        label = interval.buffer.label
        totals[label] = totals.get(label, 0) + interval.buffer.size_bytes
    return tuple(sorted(totals.items(), key=lambda item: -item[1]))


def _contracted_space(operation: mtf.EinsumOperation) -> Optional[mtf.Shape]:
    """The index space of a matrix product; None for products element by element."""
    shapes = [tensor.shape for tensor in operation.inputs]
    dims = list(dict.fromkeys(dim for shape in shapes for dim in shape.dims))
    widest = max(shape.ndims for shape in [*shapes, operation.outputs[0].shape])
    return None if widest == len(dims) else mtf.Shape(dims)


class _Walk:
    """Turns operations into steps on buffers of one processor.

    Attributes:
        at_once: steps that need variables alone.
        in_order: all other steps.
    """

    def __init__(self, costs: GraphCosts):
        self.at_once: list[Step] = []
        self.in_order: list[Step] = []
        self._early: set[Buffer] = set()
        self._costs = costs
        # None: the tensor is a variable, which is there all the time.
        self._buffers: dict[mtf.Tensor, Optional[Buffer]] = {}
        self._kernels: dict[str, tuple[KernelTrace, dict[int, Optional[Buffer]]]] = {}

    def add(self, operation: mtf.Operation) -> None:
        """Appends the steps of one operation."""
        if isinstance(operation, mtf.Variable):
            self._buffers[operation.outputs[0]] = None
        elif isinstance(operation, KernelOperation):
            self._add_kernel(operation)
        elif isinstance(operation, KernelGradientOperation):
            self._add_kernel_gradient(operation)
        elif isinstance(operation, _VIEWS) and self._keeps_slices(operation):
            self._buffers[operation.outputs[0]] = self._buffers[operation.inputs[0]]
        elif isinstance(operation, mtf.EinsumOperation):
            self._add_einsum(operation)
        else:
            self._add(operation, isinstance(operation, _ELEMENTWISE))

    def _append(self, step: Step, given: bool = False) -> None:
        """Adds a step; ``given`` for values that come from outside, such as tokens."""
        if given or not self._early.issuperset(step.reads):
            self.in_order.append(step)
        else:
            self._early.update(step.writes)
            self.at_once.append(step)

    def _keeps_slices(self, operation: mtf.Operation) -> bool:
        sizes = [
            math.prod(self._costs.slice_shape(tensor.shape))
            for tensor in (operation.inputs[0], operation.outputs[0])
        ]
        return sizes[0] == sizes[1]

    def _reads(self, operation: mtf.Operation) -> tuple[Buffer, ...]:
        found = (self._buffers[tensor] for tensor in operation.inputs)
        return tuple(buffer for buffer in found if buffer is not None)

    def _new_buffer(self, tensor: mtf.Tensor) -> Buffer:
        dims = ", ".join(tensor.shape.dimension_names)
        return Buffer(self._bytes(tensor.shape, tensor), f"[{dims}]")

    def _bytes(self, shape: mtf.Shape, tensor: mtf.Tensor) -> int:
        return size_bytes(self._costs.slice_shape(shape), tensor.dtype)

    def _add(self, operation: mtf.Operation, in_place: bool) -> None:
        writes = tuple(self._new_buffer(tensor) for tensor in operation.outputs)
        self._buffers.update(zip(operation.outputs, writes))
        given = isinstance(operation, mtf.ops.ImportOperation)
        self._append(Step(self._reads(operation), writes, in_place), given)

    def _add_einsum(self, operation: mtf.EinsumOperation) -> None:
        """A product element by element that is summed up afterwards exists in full first."""
        output = operation.outputs[0]
        if _contracted_space(operation) is not None:
            self._add(operation, in_place=False)
            return
        widest = max(operation.inputs, key=lambda tensor: tensor.shape.ndims)
        if len(operation.inputs) == 1 or widest.shape.ndims <= output.shape.ndims:
            self._add(operation, in_place=len(operation.inputs) > 1)
            return
        product = self._new_buffer(widest)
        self._append(Step(self._reads(operation), (product,), in_place=True))
        summed = self._new_buffer(output)
        self._append(Step((product,), (summed,)))
        self._buffers[output] = summed

    def _add_kernel(self, operation: KernelOperation) -> None:
        trace = self._costs.trace(operation)
        values = dict(zip(trace.inputs, (self._buffers[x] for x in operation.inputs)))
        self._kernels[operation.name] = (trace, values)
        self._add_nodes(trace.nodes, values, operation)
        for tensor, number in zip(operation.outputs, trace.outputs):
            self._buffers[tensor] = values[number]

    def _add_kernel_gradient(self, operation: KernelGradientOperation) -> None:
        trace, values = self._kernels[self._costs.gradient_of(operation)]
        for number, tensor in zip(trace.gradient_inputs, operation.inputs):
            values.setdefault(number, self._buffers[tensor])
        self._add_nodes(trace.gradient_nodes, values, operation)
        for tensor, number in zip(operation.outputs, trace.gradient_outputs):
            self._buffers[tensor] = values[number]

    def _add_nodes(
        self,
        nodes: tuple[Node, ...],
        values: dict[int, Optional[Buffer]],
        operation: mtf.Operation,
    ) -> None:
        kind = re.sub(r"_\d+$", "", operation.name.rpartition("/")[2])
        for node in nodes:
            found: Iterator[Optional[Buffer]] = (values[number] for number in node.reads)
            reads = tuple(buffer for buffer in found if buffer is not None)
            writes = tuple(Buffer(size, f"{kind}: {node.label}") for _, size in node.writes)
            values.update(zip((number for number, _ in node.writes), writes))
            self._append(Step(reads, writes, node.in_place))
