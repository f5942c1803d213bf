"""Rotary position embedding as one kernel per slice."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import tensorflow as tf

from models.kernels.fusion import fused
from models.kernels.operation import Slices, kernel
from utils.mesh_tensorflow import mtf

BASE = 10000.0  # of the wavelengths; Su et al. 2021, section 3.3


def _rotated(
    x: tf.Tensor, positions: tf.Tensor, direction: float, turned: int, interleaved: bool
) -> tf.Tensor:
    """Turns pairs of the first ``turned`` features by their angles, in float32."""
    half = turned // 2
    frequencies = BASE ** (-tf.range(half, dtype=tf.float32) / half)
    angles = direction * tf.cast(positions, tf.float32)[..., tf.newaxis] * frequencies
    # Heads share the angles: [(batch,) sequence, 1, half].
    cosine, sine = tf.cos(angles)[..., tf.newaxis, :], tf.sin(angles)[..., tf.newaxis, :]
    part = tf.cast(x[..., :turned], tf.float32)
    if interleaved:
        first, second = part[..., 0::2], part[..., 1::2]
    else:
        first, second = tf.split(part, 2, axis=-1)
    pair = [first * cosine - second * sine, second * cosine + first * sine]
    result = tf.reshape(tf.stack(pair, -1), part.shape) if interleaved else tf.concat(pair, -1)
    result = tf.cast(result, x.dtype)
    return tf.concat([result, x[..., turned:]], -1) if turned < x.shape[-1] else result


def rotary(
    x: mtf.Tensor, positions: mtf.Tensor, turned: Optional[int] = None, interleaved: bool = False
) -> mtf.Tensor:
    """Rotates queries or keys by their positions, so that scores depend on distances alone.

    Args:
        x: [batch, sequence, heads, features_per_head], features not split.
        positions: [sequence] or [batch, sequence] int32.
        turned: the first so many features of each head are turned, an even number; None for all.
        interleaved: whether feature 2i makes a pair with 2i + 1, as in the paper and in GPT-J, in
            place of i with i + turned / 2, as in GPT-Neo.

    Returns:
        As ``x``; features from ``turned`` on are those of ``x``.

    Source: Su et al. 2021 (RoFormer), equation 34.
    """
    count = x.shape.dims[-1].size if turned is None else turned
    forward, backward = (
        fused(
            ("rotary", sign, count, interleaved),
            partial(_rotated, direction=sign, turned=count, interleaved=interleaved),
        )
        for sign in (1.0, -1.0)
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
