"""Masked softmax attention against a dense one in numpy, whole and split."""

import numpy as np
import pytest
import tensorflow as tf

from models.attention import attention_window
from models.kernels.attention import MemorySlots, masked_attention
from models.kernels.attention_blocks import MIN_BLOCK, Window
from models.kernels.noise import Dropout, keep_mask
from tests.support import (
    assert_all_close,
    make_config,
    run_named,
    run_tf,
    value_and_gradients,
)
from utils.mesh_tensorflow import mtf

LENGTH = 12
BATCH, HEADS = mtf.Dimension("batch", 4), mtf.Dimension("heads", 6)
SEQUENCE = mtf.Dimension("sequence", LENGTH)
MEMORY = mtf.Dimension("memory_length", LENGTH)
FEATURES = mtf.Dimension("features_per_head", 5)
QUERY_DIMS, KEY_DIMS = [BATCH, SEQUENCE, HEADS, FEATURES], [BATCH, MEMORY, HEADS, FEATURES]
LAYOUTS = [
    ("x:1", ""),
    ("x:4", "memory_length:x"),
    ("x:2,y:2", "batch:x,heads:y"),
    ("x:2,y:2", "sequence:x,memory_length:y"),
    ("x:2,y:2", "memory_length:x,heads:y"),
]
on_all_layouts = pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
RANDOM = np.random.default_rng(11)
Q, K, V, UPSTREAM = RANDOM.normal(size=(4, 4, LENGTH, 6, 5)).astype(np.float32)


def sliding_mask(length: int, radius: int | None, causal: bool = True) -> np.ndarray:
    """Which keys a query sees, spelled out."""
    seen = np.zeros((length, length), bool)
    for i in range(length):
        lowest = 0 if radius is None else max(0, i - radius + 1)
        highest = length if radius is None else i + radius
        seen[i, lowest : i + 1 if causal else highest] = True
    return seen


def dense(q, k, v, upstream, radius, keep=1.0):
    """Value and gradients of attention, in float64; ``keep`` multiplies the weights."""
    q, k, v, upstream = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v, upstream))
    scores = q @ k.swapaxes(-1, -2)
    scores[..., ~sliding_mask(q.shape[2], radius)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    kept = weights * keep
    d_weights = upstream @ v.swapaxes(-1, -2) * keep
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdims=True))
    results = [
        kept @ v,
        d_scores @ k,
        d_scores.swapaxes(-1, -2) @ q,
        kept.swapaxes(-1, -2) @ upstream,
    ]
    return [x.transpose(0, 2, 1, 3) for x in results]


def attention(split, q, k, v, radius, dropout=None, rate=0.0, causal=True, slots=None):
    window, pieces = Window(causal, radius), split.slices(MEMORY)
    return masked_attention(q, k, v, window, pieces, dropout, rate, "h0/attn/weights", slots)


def named(q=Q, k=K, v=V):
    return [(q, QUERY_DIMS), (k, KEY_DIMS), (v, KEY_DIMS)]


@on_all_layouts
def test_value_and_gradients(mesh_shape, layout):
    """Not scaled by the head size, as in GPT-Neo; 5 does not divide 12."""
    radii = [None, 5]

    def build(split, q, k, v, upstream):
        results = []
        for radius in radii:
            mixed = attention(split, q, k, v, radius)
            results += [mixed, *mtf.gradients([mtf.reduce_sum(mixed * upstream)], [q, k, v])]
        return results

    got = run_named(mesh_shape, layout, [*named(), (UPSTREAM, QUERY_DIMS)], build)
    expected = [x for radius in radii for x in dense(Q, K, V, UPSTREAM, radius)]
    assert_all_close(got, expected, 2e-6)


@pytest.mark.parametrize("length", [11, 12])
def test_window_edges(length):
    """Windows of one key, of divisors, of neither, of the length and beyond it."""
    radii = [1, 2, 3, 4, 5, 7, length - 1, length, length + 1, 256, None]
    sequence, memory = (mtf.Dimension(dim.name, length) for dim in (SEQUENCE, MEMORY))
    q, k, v = Q[:, :length], K[:, :length], V[:, :length]
    got = run_named(
        "x:1",
        "",
        [
            (q, [BATCH, sequence, HEADS, FEATURES]),
            (k, [BATCH, memory, HEADS, FEATURES]),
            (v, [BATCH, memory, HEADS, FEATURES]),
        ],
        lambda split, *qkv: [attention(split, *qkv, radius) for radius in radii],
    )
    assert_all_close(got, [dense(q, k, v, v, radius)[0] for radius in radii], 2e-6)
    assert_all_close([got[0]], [v], 1e-6)  # a window of one key is the query's own value


@on_all_layouts
@pytest.mark.parametrize("causal", [True, False])
def test_memory_slots(mesh_shape, layout, causal):
    """They are keys and values before those of the sequence, seen from everywhere."""
    slots = RANDOM.normal(size=(2, 3, 6, 5)).astype(np.float32)
    slot_dims = [mtf.Dimension("memory_slots", 3), HEADS, FEATURES]

    def build(split, q, k, v, mem_k, mem_v, upstream):
        mixed = attention(split, q, k, v, 4, causal=causal, slots=MemorySlots(mem_k, mem_v))
        loss = mtf.reduce_sum(mixed * upstream)
        return [mixed, *mtf.gradients([loss], [q, k, v, mem_k, mem_v])]

    given = [*named(), *((part, slot_dims) for part in slots), (UPSTREAM, QUERY_DIMS)]
    got = run_named(mesh_shape, layout, given, build)

    def plain():
        q, k, v, upstream = (tf.constant(x.astype(np.float64)) for x in (Q, K, V, UPSTREAM))
        mem_k, mem_v = (tf.constant(x.astype(np.float64)) for x in slots)
        keys, values = (
            tf.concat([tf.tile(mem[tf.newaxis], [4, 1, 1, 1]), x], 1)
            for mem, x in ((mem_k, k), (mem_v, v))
        )
        seen = np.concatenate([np.ones((LENGTH, 3), bool), sliding_mask(LENGTH, 4, causal)], 1)
        scores = tf.einsum("bqhf,bkhf->bhqk", q, keys)
        weights = tf.nn.softmax(tf.where(seen, scores, tf.constant(-1e30, tf.float64)))
        mixed = tf.einsum("bhqk,bkhf->bqhf", weights, values)
        return [mixed, *tf.gradients(mixed, [q, k, v, mem_k, mem_v], upstream)]

    assert_all_close(got, run_tf(plain), 3e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("radius", [None, 1, 4, 9])
def test_window(radius, causal):
    at = np.arange(7)
    seen = run_tf(lambda: Window(causal, radius).sees(tf.constant(at[:, None]), at[None]))
    np.testing.assert_array_equal(seen, sliding_mask(7, radius, causal))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("radius", [None, 3, 60, 130, 300, 5000])
@pytest.mark.parametrize("length", [1, 127, 128, 300, 1024, 1500])
def test_blocks_hold_every_key_that_is_seen(radius, causal, length):
    window = Window(causal, radius)
    blocks = window.blocks(length)
    assert [block.first for block in blocks] == [0, *(block.end for block in blocks[:-1])]
    assert blocks[-1].end == length
    mask = sliding_mask(length, radius, causal)
    for block in blocks:
        [seen] = np.nonzero(mask[block.first : block.end].any(0))
        assert 0 <= block.first_key <= seen[0] and seen[-1] < block.end_key <= length
    if radius is not None:
        widest = max(block.end_key - block.first_key for block in blocks)
        assert widest <= 2 * radius + 3 * MIN_BLOCK + 2 * radius


@pytest.mark.parametrize(("mesh_shape", "layout"), [LAYOUTS[0], LAYOUTS[1], LAYOUTS[3]])
def test_extreme_scores_stay_finite(mesh_shape, layout):
    """Scores of ±1e4, one row of the batch for each kind."""
    q, k = np.zeros_like(Q), np.zeros_like(K)
    q[..., 1] = 100.0
    k[0, 7, :, 1] = 100.0  # one key takes all
    k[1, 7, :, 1] = -100.0  # one key gets nothing
    k[2, ..., 1] = 100.0  # all equal, 1e4
    k[3, ..., 1] = -100.0  # all equal, -1e4

    got = value_and_gradients(
        mesh_shape, layout, named(q, k), lambda split, *qkv: attention(split, *qkv, 5), UPSTREAM
    )

    assert all(np.isfinite(array).all() for array in got)
    # Gradients of queries and keys are differences of numbers of 100; where the keys are split,
    # scores of 1e4 know the slices' shares to 1e-3 only.
    assert_all_close(got, dense(q, k, V, UPSTREAM, 5), 5e-3 if layout else 1e-4)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS[:4])
def test_dropout_of_the_weights(mesh_shape, layout):
    """One mask in every layout, and the same in the gradient."""
    rate, label = 0.3, "h0/attn/weights"

    def build(split, q, k, v, upstream):
        dropout = Dropout(q.mesh, 9, tf.constant(4), mtf.range(q.mesh, BATCH, tf.int32))
        mixed = attention(split, q, k, v, 5, dropout, rate)
        loss = mtf.reduce_sum(mixed * upstream)
        return [dropout.key(label), mixed, *mtf.gradients([loss], [q, k, v])]

    key, *got = run_named(mesh_shape, layout, [*named(), (UPSTREAM, QUERY_DIMS)], build)

    sizes = [4, 6, LENGTH, LENGTH]  # batch, heads, sequence, memory_length
    keep = run_tf(lambda: keep_mask(tf.constant(key), [tf.range(n) for n in sizes], rate))
    assert 0.25 < (keep == 0).mean() < 0.35
    assert_all_close(got, dense(Q, K, V, UPSTREAM, 5, keep), 3e-6)


def test_each_layer_has_its_own_radius():
    config = make_config(
        n_layer=3, attention_types=[[["global", "local", "global"], 1]], local_attention_radius=7
    )
    assert [attention_window(config, layer) for layer in range(3)] == [
        Window(True, None),
        Window(True, 7),
        Window(True, None),
    ]
