"""Normalisation of vectors and its gradient, each in one pass over memory per slice.

The normalised dimension may be split: the sums over it that each slice makes are added up over
the mesh in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

import tensorflow as tf

from models.kernels.fusion import fused, fusing
from models.kernels.operation import MadeAgain, held_back, reduced, split_axes, traffic_counter
from utils.mesh_tensorflow import mtf


class _Normalization(mtf.Operation):
    """Slices of one operation between which sums over the features are added up."""

    def __init__(
        self,
        inputs: Sequence[mtf.Tensor],
        outputs: Sequence[tuple[mtf.Shape, tf.DType]],
        features: mtf.Dimension,
        epsilon: float,
        centers: bool,
        name: str,
    ):
        super().__init__(list(inputs), name=name)
        self.features = features
        self.epsilon = epsilon
        self.centers = centers
        self._outputs = [
            mtf.Tensor(self, shape, dtype, index=index)
            for index, (shape, dtype) in enumerate(outputs)
        ]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("splittable")
        )

    def _run(self, mesh_impl: Any, label: str, function: Any, *slices: Any) -> Any:
        with fusing(mesh_impl):
            return mesh_impl.slicewise(fused(self._key(label), function), *slices)

    def _key(self, label: str) -> tuple[Any, ...]:
        return (label, self.features.size, self.epsilon, self.centers, len(self.outputs))

    def _hat(self, x: tf.Tensor, first: tf.Tensor, inverse: tf.Tensor) -> tf.Tensor:
        """Normalised vectors, from the two numbers of each."""
        values = tf.cast(x, tf.float32)
        if self.centers:
            values -= first[..., tf.newaxis]
        return values * inverse[..., tf.newaxis]

    def _slices(self, lowering: Any) -> list[Any]:
        return [lowering.tensors[x].to_laid_out_tensor() for x in self.inputs]


class Normalize(_Normalization):
    """See ``normalize``; outputs: the result, and two numbers of each vector.

    They are its mean and 1 / deviation or, when nothing is centered, its length and
    1 / (length + epsilon).
    """

    def __init__(
        self,
        x: mtf.Tensor,
        gain: mtf.Tensor,
        bias: Optional[mtf.Tensor],
        features: mtf.Dimension,
        epsilon: float,
        centers: bool,
    ):
        rows = x.shape - features
        super().__init__(
            [x, gain, *([] if bias is None else [bias])],
            [(x.shape, x.dtype), (rows, tf.float32), (rows, tf.float32)],
            features,
            epsilon,
            centers,
            "normalize",
        )
        self._again: Optional[mtf.Tensor] = None

    def gradient(self, grad_ys: Sequence[Optional[mtf.Tensor]]) -> list[mtf.Tensor]:
        """Gradients of x, gain and bias."""
        dy, *others = grad_ys
        assert dy is not None and not any(x is not None for x in others)
        return NormalizeGradient(self, dy).outputs

    def made_again(self, output: mtf.Tensor, after: mtf.Tensor) -> mtf.Tensor:
        """The result made again, once ``after`` is there, from the two numbers of each vector."""
        if output is not self.outputs[0]:
            return output
        if self._again is None:
            x, *parameters = self.inputs
            function = fused(self._key("normalize again"), self._scaled)
            inputs = [x, *self.outputs[1:], *parameters]
            [self._again] = MadeAgain(self, inputs, [output], function, after).outputs
        return self._again

    def lower(self, lowering: Any) -> None:
        """Normalises every slice."""
        mesh_impl = lowering.mesh_impl(self)
        x, *parameters = self._slices(lowering)
        axes = split_axes(mesh_impl, mtf.Shape([self.features]))
        if axes:
            sums: list[Any] = []
            for label, function in self._statistics:
                part = self._run(mesh_impl, label, function, x, *sums)
                sums.append(reduced(lowering, mesh_impl, part, axes, "SUM"))
            apply = partial(self._apply, len(sums))
            values = self._run(mesh_impl, "normalize apply", apply, x, *sums, *parameters)
        else:
            values = self._run(mesh_impl, "normalize", self._whole, x, *parameters)
        for output, value in zip(self.outputs, values):
            lowering.set_tensor_lowering(output, value)

    @property
    def _statistics(self) -> list[tuple[str, Any]]:
        """Sums over the features, each from the slice of x and the sums before it."""
        if self.centers:
            return [("normalize total", _total), ("normalize squares", self._centered_squares)]
        return [("normalize squares", _squares)]

    def _centered_squares(self, x: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        mean = total[..., tf.newaxis] / self.features.size
        return tf.reduce_sum(tf.square(tf.cast(x, tf.float32) - mean), -1)

    def _apply(
        self, number_of_sums: int, x: tf.Tensor, *rest: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        sums, (gain, *bias) = rest[:number_of_sums], rest[number_of_sums:]
        if self.centers:
            first = sums[0] / self.features.size
            inverse = tf.math.rsqrt(sums[1] / self.features.size + self.epsilon)
        else:
            first = tf.sqrt(sums[0])
            inverse = 1.0 / (first + self.epsilon)
        return self._scaled(x, first, inverse, gain, *bias), first, inverse

    def _scaled(
        self, x: tf.Tensor, first: tf.Tensor, inverse: tf.Tensor, gain: tf.Tensor, *bias: tf.Tensor
    ) -> tf.Tensor:
        """The result, from the two numbers of each vector."""
        y = self._hat(x, first, inverse) * gain
        if bias:
            y += bias[0]
        return tf.cast(y, x.dtype)

    def _whole(self, x: tf.Tensor, *parameters: tf.Tensor) -> tuple[tf.Tensor, ...]:
        sums: list[tf.Tensor] = []
        for _, function in self._statistics:
            sums.append(function(x, *sums))
        return self._apply(len(sums), x, *sums, *parameters)


class NormalizeGradient(_Normalization):
    """Gradients of x, gain and bias; gain and bias are summed over the slices of the rows."""

    def __init__(self, forward: Normalize, dy: mtf.Tensor):
        x, gain = forward.inputs[:2]
        super().__init__(
            [x, gain, *forward.outputs[1:], dy],
            [(tensor.shape, tensor.dtype) for tensor in forward.inputs],
            forward.features,
            forward.epsilon,
            forward.centers,
            "normalize_gradient",
        )

    @property
    def has_gradient(self) -> bool:
        """No second derivatives."""
        return False

    def lower(self, lowering: Any) -> None:
        """Differentiates every slice."""
        mesh_impl = lowering.mesh_impl(self)
        x, *others, dy = self._slices(lowering)
        x = mesh_impl.slicewise(lambda x, dy: held_back([x], [dy])[0], x, dy)
        slices = [x, *others, dy]
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
        self, x: tf.Tensor, gain: tf.Tensor, first: tf.Tensor, inverse: tf.Tensor, dy: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        scaled = tf.cast(dy, tf.float32) * gain
        projection = tf.reduce_sum(scaled * self._hat(x, first, inverse), -1)
        return (projection, tf.reduce_sum(scaled, -1)) if self.centers else (projection,)

    def _finish(
        self,
        x: tf.Tensor,
        gain: tf.Tensor,
        first: tf.Tensor,
        inverse: tf.Tensor,
        dy: tf.Tensor,
        projection: tf.Tensor,
        *totals: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        dy = tf.cast(dy, tf.float32)
        hat = self._hat(x, first, inverse)
        if self.centers:
            along = totals[0][..., tf.newaxis] + hat * projection[..., tf.newaxis]
            along /= self.features.size
        else:
            # Of a vector without length the direction is 0, and what it is divided by 1 + epsilon.
            length = tf.where(first > 0.0, first, tf.ones_like(first))
            along = hat * (projection / (length * inverse))[..., tf.newaxis]
        dx = inverse[..., tf.newaxis] * (dy * gain - along)
        over = range(x.shape.rank - 1) if gain.shape.rank else range(x.shape.rank)
        gradients = [tf.cast(dx, x.dtype), tf.reduce_sum(dy * hat, list(over))]
        if len(self.outputs) == 3:
            gradients.append(tf.reduce_sum(dy, list(range(x.shape.rank - 1))))
        return tuple(gradients)

    def _whole(self, *slices: tf.Tensor) -> tuple[tf.Tensor, ...]:
        arguments = [*slices, *self._sums(*slices)]
        return self._finish(*arguments)


def _total(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(x, tf.float32), -1)


def _squares(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(tf.cast(x, tf.float32)), -1)


def normalize(
    x: mtf.Tensor,
    gain: mtf.Tensor,
    bias: Optional[mtf.Tensor],
    features: mtf.Dimension,
    epsilon: float,
    centers: bool = True,
) -> mtf.Tensor:
    """Brings vectors to a common length, times a gain, plus a bias.

    Args:
        x: [..., features], floating; computed in float32. Every dimension may be split.
        gain: [features] or a scalar, float32.
        bias: [features] float32, or None.
        features: the last dimension of x.
        epsilon: added to the variance or, when nothing is centered, to the length.
        centers: whether vectors get mean 0 and variance 1; else they get the length 1.

    Returns:
        As ``x``.

    Source: Ba, Kiros and Hinton 2016, equation 4, with the biased variance; without centering
    Nguyen and Salazar 2019, equation 4, with the epsilon of Mesh Transformer JAX.
    """
    assert x.shape.dims[-1] == features, (x.shape, features)
    return Normalize(x, gain, bias, features, epsilon, centers).outputs[0]
