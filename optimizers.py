"""Gradients to updates: learning-rate schedules, clipping, and the step of every variable.

Defaults follow GPT-Neo, on which released runs rely: no bias correction in Adam, and decoupled
weight decay on every variable whose name holds neither ``norm`` nor ``bias``. The formulas of the
optimizers are in update_rules/.

With ``optimizer_shard_axis`` each processor along that mesh axis holds the optimizer slots of a
part of every variable and updates that part alone (Rajbhandari et al. 2020, ZeRO stage 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import tensorflow as tf

from configs.schema import Config
from models.kernels.operation import kernel
from models.kernels.sum_of_squares import sum_of_squares
from update_rules.adafactor import adafactor, second_moment_decay
from update_rules.adam import adam, bias_corrections
from update_rules.parameter import Parameter, Update
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

FINAL_FRACTION = 0.1  # of the peak rate, where the decay ends; GPT-3 paper, appendix B


def learning_rate(config: Config, step: tf.Tensor) -> tf.Tensor:
    """Learning rate of the update that is made when the global step is ``step``.

    The warm-up multiplies the rate by step / warmup_steps, so the first update has rate 0. The
    decay of ``lr_decay`` runs from step 0 to ``lr_decay_end``, that of ``anneal_steps`` from the
    end of the warm-up.

    Args:
        config: lr, lr_decay, lr_decay_end, anneal_steps, end_lr, warmup_steps.
        step: integer scalar.

    Returns:
        float32 scalar.
    """
    position = tf.cast(step, tf.float32)
    rate = tf.constant(config.lr, tf.float32)
    if config.lr_decay is not None:
        rate *= _decay_to_a_tenth(config, position)
    if config.warmup_steps > 0:
        rate *= tf.minimum(position / config.warmup_steps, 1.0)
    if config.anneal_steps is not None:
        rate -= _annealed_away(config, position)
    return rate


def _decay_to_a_tenth(config: Config, position: tf.Tensor) -> tf.Tensor:
    """Share of the peak rate at step ``position``, float32 scalars."""
    fraction = tf.minimum(position / float(config.lr_decay_end), 1.0)
    if config.lr_decay == "cosine":
        remaining = 0.5 * (1.0 + tf.cos(math.pi * fraction))
    else:
        remaining = 1.0 - fraction
    return (1.0 - FINAL_FRACTION) * remaining + FINAL_FRACTION


def _annealed_away(config: Config, position: tf.Tensor) -> tf.Tensor:
    """What annealing has taken off the peak rate by step ``position``, float32 scalars.

    Source: Mesh Transformer JAX, gpt3_schedule, whose quotients of 0 by 0 do not arise here: no
    warm-up divides nothing, and annealing has at least one step.
    """
    assert config.anneal_steps is not None and config.end_lr is not None
    fraction = tf.clip_by_value((position - config.warmup_steps) / config.anneal_steps, 0.0, 1.0)
    return (config.lr - config.end_lr) * 0.5 * (1.0 - tf.cos(math.pi * fraction))


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
        gradient_norms: norm of each variable's gradient before clipping, float32 scalars by the
            variable's name.
    """

    operations: list[mtf.Operation]
    gradient_norm: mtf.Tensor
    gradient_norms: dict[str, mtf.Tensor]


def _clip_factor(norm: mtf.Tensor, clip: Optional[float]) -> mtf.Tensor:
    """What every gradient is multiplied by (Pascanu, Mikolov and Bengio 2013).

    It is there when the norm is, even if it does not depend on its value.
    """

    def factor(norm: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([norm]):
            one = tf.constant(1.0, norm.dtype)
            return tf.identity(one) if clip is None else clip / tf.maximum(norm, clip)

    return kernel(
        factor, [norm], [(norm.shape, norm.dtype)], (), "clip_factor", differentiable=False
    )[0]


def _after(x: mtf.Tensor, earlier: mtf.Tensor) -> mtf.Tensor:
    """``x``, but not before ``earlier`` is there; mtf.depend does not work on TPUs."""

    def wait(x: tf.Tensor, earlier: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([earlier]):
            return tf.identity(x)

    return kernel(
        wait, [x, earlier], [(x.shape, x.dtype)], x.shape.dims, "after", differentiable=False
    )[0]


def _reshaped(x: mtf.Tensor, shape: mtf.Shape) -> mtf.Tensor:
    return x if x.shape == shape else mtf.reshape(x, shape)


def _update_rule(mesh: mtf.Mesh, step: tf.Tensor, config: Config) -> Callable[[Parameter], Update]:
    def named(scalar: tf.Tensor) -> mtf.Tensor:
        return mtf.import_tf_tensor(mesh, scalar, mtf.Shape([]))

    if config.opt_name == "adam":
        corrections = [named(scalar) for scalar in bias_corrections(config, step)]
        return lambda parameter: adam(parameter, corrections, config)
    decay = named(second_moment_decay(config, step))
    return lambda parameter: adafactor(parameter, decay, config)


def build_updates(
    variables: Sequence[mtf.Variable],
    gradients: Sequence[mtf.Tensor],
    rate: mtf.Tensor,
    step: tf.Tensor,
    config: Config,
    mesh_layout: MeshLayout,
) -> Updates:
    """Clips the gradients and applies the optimizer.

    Args:
        variables: to be trained.
        gradients: float32, one per variable and of its dims.
        rate: learning rate, float32 scalar.
        step: integer scalar, the global step before the update.
        config: optimizer settings.
        mesh_layout: how the graph will be split; it decides the dims of optimizer slots.
    """
    assert all(gradient.dtype == tf.float32 for gradient in gradients)
    # A split slot needs the matching part of the summed gradient: from here on no processor
    # holds the rest of it.
    parts = [
        _reshaped(gradient, mesh_layout.slot_shape(variable.shape))
        for variable, gradient in zip(variables, gradients)
    ]
    squares = [sum_of_squares(part) for part in parts]
    norm = mtf.sqrt(mtf.add_n(squares))
    # Weights are updated in place, while other operations of the step may still read them: no
    # update may start before all gradients are there. The norm depends on all of them.
    factor = _clip_factor(norm, config.gradient_clipping)
    update_rule = _update_rule(norm.mesh, step, config)
    operations: list[mtf.Operation] = []
    for variable, part in zip(variables, parts):
        weight = variable.value
        if part.shape != variable.shape:
            # Parts of the weights are copies: not to be made at the start of the step.
            weight = mtf.reshape(_after(weight, norm), part.shape)
        decay = config.weight_decay if decays(variable.name, config) else 0.0
        update = update_rule(Parameter(variable.name, weight, part, factor, rate, decay))
        operations.append(mtf.assign_sub(variable, _reshaped(update.amount, variable.shape)))
        operations += update.slots
    norms = {v.name: mtf.sqrt(square) for v, square in zip(variables, squares)}
    return Updates(operations, norm, norms if config.log_grads else {})
