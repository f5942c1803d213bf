"""An order that looks random and is a function of a seed, on one machine or a thousand.

A shuffle is a sort by a hash of what is sorted: its key, the seed and the epoch. It does not
depend on processes, on the machine, or on what else there is to be sorted, and a corpus of any
size is sorted on disk (data/token_store.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DOCUMENTS, SEQUENCES = 1, 2  # what is sorted
DEFAULT_SEED = 10  # of create_finetune_tfrecords.py in Mesh Transformer JAX


def order_hash(
    seed: int,
    epoch: int | np.ndarray,
    what: int,
    files: Sequence[int] | np.ndarray,
    numbers: Sequence[int] | np.ndarray,
) -> np.ndarray:
    """The numbers that an order is sorted by; equal ones, by file and number.

    Args:
        seed: of the shuffle, from 0.
        epoch: from 0; each has its own order. One for all, or one for each, [length].
        what: `DOCUMENTS`, before packing, or `SEQUENCES`, after it.
        files: number of the file of each document; 0 for sequences.
        numbers: of each document in its file, or of each sequence among all.

    Returns:
        Hashes, [length], uint64.

    Source: the finalizer of SplitMix64, Steele et al. 2014, "Fast splittable pseudorandom number
    generators", figure 14, applied to one word after another.
    """
    state = np.zeros(len(numbers), np.uint64)
    for word in (seed, epoch, what, files, numbers):
        state = _mix(state + np.uint64(0x9E3779B97F4A7C15) ^ np.asarray(word).astype(np.uint64))
    return state


def _mix(state: np.ndarray) -> np.ndarray:
    state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return state ^ state >> np.uint64(31)
