"""Memory of one processor during a training step, estimated from the graph in named dimensions.

The operations are walked in the order in which they were built, but those that need nothing but
variables come first, since TensorFlow's executor starts whatever is ready. A tensor lives from
the operation that makes it to the last that reads it, at the size of one processor's slice.
Reshapes that keep the layout are views; elementwise operations write over an input that nobody
reads later; kernels are looked into (kernel_trace.py). Of a loop one iteration is walked, beside
what it adds up.

Left out is what the graph does not show: workspace inside single TensorFlow operations
(transposed copies for a matrix product), buffers of collectives, fragmentation, and TensorFlow
itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from inspection.kernel_trace import KernelTrace, Node, size_bytes
from inspection.liveness import Buffer, Lifetime, Step, lifetimes, occupancy
from inspection.processor_view import (
    ProcessorView,
    body_tensor,
    contracted_space,
    kind_of,
    loop_body,
)
from models.kernels.head_loss import HeadLoss
from models.kernels.operation import KernelGradientOperation, KernelOperation
from utils.mesh_tensorflow import mtf

_ELEMENTWISE = (
    mtf.SlicewiseOperation,
    mtf.ops.ScalarMultiplyOperation,
    mtf.ops.ScalarAddOperation,
    mtf.ops.BinaryOpWithBroadcasting,
    mtf.ops.Depend,
)
_SCALAR_BYTES = 8
_VIEWS = (mtf.ops.ReshapeOperation, mtf.ops.StopGradient)


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


def estimate_memory(view: ProcessorView, loss: mtf.Tensor, gradient_norm: mtf.Tensor) -> StepMemory:
    """Memory of one step.

    Args:
        view: of a graph with forward pass, backward pass and updates.
        loss: what is differentiated: the forward pass ends with it.
        gradient_norm: of all gradients: the backward pass ends with it.
    """
    walk = _Walk(view)
    walk.add_all(view.graph.operations)
    begun = len(walk.at_once)
    backward_begins = begun + walk.ends[body_tensor(loss).operation]
    update_begins = begun + walk.ends[gradient_norm.operation]
    steps = walk.at_once + walk.in_order
    intervals = lifetimes(steps)
    others = walk.given | walk.scalars
    read_by_update = {buffer for step in steps[update_begins:] for buffer in step.reads} - others
    gradients = [
        interval
        for interval in intervals
        if backward_begins <= interval.first < update_begins and interval.buffer in read_by_update
    ]
    waiting = {interval.buffer for interval in gradients} | walk.accumulators
    rest = [interval for interval in intervals if interval.buffer not in waiting]
    totals = occupancy(intervals, len(steps))
    peak = max(range(len(totals)), key=totals.__getitem__)
    phase = "forward" if peak < backward_begins else "backward"
    return StepMemory(
        gradients=sum(interval.buffer.size_bytes for interval in gradients),
        activations=max(occupancy(rest, len(steps))),
        peak=totals[peak],
        phase="update" if peak >= update_begins else phase,
        largest=_by_kind([interval for interval in intervals if interval.covers(peak)]),
    )


def _by_kind(intervals: list[Lifetime]) -> tuple[tuple[str, int], ...]:
    totals: dict[str, int] = {}
    for interval in intervals:
        label = interval.buffer.label
        totals[label] = totals.get(label, 0) + interval.buffer.size_bytes
    return tuple(sorted(totals.items(), key=lambda item: -item[1]))


class _Walk:
    """Turns operations into steps on buffers of one processor.

    Attributes:
        at_once: steps that need variables alone.
        in_order: all other steps.
        ends: of each operation, the number of steps in order until it is done.
        given: buffers of values from outside, such as tokens and the learning rate.
        scalars: buffers of single values, such as the norm of a gradient.
        accumulators: buffers of sums over a loop's iterations, before the first is added.
    """

    def __init__(self, view: ProcessorView):
        self.at_once: list[Step] = []
        self.in_order: list[Step] = []
        self.ends: dict[mtf.Operation, int] = {}
        self.given: set[Buffer] = set()
        self.scalars: set[Buffer] = set()
        self.accumulators: set[Buffer] = set()
        self._view = view
        # A variable is there all the time and costs nothing here.
        self._variables: set[Buffer] = set()
        self._early: set[Buffer] = set()
        self._early_values: dict[tuple[Any, ...], tuple[Buffer, ...]] = {}
        self._buffers: dict[mtf.Tensor, Buffer] = {}
        self._kernels: dict[mtf.Operation, tuple[KernelTrace, dict[int, Buffer]]] = {}

    def add_all(self, operations: Iterable[mtf.Operation]) -> None:
        """Appends the steps of operations."""
        for operation in operations:
            self._add_operation(operation)
            self.ends[operation] = len(self.in_order)

    def _add_operation(self, operation: mtf.Operation) -> None:
        if isinstance(operation, mtf.Variable):
            variable = Buffer(0, "variable")
            self._buffers[operation.outputs[0]] = variable
            self._variables.add(variable)
            self._early.add(variable)
        elif isinstance(operation, mtf.WhileLoopOperation):
            self._add_loop(operation)
        elif isinstance(operation, mtf.CustomGradientOperation):
            results = operation.inputs[len(operation.inputs) - len(operation.outputs) :]
            self._buffers.update(zip(operation.outputs, map(self.buffer, results)))
        elif isinstance(operation, HeadLoss):
            self._add_head_loss(operation)
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

    def buffer(self, tensor: mtf.Tensor) -> Buffer:
        """Where a tensor is kept."""
        return self._buffers[tensor]

    def _append(self, step: Step) -> None:
        if self.given.intersection(step.writes) or not self._early.issuperset(step.reads):
            self.in_order.append(step)
        else:
            self._early.update(step.writes)
            self.at_once.append(step)

    def _keeps_slices(self, operation: mtf.Operation) -> bool:
        sizes = [
            math.prod(self._view.slice_shape(tensor.shape))
            for tensor in (operation.inputs[0], operation.outputs[0])
        ]
        return sizes[0] == sizes[1]

    def _reads(self, operation: mtf.Operation) -> tuple[Buffer, ...]:
        waits_for = getattr(operation, "_dependencies", [])  # of mtf.depend
        tensors = [*operation.inputs, *(x for x in waits_for if isinstance(x, mtf.Tensor))]
        return tuple(self._buffers[tensor] for tensor in tensors)

    def _new_buffer(self, tensor: mtf.Tensor) -> Buffer:
        dims = ", ".join(dim.name for dim in tensor.shape.dims)
        buffer = Buffer(self._bytes(tensor.shape, tensor), f"[{dims}]")
        if not tensor.shape.dims:
            self.scalars.add(buffer)
        return buffer

    def _bytes(self, shape: mtf.Shape, tensor: mtf.Tensor) -> int:
        return size_bytes(self._view.slice_shape(shape), tensor.dtype)

    def _add(self, operation: mtf.Operation, in_place: bool) -> None:
        writes = tuple(self._new_buffer(tensor) for tensor in operation.outputs)
        self._buffers.update(zip(operation.outputs, writes))
        if isinstance(operation, mtf.ops.ImportOperation):
            self.given.update(writes)
        self._append(Step(self._reads(operation), writes, in_place))

    def _add_einsum(self, operation: mtf.EinsumOperation) -> None:
        """A product element by element that is summed up afterwards exists in full first."""
        output = operation.outputs[0]
        if contracted_space(operation) is not None:
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

    def _add_loop(self, loop: mtf.WhileLoopOperation) -> None:
        """One iteration; its sums are there from the start and grow as their summands are made."""
        body = loop_body(loop)
        outer, self.in_order = self.in_order, []
        outer_at_once, self.at_once = self.at_once, []
        outside = set(self._buffers.values())
        self._buffers.update(zip(body.inputs, map(self.buffer, loop.inputs)))
        loop_variables = len(body.inputs)
        sums = {tensor: self._new_buffer(tensor) for tensor in body.outputs[loop_variables:]}
        self.accumulators.update(sums.values())
        grown = {}
        for operation in body.operations:
            self.add_all([operation])
            for tensor in operation.outputs:
                if tensor in sums:
                    grown[tensor] = self._new_buffer(tensor)
                    reads = (sums[tensor], self._buffers[tensor])
                    self.in_order.append(Step(reads, (grown[tensor],), in_place=True))
        steps = [Step((), tuple(sums.values())), *self.at_once]
        for operation in body.operations:
            self.ends[operation] += len(outer) + len(steps)
        steps += self.in_order
        # The next iteration reads again what comes from outside.
        read_again = outside.intersection(buffer for step in steps for buffer in step.reads)
        steps.append(Step(tuple(read_again), ()))
        self.in_order, self.at_once = outer + steps, outer_at_once
        results = [grown.get(tensor, self._buffers[tensor]) for tensor in body.outputs]
        self._buffers.update(zip(loop.outputs, results))

    def _add_head_loss(self, operation: HeadLoss) -> None:
        workspace = Buffer(self._view.workspace_bytes(operation), "head_loss: one chunk of tokens")
        reads = self._reads(operation)
        self._append(Step(reads, (workspace,)))
        writes = tuple(self._new_buffer(tensor) for tensor in operation.outputs)
        self._buffers.update(zip(operation.outputs, writes))
        self._append(Step((*reads, workspace), writes))

    def _add_kernel(self, operation: KernelOperation) -> None:
        trace = self._view.trace(operation)
        values = dict(zip(trace.inputs, (self._buffers[x] for x in operation.inputs)))
        self._kernels[operation] = (trace, values)
        self._add_nodes(trace.nodes, values, operation)
        for tensor, number in zip(operation.outputs, trace.outputs):
            self._buffers[tensor] = values[number]
            if values[number] in self._variables:  # handed on: it waits for the other inputs
                self._buffers[tensor] = Buffer(0, kind_of(operation))
                self._append(Step(self._reads(operation), (self._buffers[tensor],)))

    def _add_kernel_gradient(self, operation: KernelGradientOperation) -> None:
        trace, values = self._kernels[operation.forward]
        for number, tensor in zip(trace.gradient_inputs, operation.inputs):
            values.setdefault(number, self._buffers[tensor])
        self._add_nodes(trace.gradient_nodes, values, operation)
        for tensor, number in zip(operation.outputs, trace.gradient_outputs):
            self._buffers[tensor] = values[number]

    def _add_nodes(
        self,
        nodes: tuple[Node, ...],
        values: dict[int, Buffer],
        operation: mtf.Operation,
    ) -> None:
        kind = kind_of(operation)
        for node in nodes:
            reads = tuple(values[number] for number in node.reads)
            numbers, sizes = zip(*node.writes) if node.writes else ((), ())
            key = (node.label, reads, sizes)
            writes = self._early_values.get(key)
            if writes is None:
                writes = tuple(Buffer(size, f"{kind}: {node.label}") for size in sizes)
                self.scalars.update(x for x in writes if x.size_bytes <= _SCALAR_BYTES)
                self._append(Step(reads, writes, node.in_place))
                # TensorFlow merges what is computed twice from variables alone, such as the
                # rounded weights of a block that is recomputed.
                if reads and self._early.issuperset(writes):
                    self._early_values[key] = writes
            values.update(zip(numbers, writes))
