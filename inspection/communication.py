"""Communication of one training step, counted from the graph in named dimensions alone.

Mesh TensorFlow puts a sum over the mesh off until something needs the complete value: sums of
such partial sums, and their reshapes, stay partial. The walk below follows which tensors are
outstanding sums, as the lowering does, and counts each when it is carried out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Optional

import tensorflow as tf

from inspection.collectives import ALL_TO_ALL, GATHER, SUM, Effect, Sent, effect_of
from inspection.kernel_trace import size_bytes
from inspection.processor_view import ProcessorView, kind_of, loop_body
from utils.mesh_tensorflow import mtf


@dataclass(frozen=True)
class Collective:
    """Equal collectives of one step.

    Attributes:
        kind: all-reduce, all-gather, all-to-all or shift.
        reduction: of an all-reduce: ``SUM``, ``MAX`` or ``MIN``; empty for the other kinds.
        axes: mesh axes along which processors exchange, in the order of the mesh.
        group: processors that exchange with each other.
        size_bytes: of the tensor on one processor; of an all-gather, of the whole.
        dtype: of the tensor.
        source: operation and dimensions of the tensor.
        count: how often it happens in one step.
    """

    kind: str
    reduction: str
    axes: tuple[str, ...]
    group: int
    size_bytes: int
    dtype: tf.DType
    source: str
    count: int

    @property
    def sent_bytes(self) -> int:
        """Bytes that one processor sends in a step, if the group works as a ring.

        Of a tensor of S bytes and n processors: all-reduce 2 (n - 1) / n S; all-gather and
        all-to-all (n - 1) / n S; shift S.

        Source: Patarasuk and Yuan 2009 (bandwidth optimal all-reduce).
        """
        share = {SUM: Fraction(2 * (self.group - 1), self.group)}
        share |= dict.fromkeys((GATHER, ALL_TO_ALL), Fraction(self.group - 1, self.group))
        return math.ceil(self.count * self.size_bytes * share.get(self.kind, Fraction(1)))


@dataclass(eq=False)
class _Outstanding:
    """A sum over the mesh that nobody has needed yet; tensors may share one."""

    axes: tuple[int, ...]
    size_bytes: int
    dtype: tf.DType
    source: str
    settled: bool = False


def count_communication(view: ProcessorView, fetched: Iterable[mtf.Tensor]) -> list[Collective]:
    """All collectives of one step.

    Args:
        view: of a graph with forward pass, backward pass and updates.
        fetched: tensors that are read beside the updates, such as the loss.

    Raises:
        ValueError: the layout splits what an operation needs whole.
    """
    walk = _Walk(view)
    walk.add_all(view.graph.operations)
    for tensor in fetched:
        walk.settle(tensor)
    return walk.collectives()


class _Walk:
    """Follows outstanding sums through the operations in the order of their lowering."""

    def __init__(self, view: ProcessorView):
        self._view = view
        self._mesh_shape = view.mesh_layout.mesh_shape
        self._layout = view.mesh_layout.layout
        self._outstanding: dict[mtf.Tensor, Optional[_Outstanding]] = {}
        self._effects: dict[tuple[Any, ...], Effect] = {}
        self._counts: dict[tuple[Sent, str], int] = {}
        self._times = 1

    def collectives(self) -> list[Collective]:
        """What was counted, in the order of the first of each."""
        axes = self._view.mesh_layout.axes
        return [
            Collective(
                kind=sent.kind,
                reduction=sent.reduction,
                axes=tuple(axes[number][0] for number in sent.axes),
                group=math.prod(axes[number][1] for number in sent.axes),
                size_bytes=sent.size_bytes,
                dtype=sent.dtype,
                source=source,
                count=count,
            )
            for (sent, source), count in self._counts.items()
        ]

    def add_all(self, operations: Iterable[mtf.Operation]) -> None:
        """Walks operations, the bodies of loops included."""
        for operation in operations:
            if isinstance(operation, mtf.WhileLoopOperation):
                self._add_loop(operation)
            elif isinstance(operation, mtf.CustomGradientOperation):
                results = operation.inputs[len(operation.inputs) - len(operation.outputs) :]
                for tensor, result in zip(operation.outputs, results):
                    self._outstanding[tensor] = self._outstanding[result]
            elif isinstance(operation, mtf.Assign):
                for tensor in operation.inputs:
                    self.settle(tensor)
            elif operation.inputs:
                self._add(operation)
            else:
                self._outstanding.update(dict.fromkeys(operation.outputs))

    def settle(self, tensor: mtf.Tensor) -> None:
        """Carries out the sum of a tensor, unless that was done or there is none."""
        sum_ = self._outstanding[tensor]
        if sum_ is None or sum_.settled:
            return
        sum_.settled = True
        self._count(Sent(SUM, "SUM", sum_.axes, sum_.size_bytes, sum_.dtype), sum_.source)

    def _count(self, sent: Sent, source: str) -> None:
        # A sum over axes of one processor is carried out too, but sends nothing.
        if any(self._view.mesh_layout.axes[axis][1] > 1 for axis in sent.axes):
            # Over y,x the same processors exchange as over x,y.
            key = (sent._replace(axes=tuple(sorted(sent.axes))), source)
            self._counts[key] = self._counts.get(key, 0) + self._times

    def _add(self, operation: mtf.Operation) -> None:
        before = [self._outstanding[tensor] for tensor in operation.inputs]
        effect = self._effect(operation, before)
        for number in effect.settled:
            self.settle(operation.inputs[number])
        for sent in effect.sent:
            self._count(sent, _source(operation, operation.outputs[0]))
        for tensor, result in zip(operation.outputs, effect.outputs):
            if isinstance(result, tuple):
                source = _source(operation, tensor)
                if not effect.settled:  # what is passed on keeps its name
                    source = next((sum_.source for sum_ in before if sum_ is not None), source)
                self._outstanding[tensor] = self._new(result, tensor, source)
            else:
                self._outstanding[tensor] = None if result is None else before[result]

    def _new(self, axes: tuple[int, ...], tensor: mtf.Tensor, source: str) -> _Outstanding:
        size = size_bytes(self._view.slice_shape(tensor.shape), tensor.dtype)
        return _Outstanding(axes, size, tensor.dtype, source)

    def _effect(self, operation: mtf.Operation, before: list[Optional[_Outstanding]]) -> Effect:
        """Equal operations on equal tensors are lowered once."""
        axes = [None if sum_ is None else sum_.axes for sum_ in before]
        inputs = operation.inputs
        key = (
            type(operation),
            kind_of(operation),
            *((tuple(tensor.shape.dims), tensor.dtype) for tensor in inputs + operation.outputs),
            *axes,
            *(inputs.index(tensor) for tensor in inputs),
            *_settings(operation),
        )
        if key not in self._effects:
            self._effects[key] = effect_of(operation, axes, self._mesh_shape, self._layout)
        return self._effects[key]

    def _add_loop(self, loop: mtf.WhileLoopOperation) -> None:
        """Outputs of a loop that are outstanding sums are added up first and summed once."""
        for tensor in loop.inputs:
            self.settle(tensor)
        times, self._times = self._times, self._times * self._view.loop_iterations
        body = loop_body(loop)
        self._outstanding.update(dict.fromkeys(body.inputs))
        self.add_all(body.operations)
        self._times = times
        for tensor, result in zip(loop.outputs, body.outputs):
            sum_ = self._outstanding[result]
            self._outstanding[tensor] = (
                None if sum_ is None else self._new(sum_.axes, tensor, sum_.source)
            )


def _source(operation: mtf.Operation, tensor: mtf.Tensor) -> str:
    dims = ", ".join(dim.name for dim in tensor.shape.dims)
    return f"{kind_of(operation).replace('_', ' ')} [{dims}]"


def _settings(operation: mtf.Operation) -> list[tuple[str, Any]]:
    """What an operation was told beside its tensors, as far as it can matter here."""
    plain = (str, int, float, bool, tuple, set, frozenset, mtf.Dimension, mtf.Shape)
    return [
        (name, frozenset(value) if isinstance(value, set) else str(value))
        for name, value in sorted(vars(operation).items())
        if name != "_name" and isinstance(value, plain)
    ]
