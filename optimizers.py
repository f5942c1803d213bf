"""Gradients to updates: learning-rate schedules, clipping, Adam.

Numbers follow GPT-Neo's, on which released runs rely: no bias correction in Adam, and decoupled
weight decay on every variable whose name holds neither ``norm`` nor ``bias``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

import tensorflow as tf

from configs.schema import Config
from models.kernels.operation import kernel
from utils.mesh_tensorflow import mtf

FINAL_FRACTION = 0.1  # of the peak rate, where the decay ends; GPT-3 paper, appendix B


def learning_rate(config: Config, step: tf.Tensor) -> tf.Tensor:
    """Learning rate of the update that is made when the global step is ``step``.

    The decay runs from step 0 (not from the end of the warm-up) to ``lr_decay_end``; the
    warm-up multiplies it by step / warmup_steps, so the first update has rate 0.

    Args:
        config: lr, lr_decay, lr_decay_end, train_steps, warmup_steps.
        step: integer scalar.

    Returns:
        float32 scalar.
    """
    position = tf.cast(step, tf.float32)
    rate = tf.constant(config.lr, tf.float32)
    if config.lr_decay is not None:
        end = float(config.lr_decay_end or config.train_steps)
        fraction = tf.minimum(position / end, 1.0)
        if config.lr_decay == "cosine":
            remaining = 0.5 * (1.0 + tf.cos(math.pi * fraction))
        else:
            remaining = 1.0 - fraction
        rate *= (1.0 - FINAL_FRACTION) * remaining + FINAL_FRACTION
    if config.warmup_steps > 0:
        rate *= tf.minimum(position / config.warmup_steps, 1.0)
    return rate


def decays(name: str, config: Config) -> bool:
    """Whether weight decay applies to the variable ``name``."""
    if not config.decay_final_norm and "/ln_f/" in name:
        return False
    return "norm" not in name and "bias" not in name


class Updates(NamedTuple):
    """What one training step does.

    Attributes:
        operations: assignments of weights and optimizer slots.
        gradient_norm: global norm before clipping, float32 scalar.
    """

    operations: list[mtf.Operation]
    gradient_norm: mtf.Tensor


def global_norm(gradients: Sequence[mtf.Tensor]) -> mtf.Tensor:
    """Square root of the sum of all squared elements, float32 scalar."""
    return mtf.sqrt(mtf.add_n([mtf.reduce_sum(mtf.square(gradient)) for gradient in gradients]))


def _clip_factor(norm: mtf.Tensor, clip: Optional[float]) -> mtf.Tensor:
    """What every gradient is multiplied by (Pascanu, Mikolov and Bengio 2013)."""
    if clip is None:
        return mtf.constant(norm.mesh, 1.0, dtype=norm.dtype)
    limit = mtf.constant(norm.mesh, clip, dtype=norm.dtype)
    return limit / mtf.maximum(norm, limit)


def build_updates(
    variables: Sequence[mtf.Variable],
    gradients: Sequence[mtf.Tensor],
    rate: mtf.Tensor,
    config: Config,
) -> Updates:
    """Clips the gradients and applies the optimizer.

    Args:
        variables: to be trained.
        gradients: float32, one per variable and of its dims.
        rate: learning rate, float32 scalar.
        config: optimizer settings.
    """
    norm = global_norm(gradients)
    # Weights are updated in place, while other operations of the step may still read them: no
    # update may start before all gradients are there. The norm depends on all of them.
    factor = mtf.depend(_clip_factor(norm, config.gradient_clipping), [norm])
    operations: list[mtf.Operation] = []
    for variable, gradient in zip(variables, gradients):
        operations += adam_update(variable, gradient, factor, rate, config)
    return Updates(operations, norm)


def adam_update(
    variable: mtf.Variable,
    gradient: mtf.Tensor,
    factor: mtf.Tensor,
    rate: mtf.Tensor,
    config: Config,
) -> list[mtf.Operation]:
    """One Adam step with decoupled weight decay, without bias correction.

    Args:
        variable: any dims.
        gradient: of the same dims, float32.
        factor: what the gradient is multiplied by; it must depend on all gradients.
        rate: learning rate, float32 scalar.
        config: beta1, beta2, epsilon, weight_decay.

    Returns:
        The assignments of the variable and of its slots ``<name>/adam_m`` and ``<name>/adam_v``.

    Source: Kingma and Ba 2015, algorithm 1 without the bias terms; Loshchilov and Hutter 2019
    for the decoupled decay.
    """
    moments = [
        mtf.get_variable(
            variable.mesh,
            f"{variable.name}/{slot}",
            variable.shape,
            dtype=tf.float32,
            initializer=tf.compat.v1.zeros_initializer(),
            trainable=False,
        )
        for slot in ("adam_m", "adam_v")
    ]
    decay = config.weight_decay if decays(variable.name, config) else 0.0

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
            if decay:
                update += decay * weight
            return update * rate, first, second

    update, first, second = kernel(
        step,
        [variable.value, *moments, gradient, factor, rate],
        [(variable.shape, tf.float32)] * 3,
        splittable=variable.shape.dims,
        name="adam",
        differentiable=False,
    )
    return [
        mtf.assign_sub(variable, update),
        mtf.assign(moments[0], first),
        mtf.assign(moments[1], second),
    ]
