"""Normalisation of vectors and its gradient, each in one pass over memory per slice.

The normalised dimension may be split: the sums over it that each slice makes are added up over
the mesh in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from models.kernels.fusion import fused, fusing
from models.kernels.operation import reduced, split_axes, traffic_counter
from utils.mesh_tensorflow import mtf


class _Normalization(mtf.Operation):
    """Slices of one operation between which sums over the features are added up."""

    def __init__(
        self,
        inputs: Sequence[mtf.Tensor],
        outputs: Sequence[tuple[mtf.Shape, tf.DType]],
        features: mtf.Dimension,
        epsilon: float,
        name: str,
    ):
        super().__init__(list(inputs), name=name)
        self.features = features
        self.epsilon = epsilon
        self._outputs = [
            mtf.Tensor(self, shape, dtype, index=index)
            for index, (shape, dtype) in enumerate(outputs)
        ]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("splittable")
        )

    def _run(self, mesh_impl: Any, label: str, function: Any, *slices: Any) -> Any:
        key = (label, self.features.size, self.epsilon, len(self.outputs))
        program = fused(key, function)
        with fusing(mesh_impl):
            return mesh_impl.slicewise(program, *slices)

    def _slices(self, lowering: Any) -> list[Any]:
        return [lowering.tensors[x].to_laid_out_tensor() for x in self.inputs]


class Normalize(_Normalization):
    """See ``normalize``; outputs: the result, and mean and 1 / deviation of each vector."""

    def __init__(
        self,
        x: mtf.Tensor,
        gain: mtf.Tensor,
        bias: Optional[mtf.Tensor],
        features: mtf.Dimension,
        epsilon: float,
    ):
        rows = x.shape - features
        super().__init__(
            [x, gain, *([] if bias is None else [bias])],
            [(x.shape, x.dtype), (rows, tf.float32), (rows, tf.float32)],
            features,
            epsilon,
            "normalize",
        )

    def gradient(self, grad_ys: Sequence[Optional[mtf.Tensor]]) -> list[mtf.Tensor]:
        """Gradients of x, gain and bias."""
        dy, *others = grad_ys
        assert dy is not None and not any(x is not None for x in others)
        return NormalizeGradient(self, dy).outputs

    def lower(self, lowering: Any) -> None:
        """Normalises every slice."""
        mesh_impl = lowering.mesh_impl(self)
        x, *parameters = self._slices(lowering)
        axes = split_axes(mesh_impl, mtf.Shape([self.features]))
        if axes:
            total = self._run(mesh_impl, "normalize total", self._total, x)
            total = reduced(lowering, mesh_impl, total, axes, "SUM")
            squares = self._run(mesh_impl, "normalize squares", self._squares, x, total)
            squares = reduced(lowering, mesh_impl, squares, axes, "SUM")
            values = self._run(
                mesh_impl, "normalize apply", self._apply, x, total, squares, *parameters
            )
        else:
            values = self._run(mesh_impl, "normalize", self._whole, x, *parameters)
        for output, value in zip(self.outputs, values):
            lowering.set_tensor_lowering(output, value)

    def _total(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(x, tf.float32), -1)

    def _squares(self, x: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        mean = total[..., tf.newaxis] / self.features.size
        return tf.reduce_sum(tf.square(tf.cast(x, tf.float32) - mean), -1)

    def _apply(
        self, x: tf.Tensor, total: tf.Tensor, squares: tf.Tensor, gain: tf.Tensor, *bias: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        mean = total / self.features.size
        inverse = tf.math.rsqrt(squares / self.features.size + self.epsilon)
        y = _hat(x, mean, inverse) * gain
        if bias:
            y += bias[0]
        return tf.cast(y, x.dtype), mean, inverse

    def _whole(self, x: tf.Tensor, *parameters: tf.Tensor) -> tuple[tf.Tensor, ...]:
        total = self._total(x)
        return self._apply(x, total, self._squares(x, total), *parameters)


class NormalizeGradient(_Normalization):
    """Gradients of x, gain and bias; gain and bias are summed over the slices of the rows."""

    def __init__(self, forward: Normalize, dy: mtf.Tensor):
        x, gain = forward.inputs[:2]
        super().__init__(
            [x, gain, *forward.outputs[1:], dy],
            [(tensor.shape, tensor.dtype) for tensor in forward.inputs],
            forward.features,
            forward.epsilon,
            "normalize_gradient",
        )

    @property
    def has_gradient(self) -> bool:
        """No second derivatives."""
        return False

    def lower(self, lowering: Any) -> None:
        """Differentiates every slice."""
        mesh_impl = lowering.mesh_impl(self)
        slices = self._slices(lowering)
        axes = split_axes(mesh_impl, mtf.Shape([self.features]))
        if axes:
            sums = self._run(mesh_impl, "normalize gradient sums", self._sums, *slices)
            sums = [reduced(lowering, mesh_impl, part, axes, "SUM") for part in sums]
            values = self._run(mesh_impl, "normalize gradient finish", self._finish, *slices, *sums)
        else:
            values = self._run(mesh_impl, "normalize gradient", self._whole, *slices)
        all_axes = set(split_axes(mesh_impl, self.inputs[0].shape))
        for output, value in zip(self.outputs, values):
            summed = sorted(all_axes - set(split_axes(mesh_impl, output.shape)))
            if summed:
                counter = traffic_counter(lowering, output, summed)
                value = mtf.LazyAllreduceSum(mesh_impl, value, summed, counter)
            lowering.set_tensor_lowering(output, value)

    def _sums(
        self, x: tf.Tensor, gain: tf.Tensor, mean: tf.Tensor, inverse: tf.Tensor, dy: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        scaled = tf.cast(dy, tf.float32) * gain
        hat = _hat(x, mean, inverse)
        return tf.reduce_sum(scaled, -1), tf.reduce_sum(scaled * hat, -1)

    def _finish(
        self,
        x: tf.Tensor,
        gain: tf.Tensor,
        mean: tf.Tensor,
        inverse: tf.Tensor,
        dy: tf.Tensor,
        total: tf.Tensor,
        projection: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        dy = tf.cast(dy, tf.float32)
        hat = _hat(x, mean, inverse)
        along = total[..., tf.newaxis] + hat * projection[..., tf.newaxis]
        dx = inverse[..., tf.newaxis] * (dy * gain - along / self.features.size)
        over = range(x.shape.rank - 1) if gain.shape.rank else range(x.shape.rank)
        gradients = [tf.cast(dx, x.dtype), tf.reduce_sum(dy * hat, list(over))]
        if len(self.outputs) == 3:
            gradients.append(tf.reduce_sum(dy, list(range(x.shape.rank - 1))))
        return tuple(gradients)

    def _whole(self, *slices: tf.Tensor) -> tuple[tf.Tensor, ...]:
        arguments = [*slices, *self._sums(*slices)]
        return self._finish(*arguments)


def _hat(x: tf.Tensor, mean: tf.Tensor, inverse: tf.Tensor) -> tf.Tensor:
    centered = tf.cast(x, tf.float32) - mean[..., tf.newaxis]
    return centered * inverse[..., tf.newaxis]


def normalize(
    x: mtf.Tensor,
    gain: mtf.Tensor,
    bias: Optional[mtf.Tensor],
    features: mtf.Dimension,
    epsilon: float,
) -> mtf.Tensor:
    """``x`` with mean 0 and variance 1 over its last dimension, times a gain, plus a bias.

    Args:
        x: [..., features], floating; computed in float32. Every dimension may be split.
        gain: [features] or a scalar, float32.
        bias: [features] float32, or None.
        features: the last dimension of x.
        epsilon: added to the variance.

    Returns:
        As ``x``.

    Source: Ba, Kiros and Hinton 2016, equation 4; biased variance.
    """
    assert x.shape.dims[-1] == features, (x.shape, features)
    return Normalize(x, gain, bias, features, epsilon).outputs[0]
