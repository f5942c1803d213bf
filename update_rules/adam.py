"""Adam with decoupled weight decay; without bias correction as in GPT-Neo, or with it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from configs.schema import Config
from models.kernels.operation import kernel
from update_rules.parameter import Parameter, Update
from utils.mesh_tensorflow import mtf

SLOTS = ("/adam_m", "/adam_v")
"""Suffixes of the first and the second moment."""


def bias_corrections(config: Config, step: tf.Tensor) -> list[tf.Tensor]:
    """What the first and the second moment are multiplied by when the global step is ``step``.

    Moments begin at 0 and are weighted sums of all gradients so far; the weights of t sum up to
    1 - beta^t, and t is the number of updates, this one and those of a base whose moments were kept
    included. It needs no state of its own: a run may switch the correction on and off, and its
    moments stay what they are.

    Args:
        config: adam_bias_correction, earlier_updates, beta1, beta2.
        step: integer scalar, the global step before the update.

    Returns:
        Two float32 scalars, none without adam_bias_correction.
    """
    if not config.adam_bias_correction:
        return []
    updates = tf.cast(step, tf.float32) + (config.earlier_updates + 1.0)

    def correction(beta: float) -> tf.Tensor:
        if beta == 0:
            return tf.constant(1.0)
        # 1 - 0.999 would lose four of float32's seven digits.
        return -1.0 / tf.math.expm1(updates * math.log(beta))

    return [correction(config.beta1), correction(config.beta2)]


def adam(parameter: Parameter, corrections: Sequence[mtf.Tensor], config: Config) -> Update:
    """One step.

    Args:
        parameter: any dims.
        corrections: see ``bias_corrections``.
        config: beta1, beta2, epsilon.

    Source: Kingma and Ba 2015, algorithm 1, whose bias terms are optional here; Loshchilov and
    Hutter 2019 for the decoupled decay.
    """
    shape = parameter.shape
    moments = [parameter.slot(suffix, shape) for suffix in SLOTS]

    def step(
        weight: tf.Tensor,
        first: tf.Tensor,
        second: tf.Tensor,
        gradient: tf.Tensor,
        factor: tf.Tensor,
        rate: tf.Tensor,
        *corrections: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        # Nothing of this may start before all gradients are there: products of the old moments
        # would otherwise be made early and held through the whole step.
        with tf.control_dependencies([factor]):
            gradient *= factor
            first = config.beta1 * first + (1.0 - config.beta1) * gradient
            second = config.beta2 * second + (1.0 - config.beta2) * tf.square(gradient)
            mean, mean_square = first, second
            if corrections:
                mean, mean_square = first * corrections[0], second * corrections[1]
            update = mean / (tf.sqrt(mean_square) + config.epsilon)
            if parameter.weight_decay:
                update += parameter.weight_decay * weight
            return update * rate, first, second

    numbers = [parameter.factor, parameter.rate, *corrections]
    constants = (config.beta1, config.beta2, config.epsilon, parameter.weight_decay)
    amount, first, second = kernel(
        step,
        [parameter.weight, *moments, parameter.gradient, *numbers],
        [(shape, tf.float32)] * 3,
        splittable=shape.dims,
        name="adam",
        fusion=("adam", config.adam_bias_correction, *constants),
        differentiable=False,
    )
    return Update(amount, [mtf.assign(moments[0], first), mtf.assign(moments[1], second)])
