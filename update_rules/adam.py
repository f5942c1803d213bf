"""Adam with decoupled weight decay, without bias correction, as in GPT-Neo."""

from __future__ import annotations

import tensorflow as tf

from configs.schema import Config
from models.kernels.operation import kernel
from update_rules.parameter import Parameter, Update
from utils.mesh_tensorflow import mtf

SLOTS = ("/adam_m", "/adam_v")
"""Suffixes of the first and the second moment."""


def adam(parameter: Parameter, config: Config) -> Update:
    """One step.

    Args:
        parameter: any dims.
        config: beta1, beta2, epsilon.

    Source: Kingma and Ba 2015, algorithm 1 without the bias terms; Loshchilov and Hutter 2019
    for the decoupled decay.
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
    ) -> tuple[tf.Tensor, ...]:
        # Nothing of this may start before all gradients are there: products of the old moments
        # would otherwise be made early and held through the whole step.
        with tf.control_dependencies([factor]):
            gradient *= factor
            first = config.beta1 * first + (1.0 - config.beta1) * gradient
            second = config.beta2 * second + (1.0 - config.beta2) * tf.square(gradient)
            update = first / (tf.sqrt(second) + config.epsilon)
            if parameter.weight_decay:
                update += parameter.weight_decay * weight
            return update * rate, first, second

    inputs = [parameter.weight, *moments, parameter.gradient, parameter.factor, parameter.rate]
    amount, first, second = kernel(
        step,
        inputs,
        [(shape, tf.float32)] * 3,
        splittable=shape.dims,
        name="adam",
        fusion=("adam", config.beta1, config.beta2, config.epsilon, parameter.weight_decay),
        differentiable=False,
    )
    return Update(amount, [mtf.assign(moments[0], first), mtf.assign(moments[1], second)])
