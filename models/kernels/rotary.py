"""Rotary position embedding as one kernel per slice."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from models.kernels.fusion import fused
from models.kernels.operation import Slices, kernel
from utils.mesh_tensorflow import mtf

BASE = 10000.0  # of the wavelengths; Su et al. 2021, section 3.3


def _rotated(x: tf.Tensor, positions: tf.Tensor, direction: float) -> tf.Tensor:
    """Turns each pair (x[i], x[i + half]) of the last dimension by its angle, in float32."""
    half = x.shape.as_list()[-1] // 2
    frequencies = BASE ** (-tf.range(half, dtype=tf.float32) / half)
    angles = direction * tf.cast(positions, tf.float32)[..., tf.newaxis] * frequencies
    # Heads share the angles: [(batch,) sequence, 1, half].
    cosine, sine = tf.cos(angles)[..., tf.newaxis, :], tf.sin(angles)[..., tf.newaxis, :]
    first, second = tf.split(tf.cast(x, tf.float32), 2, axis=-1)
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    return tf.cast(tf.concat(turned, -1), x.dtype)


def rotary(x: mtf.Tensor, positions: mtf.Tensor) -> mtf.Tensor:
    """Rotates queries or keys by their positions, so that scores depend on distances alone.

    Args:
        x: [batch, sequence, heads, features_per_head], features even and not split.
        positions: [sequence] or [batch, sequence] int32.

    Returns:
        As ``x``.

    Source: Su et al. 2021 (RoFormer), equation 34, with the features paired as GPT-Neo pairs
    them: i with i + half, over the whole head.
    """
    forward, backward = (
        fused(("rotary", sign), partial(_rotated, direction=sign)) for sign in (1.0, -1.0)
    )

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        return [backward(dys[0], xs[1]), None]

    [y] = kernel(
        forward,
        [x, positions],
        [(x.shape, x.dtype)],
        splittable=x.shape.dims[:-1],
        gradient=gradient,
        name="rotary",
    )
    return y
