"""Which dataset each training sequence comes from: a function of seed and number alone.

So a mix can be entered anywhere, and on any host: it is drawn by operations of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np
import tensorflow as tf

from utils.devices import session_config

_BLOCK = 1 << 16  # sequences that are drawn together


def _shifted_xor(value: tf.Tensor, bits: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(value, tf.constant(bits, tf.uint64))
    return tf.bitwise.bitwise_xor(value, shifted)


def choices(weights: Sequence[float], seed: int, numbers: tf.Tensor) -> tf.Tensor:
    """The source of each sequence.

    Args:
        weights: relative shares of the sources.
        seed: of the run.
        numbers: of the sequences, [sequences] int64.

    Returns:
        [sequences] int64, from 0.

    Source: the mixing steps are those of SplitMix64 (Steele, Lea and Flood 2014).
    """
    value = tf.cast(numbers, tf.uint64) + tf.constant((seed << 32) % 2**64, tf.uint64)
    value *= tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    value = _shifted_xor(value, 30) * tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
    value = _shifted_xor(value, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
    uniform = tf.cast(_shifted_xor(value, 31), tf.float64) / 2.0**64
    limits = np.cumsum(np.asarray(weights, np.float64)) / np.sum(weights)
    found = tf.searchsorted(limits, uniform, side="right", out_type=tf.int64)
    return tf.minimum(found, len(weights) - 1)


def _blocks(
    weights: Sequence[float], seed: int, start: int, end: Optional[int] = None
) -> tf.data.Dataset:
    """The choices from number ``start`` on in blocks, up to ``end`` if there is one."""
    last = np.iinfo(np.int64).max - _BLOCK if end is None else end

    def block(begin: tf.Tensor) -> tf.Tensor:
        return choices(weights, seed, tf.range(begin, tf.minimum(begin + _BLOCK, last)))

    return tf.data.Dataset.range(start, last, _BLOCK).map(block)


def choices_from(weights: Sequence[float], seed: int, start: int) -> tf.data.Dataset:
    """The source of sequence number ``start`` and all behind it, int64 scalars without end."""
    return _blocks(weights, seed, start).unbatch()


def drawn_before(weights: Sequence[float], seed: int, end: int) -> list[int]:
    """How many of the sequences before number ``end`` come from each source."""
    config = session_config(())  # no GPU: its memory is for the run
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        counts = _blocks(weights, seed, 0, end).map(
            lambda found: tf.math.bincount(
                tf.cast(found, tf.int32), minlength=len(weights), dtype=tf.int64
            )
        )
        total = counts.reduce(np.zeros(len(weights), np.int64), lambda sum, more: sum + more)
        return session.run(total).tolist()
