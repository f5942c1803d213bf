"""Graphs for TPUs of 8, 32 and 256 cores: they build, XLA knows what is in them, and what the cores
send each other is what the layout implies.

Nothing is executed: the TPU is one of tests/fake_tpu.py.
"""

import functools
import math
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.util import pywrap_xla_ops
from tensorflow_estimator.python.estimator.tpu import error_handling

from inspection.communication import count_communication
from inspection.measure import measure
from inspection.processor_view import ProcessorView
from model_fns import ModeKeys, Placement, build_training_graph, inference_graph, make_model_fn
from models.sampling import FEATURES
from tests.fake_tpu import answering, fake_tpu, on_cores
from tests.support import make_config
from utils.garbage import no_garbage_collection
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf
from utils.training_run import make_tpu_estimator

BATCH, HEADS, WIDTH, WINDOW, VOCAB, LAYERS = 256, 4, 20, 12, 22, 1
SIZES = {
    "model_path": "gs://bucket/run",
    "train_batch_size": BATCH,
    "eval_batch_size": BATCH,
    "n_head": HEADS,
    "n_embd": WIDTH,
    "n_ctx": WINDOW,
    "n_vocab": VOCAB,
    "n_layer": LAYERS,
    "attention_types": [[["global"], LAYERS]],
}
DATA, MODEL, WIDTHS = "batch:x", "batch:x,heads:y,vocab:y,intermediate_expanded:y", "batch:x,embd:y"
CUBE = f"{MODEL},embd:z,memory_length:z"
MESHES = [
    *(("x:8", DATA), ("x:4,y:2", MODEL), ("x:16,y:2", WIDTHS), ("x:128,y:2", MODEL)),
    ("x:2,y:2,z:2", CUBE),
]
MOVED = {
    "mesh_shape": "x:4,y:2",
    "layout": "batch:x,experts:x,heads:y,intermediate_expanded:y",
    "n_layer": 2,
    "attention_types": [[["local"], 2]],
    "moe_layers": [1],
    "moe_params": {"moe_num_experts": 4, "moe_hidden_size": 14},
}
BFLOAT16 = {
    "mesh_shape": "x:4,y:2",
    "layout": MODEL,
    "precision": "bfloat16",
    "tokens_per_mb_per_replica": 192,
    "recompute_grad": True,
    "log_grads": True,
    "attn_dropout": 0.1,
}
# Of programs on cores; XLA's lists are those of CPU and GPU, which know no other cores.
OF_CORES = {
    *("AllToAll", "CrossReplicaSum", "InfeedDequeueTuple", "OutfeedEnqueueTuple"),
    *("TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput"),
    # Loops as graphs have them before TensorFlow makes functions of them.
    *("Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch", "ControlTrigger"),
}


class Built(NamedTuple):
    graph: tf.Graph
    hooks: list[Any]


def placement_of(config, **options):
    layout = replace(MeshLayout.from_config(config), compiled=True)
    return Placement(layout, ("",), tpu=fake_tpu(layout.size), **options)


def training(**keys):
    """What TPUEstimator makes of the model function."""
    config = make_config(**(SIZES | keys))
    placement = placement_of(config, steps_per_checkpoint=10)

    def input_fn(params):
        ids = tf.zeros([config.train_batch_size, config.n_ctx], tf.int32)
        return tf.data.Dataset.from_tensors(({"inputs": ids}, ids)).repeat()

    with no_garbage_collection(), answering(config.mesh_size), tf.Graph().as_default() as graph:
        estimator = make_tpu_estimator(
            config, make_model_fn(config, placement), placement.tpu, steps_per_checkpoint=10
        )
        estimator._rendezvous[ModeKeys.TRAIN] = error_handling.ErrorRendezvous(1)
        estimator._create_and_assert_global_step(graph)
        with estimator._ctx.with_mode(ModeKeys.TRAIN):
            features, labels, _ = estimator._get_features_and_labels_from_input_fn(
                input_fn, ModeKeys.TRAIN
            )
            spec = estimator._call_model_fn(features, labels, ModeKeys.TRAIN, estimator.config)
        for hook in spec.training_hooks:
            if isinstance(hook, mtf.MtfRestoreHook):
                hook.begin()
            for listener in getattr(hook, "_listeners", ()):  # of the saver, which needs a folder
                listener.begin()
    return config, Built(graph, spec.training_hooks)


@functools.cache
def training_of(mesh_shape, layout):
    return training(mesh_shape=mesh_shape, layout=layout)


def unknown_to_xla(graph):
    known = set(pywrap_xla_ops.get_cpu_kernel_names()) & set(pywrap_xla_ops.get_gpu_kernel_names())
    return {op.type for op in on_cores(graph)} - known - OF_CORES


def sent_by_program(graph):
    """(operation, groups of cores, bytes of the tensor on a core) -> number."""
    found = Counter()
    for op in on_cores(graph):
        if op.type in ("AllToAll", "CrossReplicaSum", "CollectivePermute"):
            groups = tf.get_static_value(op.inputs[1])
            size = math.prod(op.inputs[0].shape.as_list()) * op.inputs[0].dtype.size
            if groups.shape[1] > 1:
                found[op.type, tuple(map(tuple, groups)), size] += 1
    return found


def groups_along(layout, axes):
    """The cores that differ in nothing but their place on ``axes``."""
    names, sizes = zip(*layout.axes)
    cores = np.arange(layout.size).reshape(sizes)
    numbers = [names.index(axis) for axis in axes]
    last = np.moveaxis(cores, numbers, range(-len(numbers), 0))
    return tuple(map(tuple, last.reshape(-1, math.prod(sizes[number] for number in numbers))))


def sent_by_layout(config):
    """As ``sent_by_program``, from the count in named dimensions.

    Mesh TensorFlow has no all-gather for TPUs: every core fills the whole with zeros around its
    part, and the wholes are summed. A maximum gathers all parts and compares them.
    """
    layout = MeshLayout.from_config(config)
    ids = [config.train_batch_size, config.n_ctx]
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        inputs, labels = (tf.compat.v1.placeholder(tf.int32, ids) for _ in range(2))
        step = tf.compat.v1.placeholder(tf.int32, [])
        built = build_training_graph(mesh, config, layout, inputs, labels, step)
        fetched = [built.loss, built.updates.gradient_norm, *built.updates.gradient_norms.values()]
        counted = count_communication(ProcessorView(mesh.graph, layout), fetched)
    found = Counter()
    for one in counted:
        kind = "AllToAll" if one.kind == "all-to-all" else "CrossReplicaSum"
        size = one.size_bytes * (one.group if one.reduction in ("MAX", "MIN") else 1)
        found[kind, groups_along(layout, one.axes), size] += one.count
    return found


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES)
def test_training_is_all_known_to_xla_and_sends_what_the_layout_implies(mesh_shape, layout):
    config, built = training_of(mesh_shape, layout)
    assert unknown_to_xla(built.graph) == set()
    sent = sent_by_program(built.graph)
    assert sent == sent_by_layout(config)
    assert sum(sent.values()) > 15


@pytest.mark.parametrize("keys", [MOVED, BFLOAT16], ids=["experts", "bfloat16 microbatches"])
def test_options_are_known_to_xla_and_send_what_is_counted(keys):
    config, built = training(**keys)
    assert unknown_to_xla(built.graph) == set()
    sent = sent_by_program(built.graph)
    assert sent == sent_by_layout(config)
    if keys is MOVED:
        assert any(kind == "AllToAll" for kind, _, _ in sent)


def of_size(sent, size, layout, axes):
    return sent["CrossReplicaSum", groups_along(layout, axes), size]


def test_data_parallel_training_by_formula():
    """One sum per variable, and two of scalars: the tokens that count and the loss."""
    config, built = training_of("x:8", DATA)
    layout = MeshLayout.from_config(config)
    expected = Counter({4: 2})
    expected.update(4 * variable.size for variable in measure(config).weights)
    sent = sent_by_program(built.graph)
    assert {size: n for (_, _, size), n in sent.items()} == expected
    assert {groups for _, groups, _ in sent} == {groups_along(layout, ["x"])}


def test_model_parallel_training_by_formula():
    """Per layer and pass one sum of activations behind attention and one behind the feed-forward
    layer (Shoeybi et al. 2019, section 3), one behind the embedding, and one before the head.
    """
    for mesh_shape, replicas in (("x:4,y:2", 4), ("x:128,y:2", 128)):
        config, built = training_of(mesh_shape, MODEL)
        layout = MeshLayout.from_config(config)
        sent = sent_by_program(built.graph)
        stream = 4 * BATCH // replicas * WINDOW * WIDTH
        forward, backward = 2 * LAYERS + 1, 2 * LAYERS + 1
        # Gradients of attention's input come from three products, whose sums are put off and made
        # once.
        assert of_size(sent, stream, layout, ["y"]) == forward + backward
        # Weights are split over y, so that their gradients are summed over x in parts.
        projection = 4 * WIDTH * WIDTH // 2
        assert of_size(sent, projection, layout, ["x"]) == 4 * LAYERS
        assert of_size(sent, 4 * projection, layout, ["x"]) == 2 * LAYERS


def test_training_with_a_split_width_by_formula():
    """Products that contract the width are sums over y: queries, keys, values, and the first of
    the feed-forward layer forward; the gradients of the inputs of the others backward.
    """
    config, built = training_of("x:16,y:2", WIDTHS)
    layout = MeshLayout.from_config(config)
    sent = sent_by_program(built.graph)
    tokens = BATCH // 16 * WINDOW
    assert of_size(sent, 4 * tokens * WIDTH, layout, ["y"]) == (3 + 1) * LAYERS
    assert of_size(sent, 4 * tokens * 4 * WIDTH, layout, ["y"]) == (1 + 1) * LAYERS
    assert of_size(sent, 4 * tokens * VOCAB, layout, ["y"]) == 1
    # q, k, v and o, each [width, width]; the embedding; the two of the feed-forward layers.
    projection = 4 * WIDTH * WIDTH // 2
    assert of_size(sent, projection, layout, ["x"]) == 4 * LAYERS
    assert of_size(sent, 4 * projection, layout, ["x"]) == 2 * LAYERS
    assert of_size(sent, 4 * VOCAB * WIDTH // 2, layout, ["x"]) == 1


def test_hosts_hold_the_masters_and_the_metrics():
    """On 4 hosts; small variables share their slices, and checkpoints keep every name."""
    config, built = training_of("x:16,y:2", WIDTHS)
    with built.graph.as_default():
        masters = tf.compat.v1.global_variables()
        tables = tf.compat.v1.local_variables()
    hosts = {variable.device for variable in masters} - {""}
    assert hosts <= {f"/job:worker/task:{n}/device:CPU:0" for n in range(4)}
    assert len(hosts) > 1
    names = {variable.op.name for variable in masters}
    assert names == {"global_step"} | {variable.name for variable in measure(config).variables}
    [table] = [variable for variable in tables if variable.op.name == "training/table"]
    assert table.shape == [config.iterations, 5]
    slices = built.graph.get_collection("TPU_VAR")
    assert len(slices) % 32 == 0
    assert len(slices) < 32 * len(names)


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES[1:3])
def test_evaluation_and_generation(mesh_shape, layout):
    config = make_config(**(SIZES | {"mesh_shape": mesh_shape, "layout": layout}))
    placement = placement_of(config)
    rows, window = BATCH, [BATCH, WINDOW]
    placeholder = tf.compat.v1.placeholder
    with no_garbage_collection(), tf.Graph().as_default() as graph:
        features = {
            "inputs": placeholder(tf.int32, window),
            "row_weights": placeholder(tf.float32, [rows]),
        }
        labels = placeholder(tf.int32, window)
        scores, hooks = inference_graph(config, placement, ModeKeys.EVAL, features, labels)
        for hook in hooks:
            hook.begin()
    assert unknown_to_xla(graph) == set()
    assert {name: tensor.shape.as_list() for name, tensor in scores.items()} == {
        **{name: [rows] for name in ("loss", "cross_entropy", "mean_logits", "row_tokens")},
        "labels": window,
    }
    with no_garbage_collection(), tf.Graph().as_default() as graph:
        features = {
            name: placeholder(dtype, window if name == "tokens" else [rows])
            for name, dtype in FEATURES.items()
        }
        texts, hooks = inference_graph(config, placement, ModeKeys.PREDICT, features)
        for hook in hooks:
            hook.begin()
    assert unknown_to_xla(graph) == set()
    assert texts["lengths"].shape == [rows]
    assert texts["tokens"].shape[0] == rows


def test_writes_in_place_would_be_noticed():
    config = make_config(**(SIZES | {"mesh_shape": "x:8", "layout": DATA}))
    placement = placement_of(config)
    wrong = replace(placement, mesh_layout=MeshLayout.from_config(config))
    with tf.Graph().as_default() as graph:
        features = {
            name: tf.compat.v1.placeholder(dtype, [BATCH, WINDOW] if name == "tokens" else [BATCH])
            for name, dtype in FEATURES.items()
        }
        inference_graph(config, wrong, ModeKeys.PREDICT, features)
    assert unknown_to_xla(graph) == {"InplaceUpdate"}
