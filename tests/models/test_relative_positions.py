"""T5's relative position bias inside attention against a dense formula, whole and split."""

import numpy as np
import pytest
import tensorflow as tf

from models.dimensions import RELATIVE_BUCKETS
from models.kernels import attention_blocks
from models.kernels.attention import MemorySlots, masked_attention
from models.kernels.attention_blocks import Window
from models.kernels.noise import Dropout, keep_mask
from models.kernels.relative_positions import MAX_DISTANCE, buckets, relative_bias
from tests.models.test_attention import LAYOUTS, sliding_mask
from tests.support import assert_all_close, run_named, run_tf
from utils.mesh_tensorflow import mtf

LENGTH, HEADS_COUNT = 148, 6  # some keys are beyond MAX_DISTANCE
BATCH, HEADS = mtf.Dimension("batch", 4), mtf.Dimension("heads", HEADS_COUNT)
SEQUENCE = mtf.Dimension("sequence", LENGTH)
MEMORY = mtf.Dimension("memory_length", LENGTH)
FEATURES = mtf.Dimension("features_per_head", 5)
SLOTS = mtf.Dimension("memory_slots", 3)
BUCKETS = mtf.Dimension("relative_buckets", RELATIVE_BUCKETS)
RANDOM = np.random.default_rng(17)
Q, K, V, UPSTREAM = RANDOM.normal(size=(4, 4, LENGTH, HEADS_COUNT, 5)).astype(np.float32) / 2
MEM_K, MEM_V = RANDOM.normal(size=(2, 3, HEADS_COUNT, 5)).astype(np.float32)
TABLE = RANDOM.normal(size=(HEADS_COUNT, RELATIVE_BUCKETS)).astype(np.float32)


def formula(ahead: np.ndarray, causal: bool) -> np.ndarray:
    """Buckets of distances (query minus key) in floating point, as T5 and GPT-J's code have it."""
    count, offset = RELATIVE_BUCKETS, 0
    if causal:
        n = np.maximum(ahead, 0)
    else:
        count //= 2
        offset, n = np.where(ahead < 0, count, 0), np.abs(ahead)
    exact = count // 2
    with np.errstate(divide="ignore"):
        ratio = np.log(n.astype(np.float32) / exact + np.finfo(np.float32).eps)
    scaled = ratio / np.log(MAX_DISTANCE / exact) * (count - exact)
    far = np.minimum(exact + np.maximum(scaled, 0).astype(np.int32), count - 1)
    return offset + np.where(n < exact, n, far)


@pytest.mark.parametrize("causal", [True, False])
def test_buckets(causal):
    distances = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    np.testing.assert_array_equal(buckets(causal), formula(distances, causal))
    # Further away nothing changes.
    assert set(formula(np.arange(MAX_DISTANCE, 5000), causal)) == {buckets(causal)[-1]}
    # Without a direction every bucket has a distance, but for 16: no key is 0 ahead.
    assert set(range(RELATIVE_BUCKETS)) - set(buckets(causal)) == (set() if causal else {16})


def test_known_buckets():
    """GPT-J's: 15 is the last exact one, 16 and 17 share the first of the growing ones."""
    known = {0: 0, 15: 15, 16: 16, 18: 16, 19: 17, 64: 26, 112: 30, 113: 31, 128: 31}
    assert {n: buckets(True)[MAX_DISTANCE + n] for n in known} == known


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 7), (5, 3), (3, 140), (140, 3)])
def test_bias_of_a_block(queries, keys, causal):
    first = np.array([4, 0, -9, 130], np.int32)
    got = run_tf(lambda: relative_bias(tf.constant(TABLE), first, queries, keys, causal))
    ahead = first[:, None, None] + np.arange(queries)[:, None] - np.arange(keys)
    expected = TABLE[:, formula(ahead, causal)].swapaxes(0, 1)
    np.testing.assert_array_equal(got, expected)


def dense(radius, causal, with_slots, keep):
    """Value and gradients in float64; ``keep`` multiplies the weights."""
    given = [Q, K, V, TABLE, *([MEM_K, MEM_V] if with_slots else [])]
    tensors = [tf.constant(x.astype(np.float64)) for x in given]
    q, k, v, table, *slots = tensors
    at = np.arange(LENGTH)
    bias = tf.gather(table, formula(at[:, None] - at, causal), axis=1)
    seen = sliding_mask(LENGTH, radius, causal)
    if slots:
        k, v = (
            tf.concat([tf.tile(slot[tf.newaxis], [4, 1, 1, 1]), x], 1)
            for slot, x in zip(slots, (k, v))
        )
        seen = np.concatenate([np.ones((LENGTH, 3), bool), seen], 1)
        bias = tf.pad(bias, [[0, 0], [0, 0], [3, 0]])
    scores = tf.einsum("bqhf,bkhf->bhqk", q, k) + bias
    weights = tf.nn.softmax(tf.where(seen, scores, tf.constant(-1e30, tf.float64))) * keep
    mixed = tf.einsum("bhqk,bkhf->bqhf", weights, v)
    return [mixed, *tf.gradients(mixed, tensors, UPSTREAM.astype(np.float64))]


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS[:4])
def test_value_and_gradients(monkeypatch, mesh_shape, layout):
    """In blocks where the sequence is whole; a local layer, slots, dropout, and keys ahead."""
    monkeypatch.setattr(attention_blocks, "MIN_BLOCK", 60)
    rate, label = 0.3, "h0/attn/weights"
    # (radius, causal, slots, dropout)
    cases = [(None, True, False, False), (45, True, True, True), (131, False, False, False)]

    def build(split, q, k, v, table, mem_k, mem_v, upstream):
        dropout = Dropout(q.mesh, 9, tf.constant(4), mtf.range(q.mesh, BATCH, tf.int32))
        results = [dropout.key(label)]
        for radius, causal, with_slots, drops in cases:
            slots = MemorySlots(mem_k, mem_v) if with_slots else None
            mixed = masked_attention(
                q, k, v, Window(causal, radius), split.slices(MEMORY),
                dropout if drops else None, rate if drops else 0.0, label, slots, table,
            )  # fmt: skip
            sources = [q, k, v, table, *(slots or ())]
            results += [mixed, *mtf.gradients([mtf.reduce_sum(mixed * upstream)], sources)]
        return results

    rows = [(Q, [BATCH, SEQUENCE, HEADS, FEATURES])]
    rows += [(x, [BATCH, MEMORY, HEADS, FEATURES]) for x in (K, V)]
    slots = [(x, [SLOTS, HEADS, FEATURES]) for x in (MEM_K, MEM_V)]
    given = [*rows, (TABLE, [HEADS, BUCKETS]), *slots, (UPSTREAM, rows[0][1])]
    key, *got = run_named(mesh_shape, layout, given, build)

    def expected():
        positions = [tf.range(size) for size in (4, HEADS_COUNT, LENGTH)]
        numbers = tf.concat([(1 << 30) + tf.range(3), tf.range(LENGTH)], 0)
        keep = tf.cast(keep_mask(tf.constant(key), [*positions, numbers], rate), tf.float64)
        return [x for *case, drops in cases for x in dense(*case, keep if drops else 1.0)]

    assert_all_close(got, run_tf(expected), 5e-6)
