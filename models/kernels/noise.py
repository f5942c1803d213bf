"""Noise that depends only on seed, step, place in the model and global position.

A random value is a 32-bit hash of the coordinates of its element in the whole tensor, so every
layout, every number of processes and every resumed run sees the same values.

Source: the mixing steps are those of the 32-bit finalizer of MurmurHash3 (A. Appleby), with
the constants of C. Wellons' "hash-prospector" (bias below 0.2).
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from models.kernels.fusion import fused
from models.kernels.operation import Slices, kernel
from utils.mesh_tensorflow import mtf

_GOLDEN_RATIO = 0x9E3779B9


def _uint32(value: int) -> tf.Tensor:
    return tf.constant(value & 0xFFFFFFFF, tf.uint32)


def mix(bits: tf.Tensor) -> tf.Tensor:
    """Scrambles uint32 values, one to one: each input bit moves about half the output bits."""
    bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _uint32(16)))
    bits *= _uint32(0x7FEB352D)
    bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _uint32(15)))
    bits *= _uint32(0x846CA68B)
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _uint32(16)))


def fold(key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """A new key from ``key`` (uint32) and ``value`` (integers), broadcast against each other."""
    return mix(tf.bitwise.bitwise_xor(key + _uint32(_GOLDEN_RATIO), tf.cast(value, tf.uint32)))


def hash_of_positions(key: tf.Tensor, positions: Sequence[tf.Tensor]) -> tf.Tensor:
    """One uint32 per element of a tensor.

    Args:
        key: uint32 scalar.
        positions: for each dimension its global indices, int32 vector.

    Returns:
        uint32 of shape [len(p) for p in positions].
    """
    bits = key
    for positions_of_dim in positions:
        bits = fold(bits[..., tf.newaxis], positions_of_dim)
    return bits


def label_id(label: str) -> int:
    """A stable number for a place in the model, such as ``h0/attn``."""
    return zlib.crc32(label.encode())


def keep_mask(key: tf.Tensor, positions: Sequence[tf.Tensor], rate: float) -> tf.Tensor:
    """Inverted-dropout factors: 0 with probability ``rate``, else 1 / (1 - rate), float32."""
    bits = hash_of_positions(key, positions)
    dropped_below = _uint32(min(round(rate * 2.0**32), 2**32 - 1))
    return tf.where(bits >= dropped_below, 1.0 / (1.0 - rate), 0.0)


def unit_interval(bits: tf.Tensor) -> tf.Tensor:
    """Uniform float32 values in (0, 1) from uint32 ones of any shape."""
    # 23 bits and a half keep the value away from 0 and 1 in float32.
    return (tf.cast(tf.bitwise.right_shift(bits, _uint32(9)), tf.float32) + 0.5) / 2.0**23


class Dropout:
    """Dropout, and other noise, of one training step.

    Args:
        mesh: of the model.
        seed: of the run.
        step: tf scalar, integer: the global step before the update.
        rows: [batch] int32: numbers of the sequences within the global batch. A microbatch holds
            some of them; its noise is that of the whole batch.

    Source: Srivastava et al. 2014 (inverted: kept values are scaled up).
    """

    def __init__(self, mesh: mtf.Mesh, seed: int, step: tf.Tensor, rows: mtf.Tensor):
        # Without the first mix, seed and step would meet in one exclusive or, and two seeds would
        # share their masks in another order of steps.
        key = fold(mix(_uint32(seed)), tf.cast(step, tf.uint32))
        self._key = mtf.import_tf_tensor(mesh, key, mtf.Shape([]))
        self._rows = rows

    def key(self, label: str) -> mtf.Tensor:
        """The key of one place in the model: uint32 scalar."""
        [key] = kernel(
            lambda step_key: fold(step_key, _uint32(label_id(label))),
            [self._key],
            [(mtf.Shape([]), tf.uint32)],
            splittable=(),
            name="dropout_key",
            differentiable=False,
        )
        return key

    def positions(self, dim: mtf.Dimension) -> mtf.Tensor:
        """Global indices along ``dim``: int32 [dim]."""
        if dim == self._rows.shape.dims[0]:
            return self._rows
        return mtf.range(self._key.mesh, dim, tf.int32)

    def over(self, batch: mtf.Dimension) -> Dropout:
        """The same noise for tensors whose sequences are counted by ``batch``."""
        moved = copy.copy(self)
        moved._rows = mtf.reshape(self._rows, mtf.Shape([batch]))
        return moved

    def uniform(self, dims: Sequence[mtf.Dimension], label: str) -> mtf.Tensor:
        """Uniform noise in (0, 1) at one place in the model: float32 [dims], all splittable."""

        def values(key: tf.Tensor, *positions: tf.Tensor) -> tf.Tensor:
            return unit_interval(hash_of_positions(key, positions))

        [noise] = kernel(
            values,
            [self.key(label)] + [self.positions(dim) for dim in dims],
            [(mtf.Shape(dims), tf.float32)],
            splittable=dims,
            name="uniform",
            differentiable=False,
        )
        return noise

    def __call__(self, x: mtf.Tensor, rate: float, label: str) -> mtf.Tensor:
        """Drops elements of ``x`` (any shape) with probability ``rate``; every dim may be split.

        The mask is not kept for the gradient but hashed again.
        """
        if rate == 0.0:
            return x

        def masked(values: tf.Tensor, key: tf.Tensor, *positions: tf.Tensor) -> tf.Tensor:
            return values * tf.cast(keep_mask(key, positions, rate), values.dtype)

        program = fused(("dropout", rate), masked)

        def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
            return [program(dys[0], *xs[1:])] + [None] * (len(xs) - 1)

        dims = x.shape.dims
        [y] = kernel(
            program,
            [x, self.key(label)] + [self.positions(dim) for dim in dims],
            [(x.shape, x.dtype)],
            splittable=dims,
            name="dropout",
            gradient=gradient,
        )
        return y
