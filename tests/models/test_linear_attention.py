"""Linear attention against its definition in numpy: chunks, extreme keys, layouts, memory slots."""

import numpy as np
import pytest
import tensorflow as tf

from configs.errors import ConfigError
from inspection.kernel_trace import trace_kernel
from models.dimensions import Dimensions
from models.kernels.attention import MemorySlots
from models.kernels.linear_attention import linear_attention
from models.kernels.linear_cache import cached_linear_attention, empty_linear_cache
from models.kernels.linear_state import CHUNK, EPSILON
from models.kernels.operation import KernelGradientOperation
from tests.support import (
    assert_all_close,
    initial_variables,
    make_config,
    mesh_layout,
    random_batches,
    run_named,
    train,
)
from utils.mesh_tensorflow import mtf

BATCH, HEADS = mtf.Dimension("batch", 4), mtf.Dimension("heads", 2)
FEATURES, SLOTS = mtf.Dimension("features_per_head", 5), mtf.Dimension("memory_slots", 3)
RANDOM = np.random.default_rng(7)
LENGTHS = [1, 2, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 7]
LONGEST = max(LENGTHS)
ORDERS = [True, False]  # causal or not
Q, K, V, UPSTREAM = RANDOM.normal(size=(4, 4, LONGEST, 2, 5)).astype(np.float32)
SLOT_KEYS, SLOT_VALUES = RANDOM.normal(size=(2, 3, 2, 5)).astype(np.float32)
SLOT_DIMS = [SLOTS, HEADS, FEATURES]


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


def reference(q, k, v, causal, slots=None):
    """The definition, position by position, in extended precision: e^100 and more fit in."""
    q, k, v = (x.astype(np.longdouble) for x in (q, k, v))
    slot_count = 0
    if slots is not None:
        slot_count = len(slots[0])
        mem_k, mem_v = (np.broadcast_to(x, (len(q), *x.shape)) for x in slots)
        k, v = np.concatenate([mem_k, k], 1), np.concatenate([mem_v, v], 1)
    q = softmax(q, -1)
    if not causal:
        sums = np.einsum("bjhf,bjhg->bhfg", softmax(k, 1), v)
        return np.einsum("bihf,bhfg->bihg", q, sums).astype(np.float64)
    mixed = []
    for i in range(q.shape[1]):
        seen = slot_count + i + 1
        grown = np.exp(k[:, :seen])
        sums = np.einsum("bjhf,bjhg->bhfg", grown, v[:, :seen])
        normalizers = grown.sum(1) + np.longdouble(EPSILON)
        mixed.append(np.einsum("bhf,bhfg->bhg", q[:, i] / normalizers, sums))
    return np.stack(mixed, 1).astype(np.float64)


def dense_tf(q, k, v, causal, mem_k=None, mem_v=None):
    """As ``reference`` in plain TensorFlow with a state per position, to be differentiated."""
    slot_count = 0
    if mem_k is not None:
        slot_count = mem_k.shape.as_list()[0]
        tiles = [q.shape.as_list()[0], 1, 1, 1]
        k = tf.concat([tf.tile(mem_k[tf.newaxis], tiles), k], 1)
        v = tf.concat([tf.tile(mem_v[tf.newaxis], tiles), v], 1)
    q = tf.nn.softmax(q)
    if not causal:
        return tf.einsum("bihf,bjhf,bjhg->bihg", q, tf.nn.softmax(k, 1), v)
    grown = tf.exp(k)
    sums = tf.cumsum(tf.einsum("bjhf,bjhg->bjhfg", grown, v), 1)[:, slot_count:]
    normalizers = tf.cumsum(grown, 1)[:, slot_count:] + EPSILON
    return tf.einsum("bihf,bihfg->bihg", q / normalizers, sums)


def dense_gradients(arrays, causal, upstream):
    """Gradients of sum(dense_tf * upstream) by each of ``arrays``, in float64."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        q, k, v, *slots = (tf.constant(x, tf.float64) for x in arrays)
        loss = tf.reduce_sum(dense_tf(q, k, v, causal, *slots) * upstream)
        return session.run(tf.gradients(loss, [q, k, v, *slots]))


def with_gradients(split, q, k, v, upstream, *slots):
    """Per order the mixed values and the gradients of their sum with the upstream weights."""
    results = []
    for causal in ORDERS:
        mixed = linear_attention(q, k, v, causal, MemorySlots(*slots) if slots else None)
        loss = mtf.reduce_sum(mixed * upstream)
        results += [mixed, *mtf.gradients([loss], [q, k, v, *slots])]
    return results


def assert_right(got, arrays, upstream, tolerance, gradient_tolerance, slots=()):
    """Compares the results of ``with_gradients`` to the definition."""
    half = len(got) // 2
    for causal, (mixed, *gradients) in zip(ORDERS, (got[:half], got[half:])):
        assert_all_close([mixed], [reference(*arrays, causal, slots or None)], tolerance)
        expected = dense_gradients([*arrays, *slots], causal, upstream)
        assert_all_close(gradients, expected, gradient_tolerance)


def plain(split, q, k, v):
    return [linear_attention(q, k, v, causal=True)]


def named(*arrays):
    """Arrays [batch, sequence, heads, features] with their dimensions."""
    sequence = mtf.Dimension("sequence", arrays[0].shape[1])
    batch = mtf.Dimension("batch", arrays[0].shape[0])
    return [(x, [batch, sequence, HEADS, FEATURES]) for x in arrays]


# --- values and gradients --------------------------------------------------------------------


@pytest.mark.parametrize("length", LENGTHS)
def test_value_and_gradients(length):
    """Chunks that are full, that are not, and a single position."""
    *arrays, upstream = (x[:, :length] for x in (Q, K, V, UPSTREAM))
    got = run_named("x:1", "", named(*arrays, upstream), with_gradients)
    assert_right(got, arrays, upstream, 2e-6, 5e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), [("x:1", ""), ("x:2,y:2", "batch:x,heads:y")])
def test_memory_slots_and_layouts(mesh_shape, layout):
    """Slots are keys and values before all others; their gradients are sums over the mesh."""
    *arrays, upstream = (x[:, : CHUNK + 9] for x in (Q, K, V, UPSTREAM))
    slots = [SLOT_KEYS, SLOT_VALUES]
    inputs = named(*arrays, upstream) + [(x, SLOT_DIMS) for x in slots]
    got = run_named(mesh_shape, layout, inputs, with_gradients)
    assert_right(got, arrays, upstream, 2e-6, 5e-6, slots)
    assert min(np.abs(gradient).max() for gradient in got) > 0.1


def test_later_positions_are_not_seen():
    """Neither those of the own chunk nor those of later ones."""
    at = CHUNK + 20
    keys, values = K.copy(), V.copy()
    keys[:, at:] -= 3.0
    values[:, at:] = 7.0
    [first] = run_named("x:1", "", named(Q, K, V), plain)
    [second] = run_named("x:1", "", named(Q, keys, values), plain)
    # Not to the bit: the largest key of a chunk is the unit that its keys are measured in.
    assert_all_close([first[:, :at]], [second[:, :at]], 1e-6)
    assert np.abs(first[:, at:] - second[:, at:]).max() > 0.1


def test_the_layout_must_not_split_the_sequence():
    with pytest.raises(ValueError, match="dimension sequence of linear_attention must not be"):
        run_named("x:2", "sequence:x", named(Q[:, :4], K[:, :4], V[:, :4]), plain)


# --- extremes --------------------------------------------------------------------------------


def extreme_keys(length: int) -> np.ndarray:
    """One row of the batch for each kind, by features and positions."""
    keys = RANDOM.normal(size=(6, length, 2, 5)).astype(np.float32)
    keys[0] += 100.0
    keys[1] -= 100.0
    keys[2] = 100.0 * np.where(RANDOM.random(keys[2].shape) < 0.5, -1.0, 1.0)
    keys[3, length // 2 :] += 100.0  # the largest come late
    keys[3, : length // 2] -= 100.0
    keys[4, length // 2 :] -= 100.0  # or early
    keys[4, : length // 2] += 100.0
    keys[5] = np.linspace(-100.0, 100.0, length)[:, None, None]
    return keys


@pytest.mark.parametrize("length", [CHUNK // 2, 2 * CHUNK + 7])
def test_keys_of_100(length):
    """e^100 does not fit into float32; e^-100 is far below the epsilon."""
    keys = extreme_keys(length)
    q, v, upstream = (x[[0, 1, 2, 3, 0, 1], :length] for x in (Q, V, UPSTREAM))
    got = run_named("x:1", "", named(q, keys, v, upstream), with_gradients)
    # Differences of two keys of 100 are known to 1e-5 in float32.
    assert_right(got, [q, keys, v], upstream, 2e-5, 2e-4)


@pytest.mark.parametrize("keys", [K + 1e4, K * 1e4, K - 1e4], ids=["large", "far apart", "low"])
def test_larger_keys_stay_finite(keys):
    got = run_named("x:1", "", named(Q, keys, V, UPSTREAM), with_gradients)
    assert all(np.isfinite(array).all() for array in got)


def test_results_of_large_keys_depend_on_their_differences():
    """The epsilon is nothing beside any of them."""
    keys = K + np.float32(1e4)
    [mixed] = run_named("x:1", "", named(Q, keys, V), plain)
    assert_all_close([mixed], [reference(Q, keys - np.float32(1e4) + 50, V, True)], 1e-5)


def test_bfloat16_is_rounded_at_the_end_only():
    """The inputs have few enough bits already."""
    rounded = [(x.view(np.uint32) & 0xFFFF0000).view(np.float32) for x in (Q, K, V)]

    def build(split, *qkv):
        halved = [mtf.cast(x, tf.bfloat16) for x in qkv]
        return [mtf.cast(linear_attention(*halved, causal=causal), tf.float32) for causal in ORDERS]

    for causal, mixed in zip(ORDERS, run_named("x:1", "", named(*rounded), build)):
        np.testing.assert_allclose(mixed, reference(*rounded, causal), rtol=2**-8, atol=1e-6)


# --- memory and arithmetic -------------------------------------------------------------------


def traced(length: int, width: int):
    """The trace of the causal kernel and its gradient, and the multiply-adds that it declares."""
    dims = [
        mtf.Dimension("batch", 1),
        mtf.Dimension("sequence", length),
        mtf.Dimension("heads", 1),
        mtf.Dimension("features_per_head", width),
    ]
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    with tf.Graph().as_default():
        qkv = [mtf.zeros(mesh, mtf.Shape(dims), tf.float32) for _ in range(3)]
        mixed = linear_attention(*qkv, causal=True)
        mtf.gradients([mtf.reduce_sum(mixed)], qkv)
        forward = mixed.operation
        [gradient] = (op for op in graph.operations if isinstance(op, KernelGradientOperation))
        return trace_kernel(forward, gradient, mesh_layout("x:1", "")), forward.multiply_adds


def test_no_state_per_position():
    """Nothing of all that the two passes allocate has features^2 elements per position."""
    length, width = 8 * CHUNK, CHUNK
    trace, _ = traced(length, width)
    largest = max(size for node in (*trace.nodes, *trace.gradient_nodes) for _, size in node.writes)
    per_chunk = (length // CHUNK + 1) * width * width
    assert largest <= 4 * max(length * max(CHUNK, width), per_chunk)


@pytest.mark.parametrize("length", [1, 5, CHUNK, 2 * CHUNK + 3])
def test_multiply_adds(length):
    trace, declared = traced(length, 6)
    assert sum(node.flops for node in trace.nodes) == 2 * declared > 0


# --- state of generation ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh_shape", "layout", "slots"), [("x:1", "", False), ("x:2,y:2", "batch:x,heads:y", True)]
)
def test_running_state_equals_the_whole_sequence(mesh_shape, layout, slots):
    """Fed in chunks and single positions; rows end at different places and stay as they are."""
    sequence_length, pieces = LONGEST, [CHUNK, CHUNK, 1, 1, LONGEST - 2 * CHUNK - 2]
    lengths = np.array([LONGEST, CHUNK + 1, 3, 2 * CHUNK + 1])
    counts = (np.arange(sequence_length) < lengths[:, None]).astype(np.int32)
    sequence = mtf.Dimension("sequence", sequence_length)
    config = make_config(n_head=2, n_embd=10, num_mem_kv=3 if slots else 0)
    dims = Dimensions.from_config(config, 4)

    def build(split, q, k, v, counted, mem_k, mem_v):
        learned = MemorySlots(mem_k, mem_v) if slots else None
        cache = empty_linear_cache(q.mesh, dims, learned)
        mixed, begin, early = [], 0, None
        for size in pieces:
            part = [mtf.slice(x, begin, size, "sequence") for x in (q, k, v, counted)]
            output, cache = cached_linear_attention(*part[:3], cache, part[3])
            mixed.append(output)
            early = early or cache
            begin += size
        return [mtf.concat(mixed, "sequence"), *cache, *early]

    inputs = [
        *named(Q, K, V),
        (counts, [BATCH, sequence]),
        (SLOT_KEYS, SLOT_DIMS),
        (SLOT_VALUES, SLOT_DIMS),
    ]
    given = [SLOT_KEYS, SLOT_VALUES] if slots else None
    expected = reference(Q, K, V, True, given)
    mixed, *states = run_named(mesh_shape, layout, inputs, build)
    for row, length in enumerate(lengths):
        assert_all_close([mixed[row, :length]], [expected[row, :length]], 2e-6)
    for final, after_first in zip(states[:3], states[3:]):
        np.testing.assert_array_equal(final[2], after_first[2])  # it ended in the first chunk
        assert (final[0] != after_first[0]).any()


# --- in the model ----------------------------------------------------------------------------

LINEAR = {"n_layer": 1, "attention_types": [[["linear"], 1]], "num_mem_kv": 2}


def test_training_does_not_depend_on_the_layout(tmp_path):
    layouts = [{}, {"mesh_shape": "x:2", "layout": "heads:x"}]
    runs = []
    for number, split in enumerate(layouts):
        path = str(tmp_path / str(number))
        config = make_config(model_path=path, epsilon=1e-3, **LINEAR, **split)
        runs.append(train(config, random_batches(config, 3)))
    whole, divided = runs
    for key in ("loss", "grad_norm"):
        values, expected = ([step[key] for step in run.metrics] for run in (divided, whole))
        np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=key)
    start = initial_variables(config)
    for name, value in whole.variables.items():
        np.testing.assert_allclose(divided.variables[name], value, rtol=0, atol=1e-5, err_msg=name)
        if name in start:  # all of them are trained
            assert np.abs(value - start[name]).max() > 1e-6, name


def test_only_a_real_split_of_the_sequence_is_refused():
    split = {"mesh_shape": "x:1,y:2", "layout": "batch:x,sequence:y"}
    with pytest.raises(ConfigError, match="must not split 'sequence' with linear layers"):
        make_config(**LINEAR, **split)
    make_config(**(LINEAR | split | {"mesh_shape": "x:1,y:1"}))
    make_config(**split)
