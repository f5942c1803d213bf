"""Adafactor: second moments of matrices as row and column means, steps relative to the weights.

Source: Shazeer and Stern 2018, algorithms 4 and 5; which variables are factored and the names of
the slots are those of Mesh TensorFlow's optimizer, on which GPT-Neo's checkpoints rely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import tensorflow as tf

from configs.schema import Config
from models.kernels.operation import kernel
from update_rules.parameter import Parameter, Update
from utils.mesh_tensorflow import mtf

SLOTS = ("_slot_v", "_slot_vr", "_slot_vc", "_slot_m")
"""Suffixes of second moment, its means over the largest and over the second largest dimension, and
momentum."""
LEAST_SIZE_TO_FACTOR = 128
LARGEST_RMS = 1.0  # of an update before it is scaled; section 6, d
DECAY_EXPONENT = 0.8  # section 7.2


def second_moment_decay(config: Config, step: tf.Tensor) -> tf.Tensor:
    """Share of the old second moment that is kept when the global step is ``step``.

    By default 1 - (step + 1)^-0.8: 0 at the first update, so that no bias needs correction. Steps
    of a base whose moments were kept count, or the first update would forget them.

    Args:
        config: ada_decay_rate, earlier_updates.
        step: integer scalar, the global step before the update.

    Returns:
        float32 scalar.
    """
    if config.ada_decay_rate is not None:
        return tf.constant(config.ada_decay_rate, tf.float32)
    return 1.0 - tf.pow(tf.cast(step, tf.float32) + (config.earlier_updates + 1.0), -DECAY_EXPONENT)


def factored_dims(shape: mtf.Shape) -> Optional[tuple[mtf.Dimension, mtf.Dimension]]:
    """The largest and the second largest dimension, None if they are too small to factor."""
    if shape.ndims < 2:
        return None
    largest, second = sorted(shape.dims, key=lambda dim: -dim.size)[:2]
    return (largest, second) if second.size >= LEAST_SIZE_TO_FACTOR else None


def adafactor(parameter: Parameter, decay: mtf.Tensor, config: Config) -> Update:
    """One step.

    Args:
        parameter: any dims.
        decay: see ``second_moment_decay``, float32 scalar.
        config: beta1 (0 = no momentum and no slot for it), ada_epsilon1, ada_epsilon2.
    """
    dims = factored_dims(parameter.shape)
    if dims is None:
        scaled, squares, slots = _by_second_moment(parameter, decay, config)
    else:
        scaled, squares, slots = _by_row_and_column(parameter, dims, decay, config)
    amount, momentum = _relative_step(parameter, scaled, squares, config)
    return Update(amount, slots + momentum)


_Scaled = tuple[mtf.Tensor, tuple[mtf.Tensor, mtf.Tensor], list[mtf.Operation]]
"""Gradient over the root of its second moment; sums of squares of that and of the weight; slots."""


def _by_second_moment(parameter: Parameter, decay: mtf.Tensor, config: Config) -> _Scaled:
    shape, scalar = parameter.shape, mtf.Shape([])
    moment = parameter.slot("_slot_v", shape)

    def step(
        gradient: tf.Tensor,
        factor: tf.Tensor,
        moment: tf.Tensor,
        decay: tf.Tensor,
        weight: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        with tf.control_dependencies([factor]):  # or the old moment's product is made early
            gradient *= factor
            square = tf.square(gradient) + config.ada_epsilon1
            moment = decay * moment + (1.0 - decay) * square
            scaled = gradient * tf.math.rsqrt(moment)
            return scaled, moment, _sum_of_squares(scaled), _sum_of_squares(weight)

    scaled, new_moment, *squares = kernel(
        step,
        [parameter.gradient, parameter.factor, moment, decay, parameter.weight],
        [(shape, tf.float32)] * 2 + [(scalar, tf.float32)] * 2,
        splittable=shape.dims,
        summed_dims=shape.dims,
        name="adafactor_moment",
        differentiable=False,
    )
    return scaled, (squares[0], squares[1]), [mtf.assign(moment, new_moment)]


def _by_row_and_column(
    parameter: Parameter,
    dims: tuple[mtf.Dimension, mtf.Dimension],
    decay: mtf.Tensor,
    config: Config,
) -> _Scaled:
    shape, scalar = parameter.shape, mtf.Shape([])
    row_shape, column_shape = shape - dims[0], shape - dims[1]
    rows, columns = parameter.slot("_slot_vr", row_shape), parameter.slot("_slot_vc", column_shape)
    axes = [shape.dims.index(dim) for dim in dims]

    def sums(gradient: tf.Tensor, factor: tf.Tensor, weight: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.control_dependencies([factor]):
            square = tf.square(gradient * factor) + config.ada_epsilon1
            return (*(tf.reduce_sum(square, axis) for axis in axes), _sum_of_squares(weight))

    row_sums, column_sums, weight_square = kernel(
        sums,
        [parameter.gradient, parameter.factor, parameter.weight],
        [(row_shape, tf.float32), (column_shape, tf.float32), (scalar, tf.float32)],
        splittable=shape.dims,
        summed_dims=shape.dims,
        name="adafactor_sums",
        differentiable=False,
    )
    new_rows = decay * rows + (1.0 - decay) / dims[0].size * row_sums
    new_columns = decay * columns + (1.0 - decay) / dims[1].size * column_sums
    mean = mtf.reduce_mean(new_rows, reduced_dim=dims[1])

    def step(
        gradient: tf.Tensor, factor: tf.Tensor, *means: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        rows, columns, mean = (
            _beside(tensor, named.shape, shape.dims) for tensor, named in zip(means, moments)
        )
        scaled = gradient * factor * tf.math.rsqrt(rows / mean) * tf.math.rsqrt(columns)
        return scaled, _sum_of_squares(scaled)

    moments = [new_rows, new_columns, mean]
    scaled, square = kernel(
        step,
        [parameter.gradient, parameter.factor, *moments],
        [(shape, tf.float32), (scalar, tf.float32)],
        splittable=shape.dims,
        summed_dims=shape.dims,
        name="adafactor_scaled",
        differentiable=False,
    )
    slots = [mtf.assign(rows, new_rows), mtf.assign(columns, new_columns)]
    return scaled, (square, weight_square), slots


def _relative_step(
    parameter: Parameter,
    scaled: mtf.Tensor,
    squares: tuple[mtf.Tensor, mtf.Tensor],
    config: Config,
) -> tuple[mtf.Tensor, list[mtf.Operation]]:
    """Clips by RMS, scales by the RMS of the weight, mixes with the momentum."""
    shape, size = parameter.shape, float(parameter.shape.size)
    momentum = [parameter.slot("_slot_m", shape)] if config.beta1 > 0 else []

    def step(
        weight: tf.Tensor,
        scaled: tf.Tensor,
        scaled_square: tf.Tensor,
        weight_square: tf.Tensor,
        rate: tf.Tensor,
        *momentum: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        with tf.control_dependencies([scaled_square]):
            clip = tf.maximum(1.0, tf.sqrt(scaled_square / size) / LARGEST_RMS)
            amount = scaled * (
                rate * tf.maximum(tf.sqrt(weight_square / size), config.ada_epsilon2) / clip
            )
            if momentum:
                amount = config.beta1 * momentum[0] + (1.0 - config.beta1) * amount
            mixed = (amount,) if momentum else ()
            if parameter.weight_decay:
                amount += rate * parameter.weight_decay * weight
            return (amount, *mixed)

    amount, *mixed = kernel(
        step,
        [parameter.weight, scaled, *squares, parameter.rate, *momentum],
        [(shape, tf.float32)] * (1 + len(momentum)),
        splittable=shape.dims,
        name="adafactor_step",
        differentiable=False,
    )
    return amount, [mtf.assign(slot, value) for slot, value in zip(momentum, mixed)]


def _sum_of_squares(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(x))


def _beside(x: tf.Tensor, shape: mtf.Shape, dims: Sequence[mtf.Dimension]) -> tf.Tensor:
    """A slice of dims ``shape`` with axes of size 1 where it lacks one of ``dims``."""
    for axis, dim in enumerate(dims):
        if dim not in shape.dims:
            x = tf.expand_dims(x, axis)
    return x
