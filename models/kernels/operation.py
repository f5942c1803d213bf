"""One operation that applies a TensorFlow function slice by slice, with a right gradient.

``mtf.slicewise`` derives its gradient from the live graph: it leaves out the all-reduce for an
input that is not split where the output is, counts a tensor twice that reaches two chained
kernels, and fails on lazily reduced inputs (mesh-tensorflow 0.1.21). Here

* the gradient is taken of the function alone, on fresh copies of its inputs, and
* the gradient of each input is summed over every mesh axis that splits something else in the
  operation but not that input.

A kernel may also produce partial sums (``summed_dims``): when such a dimension is split, the
outputs without it are added up over the mesh.

Tensors that are large and cheap, such as a hidden layer behind its activation, are not kept for
the gradients that read them: those have them made again (``made_again``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Optional

import tensorflow as tf
from tensorflow.compiler.tf2xla.python.xla import optimization_barrier
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from models.kernels.fusion import fused, fusing
from utils.mesh_tensorflow import mtf

Slices = Sequence[Any]
"""tf.Tensor slices; None in place of a gradient that is not there."""
TfFunction = Callable[..., Any]
"""From one tf.Tensor slice per input to one slice per output (a tuple if several)."""
TfGradient = Callable[[Slices, Slices, Slices], Slices]
"""From slices (inputs, kept outputs, gradients of outputs or None) to gradients of inputs or None;
outputs are kept only for a kernel that says ``keeps_outputs``, else the second argument is empty.
"""


def _as_tuple(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _split_axes(mesh_impl: Any, tensors: Sequence[mtf.Tensor]) -> set[int]:
    """Numbers of the mesh axes that split any of ``tensors``."""
    return {
        axis
        for tensor in tensors
        for axis in mesh_impl.tensor_layout(tensor).tensor_axis_to_mesh_axis
        if axis is not None
    }


def _laid_out_inputs(lowering: Any, tensors: Sequence[mtf.Tensor]) -> list[Any]:
    return [lowering.tensors[tensor].to_laid_out_tensor() for tensor in tensors]


class KernelOperation(mtf.Operation):
    """A TensorFlow function applied to each slice of its inputs."""

    def __init__(
        self,
        function: TfFunction,
        inputs: Sequence[mtf.Tensor],
        outputs: Sequence[tuple[mtf.Shape, tf.DType]],
        splittable: Collection[mtf.Dimension],
        summed_dims: Collection[mtf.Dimension],
        gradient: Optional[TfGradient],
        keeps_outputs: bool,
        differentiable: bool,
        multiply_adds: int,
        fusion: Optional[Hashable],
        cheap: bool,
        name: str,
    ):
        super().__init__(list(inputs), name=name)
        self._cheap = cheap
        self._again: Optional[list[mtf.Tensor]] = None
        self.multiply_adds = multiply_adds
        self.fusion = fusion
        self._function = function
        self._gradient_function = gradient
        self._keeps_outputs = keeps_outputs
        self._differentiable = differentiable
        self._outputs = [
            mtf.Tensor(self, shape, dtype, index=index)
            for index, (shape, dtype) in enumerate(outputs)
        ]
        self._summed_names = {dim.name for dim in summed_dims}
        names = {dim.name for dim in splittable} | self._summed_names
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("unsplittable", names)
        )

    @property
    def has_gradient(self) -> bool:
        """Whether gradients flow through this kernel."""
        return self._differentiable and super().has_gradient

    def made_again(self, output: mtf.Tensor, after: mtf.Tensor) -> mtf.Tensor:
        """``output``, made again once ``after`` is there, if that is cheap."""
        if not self._cheap:
            return output
        if self._again is None:
            self._again = MadeAgain(self, self.inputs, self.outputs, self._compute, after).outputs
        return self._again[self.outputs.index(output)]

    @property
    def _compute(self) -> TfFunction:
        return self._function if self.fusion is None else fused(self.fusion, self._function)

    def gradient(self, grad_ys: Sequence[Optional[mtf.Tensor]]) -> list[Optional[mtf.Tensor]]:
        """Gradients of the inputs, None for those that are not floating."""
        operation = KernelGradientOperation(self, grad_ys)
        gradients = iter(operation.outputs)
        return [next(gradients) if x.dtype.is_floating else None for x in self.inputs]

    def check_layout(self, mesh_impl: Any) -> None:
        """Raises ValueError when the layout splits a dimension that this kernel needs whole."""
        for tensor in self.inputs + self.outputs:
            axes = mesh_impl.tensor_layout(tensor).tensor_axis_to_mesh_axis
            for dim, axis in zip(tensor.shape.dims, axes):
                if axis is not None and dim.name in self._unsplittable_dims:
                    raise ValueError(
                        f"dimension {dim.name} of {self.name} must not be split; got a layout "
                        f"that puts it on mesh axis {mesh_impl.shape[axis].name}. "
                        f"Remove {dim.name} from layout."
                    )

    def _sum_axes(self, mesh_impl: Any, output: mtf.Tensor) -> list[int]:
        """Mesh axes over which ``output`` is still a partial sum."""
        names_of_output = set(output.shape.dimension_names)
        axes = set()
        for tensor in self.inputs:
            layout = mesh_impl.tensor_layout(tensor).tensor_axis_to_mesh_axis
            for dim, axis in zip(tensor.shape.dims, layout):
                if axis is not None and dim.name not in names_of_output:
                    assert dim.name in self._summed_names, (self.name, dim.name)
                    axes.add(axis)
        shared = axes & _split_axes(mesh_impl, [output])
        if shared:
            name = mesh_impl.shape[min(shared)].name
            raise ValueError(
                f"a dimension that {self.name} sums over must not share a mesh axis with one that "
                f"stays; got both on {name} for {output.shape}. Put one of them on another axis."
            )
        return sorted(axes)

    def lower(self, lowering: Any) -> None:
        """Applies the function to every slice."""
        mesh_impl = lowering.mesh_impl(self)
        self.check_layout(mesh_impl)
        with fusing(mesh_impl):
            values = mesh_impl.slicewise(self._compute, *_laid_out_inputs(lowering, self.inputs))
        for output, value in zip(self.outputs, _as_tuple(values)):
            for piece in value.all_slices:  # shapes that depend on values are known to the kernel
                piece.set_shape(mesh_impl.slice_shape(output.shape))
            axes = self._sum_axes(mesh_impl, output) if self._summed_names else []
            if axes:
                value = mtf.LazyAllreduceSum(
                    mesh_impl, value, axes, traffic_counter(lowering, output, axes)
                )
            lowering.set_tensor_lowering(output, value)


class MadeAgain(mtf.Operation):
    """Tensors that are made a second time, for gradients, so that they need not be kept.

    Args:
        first: what made them.
        inputs: of ``function``; they are kept.
        outputs: those of ``first`` that are made again.
        function: from slices of the inputs to slices of the outputs.
        after: waited for, since TensorFlow starts whatever it can.
    """

    def __init__(
        self,
        first: mtf.Operation,
        inputs: Sequence[mtf.Tensor],
        outputs: Sequence[mtf.Tensor],
        function: TfFunction,
        after: mtf.Tensor,
    ):
        super().__init__([*inputs, after], name=f"{first.name}_again")
        self._function = function
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=index) for index, x in enumerate(outputs)
        ]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("splittable")
        )

    @property
    def has_gradient(self) -> bool:
        """It is part of one."""
        return False

    def lower(self, lowering: Any) -> None:
        """Computes every slice."""
        mesh_impl = lowering.mesh_impl(self)

        def compute(*slices: tf.Tensor) -> Any:
            return self._function(*held_back(slices[:-1], slices[-1:]))

        with fusing(mesh_impl):
            values = mesh_impl.slicewise(compute, *_laid_out_inputs(lowering, self.inputs))
        for output, value in zip(self.outputs, _as_tuple(values)):
            lowering.set_tensor_lowering(output, value)


def held_back(slices: Sequence[tf.Tensor], earlier: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """``slices``, for what must not be computed before ``earlier`` is there.

    TensorFlow starts whatever it can, and would keep in memory what is needed much later. An
    operation that itself waits may be rewritten by its graph optimizer into one that does not.
    XLA, which compiles the graph of a TPU, would find that the same is computed twice.
    """
    if earlier and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        held = optimization_barrier(*slices, *earlier)
        return [tf.ensure_shape(y, x.shape) for y, x in zip(held, slices)]
    with tf.control_dependencies(list(earlier)):
        return [tf.identity(x) for x in slices]


def _made_again(x: mtf.Tensor, after: mtf.Tensor) -> mtf.Tensor:
    make = getattr(x.operation, "made_again", None)
    return x if make is None else make(x, after)


def traffic_counter(lowering: Any, tensor: mtf.Tensor, axes: Sequence[int]) -> Callable[[], None]:
    """Counts an all-reduce the way Mesh TensorFlow's own operations do."""

    def add_counter() -> None:
        for axis in axes:
            lowering.add_counter(f"allreduce/[{axis}]/kernel", lowering.laid_out_size(tensor))

    return add_counter


def reduced(lowering: Any, mesh_impl: Any, value: Any, axes: Sequence[int], reduction: str) -> Any:
    """``value`` reduced over mesh axes at once, ``SUM`` or ``MAX``, and counted."""
    if not axes:
        return value
    size = math.prod(value.slice_shape) * mesh_impl.size
    for axis in axes:
        lowering.add_counter(f"allreduce/[{axis}]/kernel", size)
    return mesh_impl.allreduce(value, list(axes), reduction)


def split_axes(mesh_impl: Any, shape: mtf.Shape) -> list[int]:
    """Numbers of the mesh axes that split any dimension of ``shape``."""
    layout = mesh_impl.tensor_layout(shape).tensor_axis_to_mesh_axis
    return sorted(axis for axis in layout if axis is not None)


class KernelGradientOperation(mtf.Operation):
    """The gradients of a KernelOperation's floating inputs."""

    def __init__(self, forward: KernelOperation, grad_ys: Sequence[Optional[mtf.Tensor]]):
        self._forward = forward
        self._has_grad = [grad is not None for grad in grad_ys]
        self._kept = forward.outputs if forward._keeps_outputs else []
        given = [grad for grad in grad_ys if grad is not None]
        read = [_made_again(x, given[0]) for x in forward.inputs]
        inputs = read + self._kept + given
        super().__init__(inputs, name=f"{forward.name}_gradient")
        # Two products for each of the forward part, which runs again without an explicit gradient.
        runs_again = forward._gradient_function is None
        self.multiply_adds = forward.multiply_adds * (3 if runs_again else 2)
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=index)
            for index, x in enumerate(x for x in forward.inputs if x.dtype.is_floating)
        ]
        self._splittable_dims = forward.splittable_dims
        self._unsplittable_dims = forward.unsplittable_dims

    @property
    def forward(self) -> KernelOperation:
        """The kernel that is differentiated."""
        return self._forward

    @property
    def has_gradient(self) -> bool:
        """No second derivatives."""
        return False

    def _slice_gradients(self, *slices: tf.Tensor) -> tuple[tf.Tensor, ...]:
        forward = self._forward
        xs = slices[: len(forward.inputs)]
        rest = list(slices[len(xs) :])
        if forward._gradient_function is not None:
            ys, given = rest[: len(self._kept)], rest[len(self._kept) :]
            left = iter(given)
            dys = [next(left) if has else None for has in self._has_grad]
            gradients = forward._gradient_function(held_back(xs, given), held_back(ys, given), dys)
        else:
            # Fresh copies cut the function out of the live graph, where another kernel may
            # connect the same tensors.
            copies = held_back(xs, rest if forward._cheap else [])
            outputs = _as_tuple(forward._function(*copies))
            wanted = [y for y, has in zip(outputs, self._has_grad) if has]
            gradients = tf.gradients(wanted, copies, grad_ys=rest)
        return tuple(
            tf.zeros_like(x) if gradient is None else tf.convert_to_tensor(gradient)
            for x, gradient in zip(xs, gradients)
            if x.dtype.is_floating
        )

    def lower(self, lowering: Any) -> None:
        """Differentiates every slice and adds up what the mesh holds in parts."""
        mesh_impl = lowering.mesh_impl(self)
        function: Callable[..., Any] = self._slice_gradients
        if self._forward.fusion is not None:
            function = fused((self._forward.fusion, "gradient", *self._has_grad), function)
        with fusing(mesh_impl):
            values = mesh_impl.slicewise(function, *_laid_out_inputs(lowering, self.inputs))
        all_axes = _split_axes(mesh_impl, self.inputs + self.outputs)
        for output, value in zip(self.outputs, _as_tuple(values)):
            axes = sorted(all_axes - _split_axes(mesh_impl, [output]))
            if axes:
                value = mtf.LazyAllreduceSum(
                    mesh_impl, value, axes, traffic_counter(lowering, output, axes)
                )
            lowering.set_tensor_lowering(output, value)


def kernel(
    function: TfFunction,
    inputs: Sequence[mtf.Tensor],
    outputs: Sequence[tuple[mtf.Shape, tf.DType]],
    splittable: Collection[mtf.Dimension],
    name: str,
    summed_dims: Collection[mtf.Dimension] = (),
    gradient: Optional[TfGradient] = None,
    keeps_outputs: bool = False,
    differentiable: bool = True,
    multiply_adds: int = 0,
    fusion: Optional[Hashable] = None,
    cheap: bool = False,
) -> list[mtf.Tensor]:
    """Applies ``function`` to each slice of ``inputs``.

    Args:
        function: TensorFlow function of one slice per input; returns one slice per output.
        inputs: named tensors of one mesh.
        outputs: shape and dtype of each output.
        splittable: dimensions that a layout may split without changing the function's meaning.
        name: of the operation, for the graph and for error texts.
        summed_dims: dimensions over whose slices the outputs that lack them are added up.
        gradient: explicit gradient; by default TensorFlow differentiates ``function``, which
            runs its forward part again.
        keeps_outputs: whether ``gradient`` is given the outputs, which then stay in memory.
        differentiable: False for kernels with side effects or without a gradient.
        multiply_adds: of its matrix products on the whole tensors, for the dry run's count.
        fusion: names what ``function`` computes, for kernels without matrix products that XLA may
            compile (fusion.py); equal names stand for equal functions.
        cheap: whether gradients that read the outputs have them made again.

    Returns:
        One named tensor per output.

    Raises:
        ValueError: at lowering, when the layout splits a dimension that is not splittable.
    """
    operation = KernelOperation(
        function,
        inputs,
        outputs,
        splittable,
        summed_dims,
        gradient,
        keeps_outputs,
        differentiable,
        multiply_adds,
        fusion,
        cheap,
        name,
    )
    return operation.outputs
