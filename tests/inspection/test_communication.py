"""Counted collectives against those that Mesh TensorFlow's own lowering says it makes."""

import re
from collections import Counter

import pytest
import tensorflow as tf

from inspection.communication import Collective, count_communication
from inspection.measure import measure
from inspection.processor_view import ProcessorView
from model_fns import build_training_graph
from tests.support import cpus, make_config
from utils.garbage import no_garbage_collection
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

SIZES = {
    "train_batch_size": 12,
    "eval_batch_size": 12,
    "n_head": 4,
    "n_embd": 20,
    "n_layer": 1,
    "attention_types": [[["global"], 1]],
}
LAYOUTS = [
    ("x:4", "batch:x"),
    ("x:2,y:2", "batch:x,heads:y,vocab:y,intermediate_expanded:y"),
    ("x:2,y:2", "batch:x,embd:y"),
    ("x:2,y:2", "sequence:x,memory_length:y"),
]
MICROBATCHES = {"tokens_per_mb_per_replica": 20, "recompute_grad": True}  # 3 of 4 sequences


def lowered(config):
    """(collectives as counted, counters of a real lowering) of one training step."""
    layout = MeshLayout.from_config(config)
    with no_garbage_collection(), tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        ids = [config.train_batch_size, config.n_ctx]
        inputs, labels = (tf.compat.v1.placeholder(tf.int32, ids) for _ in range(2))
        step = tf.compat.v1.placeholder(tf.int32, [])
        built = build_training_graph(mesh, config, layout, inputs, labels, step)
        measured = built.noise.metrics.values() if built.noise else ()
        fetched = [built.loss, built.updates.gradient_norm, *measured]
        counted = count_communication(ProcessorView(graph, layout), fetched)
        implementation = layout.placement(list(cpus(layout.size)))
        lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
        for tensor in fetched:
            lowering.export_to_tf_tensor(tensor)
    return counted, lowering.counters


def from_counters(counters, layout):
    """(kind, axes, elements on one processor) -> number; the counters name no types."""
    kinds = {"allreduce": "all-reduce", "allconcat": "all-gather", "alltoall": "all-to-all"}
    found = Counter()
    for key, elements in counters:
        kind, _, rest = key.partition("/")
        if kind in kinds:
            axes = tuple(int(number) for number in re.findall(r"\d+", rest.partition("/")[0]))
            if any(layout.axes[axis][1] > 1 for axis in axes):
                names = tuple(layout.axes[axis][0] for axis in axes)
                found[kinds[kind], names, elements // layout.size] += 1
    return found


@pytest.mark.parametrize(
    ("mesh_shape", "layout", "extra"),
    [
        *((*layout, {}) for layout in LAYOUTS),
        (*LAYOUTS[1], MICROBATCHES),
        (*LAYOUTS[1], MICROBATCHES | {"noise_scale_alpha": 0.5}),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else f"{len(value)} more",
)
def test_number_and_sizes_are_those_of_the_lowering(mesh_shape, layout, extra):
    config = make_config(mesh_shape=mesh_shape, layout=layout, **SIZES, **extra)
    counted, counters = lowered(config)
    got = Counter()
    for one in counted:
        got[one.kind, one.axes, one.size_bytes // one.dtype.size] += one.count
    expected = from_counters(counters, MeshLayout.from_config(config))
    assert got == expected
    assert sum(expected.values()) > 15


def test_data_parallel_training_sums_gradients_and_scalars():
    """One sum per variable, of its size; the vectors of the norms have two each, as kernels."""
    config = make_config(mesh_shape="x:4", layout="batch:x", **SIZES)
    run = measure(config)
    sizes = Counter(variable.slice_bytes for variable in run.weights)
    assert {one.axes for one in run.communication} == {("x",)}
    sums = Counter()
    for one in run.communication:
        assert (one.kind, one.reduction, one.group) == ("all-reduce", "SUM", 4)
        sums[one.size_bytes] += one.count
    assert sums.pop(4) == 2  # the number of tokens that count, and the loss
    assert sums == sizes


def test_a_loop_sums_gradients_once_and_activations_in_every_iteration():
    layout = {"mesh_shape": "x:2,y:2", "layout": "batch:x,heads:y,intermediate_expanded:y"}
    whole = measure(make_config(**layout, **SIZES))
    # 12 sequences, 6 on each of 2 replicas, in microbatches of 2 on each
    parts = measure(make_config(tokens_per_mb_per_replica=20, **layout, **SIZES))
    assert parts.config.microbatches == 3

    def of(run, source):
        [one] = [one for one in run.communication if one.source == source]
        return one

    activations = "matmul [batch, sequence, embd]"
    assert of(parts, activations).count == 3 * of(whole, activations).count
    assert 3 * of(parts, activations).size_bytes == of(whole, activations).size_bytes
    assert of(parts, activations).sent_bytes == of(whole, activations).sent_bytes
    gradients = "matmul gradient [embd, intermediate_expanded]"
    assert of(parts, gradients) == of(whole, gradients)


def test_activations_in_bfloat16_are_sent_in_two_bytes_and_gradients_in_four():
    layout = {"mesh_shape": "x:2,y:2", "layout": "batch:x,heads:y,intermediate_expanded:y"}
    run = measure(make_config(precision="bfloat16", **layout, **SIZES))
    types = {one.source: one.dtype for one in run.communication}
    assert types["matmul [batch, sequence, embd]"] == tf.bfloat16
    assert types["matmul gradient [embd, heads]"] == tf.float32


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("all-reduce", 2 * 3 * 200), ("all-gather", 3 * 200), ("all-to-all", 600), ("shift", 800)],
)
def test_what_a_ring_of_four_sends(kind, expected):
    one = Collective(kind, "", ("x",), 4, 800, tf.float32, "", count=1)
    assert one.sent_bytes == expected


def test_one_processor_sends_nothing():
    assert measure(make_config()).communication == ()
