"""Floating-point operations of a training step, from the sizes of its matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inspection.processor_view import ProcessorView, body_tensor, contracted_space
from models.kernels.head_loss import HeadLoss
from models.kernels.operation import KernelOperation
from utils.mesh_tensorflow import mtf


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of the matrix products of one training step.

    Attributes:
        forward: of the whole batch, each product counted once however it is split.
        backward: the same for the backward pass, with what it computes again (``recompute_grad``).
        per_processor: what one processor executes, forward and backward.
    """

    forward: int
    backward: int
    per_processor: int


def count_flops(view: ProcessorView, loss: mtf.Tensor) -> Flops:
    """2 operations per element of the index space of every matrix product, in kernels or not.

    Elementwise work is not counted, nor is the forward part that a kernel's gradient repeats:
    TensorFlow merges it with the first.

    Args:
        view: of a graph with forward and backward pass.
        loss: what is differentiated: the forward pass ends with it.
    """
    passes = [0, 0]
    per_processor = 0
    backward = 0
    loss_operation = body_tensor(loss).operation
    for operation, times in view.executed():
        if isinstance(operation, KernelOperation):
            trace, slices = view.trace(operation), _slices_of(operation, view)
            for which, nodes in ((backward, trace.nodes), (1, trace.gradient_nodes)):
                local = sum(node.flops for node in nodes) * times
                passes[which] += local * slices
                per_processor += local
        elif isinstance(operation, HeadLoss):
            # Its backward pass is made together with the forward pass.
            space = operation.product_space
            for which, products in ((0, 1), (1, 2)):
                passes[which] += 2 * products * space.size * times
                per_processor += 2 * products * math.prod(view.slice_shape(space)) * times
        elif isinstance(operation, mtf.EinsumOperation):
            space = contracted_space(operation)
            if space is not None:
                passes[backward] += 2 * space.size * times
                per_processor += 2 * math.prod(view.slice_shape(space)) * times
        backward = max(backward, int(operation is loss_operation))
    return Flops(passes[0], passes[1], per_processor)


def _slices_of(operation: mtf.Operation, view: ProcessorView) -> int:
    """Into how many different pieces the processors divide an operation's work."""
    dims = {dim for x in operation.inputs + operation.outputs for dim in x.shape.dims}
    rules = dict(view.mesh_layout.rules)
    axes = {rules[dim.name] for dim in dims if dim.name in rules}
    return math.prod(size for name, size in view.mesh_layout.axes if name in axes)
