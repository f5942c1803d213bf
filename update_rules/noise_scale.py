"""Gradient noise scale: which batch size the gradients of a run are good for.

Source: McCandlish, Kaplan, Amodei et al. 2018, An Empirical Model of Large-Batch Training,
appendix A.1.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from configs.schema import Config
from models.kernels.operation import kernel
from utils.checkpoints import MEASUREMENTS
from utils.mesh_tensorflow import mtf

_STATE = ("gradient", "variance", "weight")


class NoiseScale(NamedTuple):
    """The noise scale and what it is made of, float32 scalars; averages over the steps so far.

    Attributes:
        metrics: ``noise_scale_gradient``: squared norm of the true gradient;
            ``noise_scale_variance``: trace of the covariance of the gradients of single sequences;
            ``noise_scale``: the second by the first, in sequences; NaN where the first is not
            positive, since the noise hides the gradient.
        operations: assignments of the averages.
    """

    metrics: dict[str, mtf.Tensor]
    operations: list[mtf.Operation]


def noise_scale(microbatch_square: mtf.Tensor, norm: mtf.Tensor, config: Config) -> NoiseScale:
    """Estimates both parts without bias from two batch sizes, and averages each by itself.

    |G_b|^2 has the expectation |G|^2 + S / b for batches of b sequences. The paper's b are the
    microbatch, whose *squared* norms are averaged, and the batch. The exponential averages are
    divided by the sum of their weights, so that they are means from the first step on.

    Args:
        microbatch_square: mean of the squared norms of microbatches' gradients, float32 scalar.
        norm: of the batch's gradient, float32 scalar.
        config: noise_scale_alpha, train_batch_size, microbatches.
    """
    alpha, large = config.noise_scale_alpha, config.train_batch_size
    assert alpha is not None and config.microbatches > 1
    small = large // config.microbatches
    scalar = mtf.Shape([])
    state = [
        mtf.get_variable(
            norm.mesh,
            f"{MEASUREMENTS}noise_scale/{name}",
            scalar,
            dtype=tf.float32,
            initializer=tf.compat.v1.zeros_initializer(),
            trainable=False,
        )
        for name in _STATE
    ]

    def step(
        small_square: tf.Tensor,
        large_norm: tf.Tensor,
        gradient: tf.Tensor,
        variance: tf.Tensor,
        weight: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        large_square = tf.square(large_norm)
        found = (large * large_square - small * small_square) / (large - small)
        spread = (small_square - large_square) / (1.0 / small - 1.0 / large)
        gradient = (1.0 - alpha) * gradient + alpha * found
        variance = (1.0 - alpha) * variance + alpha * spread
        weight = (1.0 - alpha) * weight + alpha
        is_positive = gradient > 0.0
        ratio = variance / tf.where(is_positive, gradient, tf.ones_like(gradient))
        scale = tf.where(is_positive, ratio, tf.fill([], float("nan")))
        return gradient, variance, weight, gradient / weight, variance / weight, scale

    *averages, gradient, variance, scale = kernel(
        step,
        [microbatch_square, norm, *state],
        [(scalar, tf.float32)] * 6,
        (),
        "estimate_noise",  # a summary takes the name of its metric, unless an operation has it
        differentiable=False,
    )
    metrics = {
        "noise_scale": scale,
        "noise_scale_gradient": gradient,
        "noise_scale_variance": variance,
    }
    return NoiseScale(metrics, [mtf.assign(old, new) for old, new in zip(state, averages)])
