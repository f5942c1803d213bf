"""What of a batch goes to the other hosts of a cluster, read off the graph: their slices, once."""

import numpy as np
import pytest
import tensorflow as tf

from inputs import open_sources, training_input
from model_fns import ModeKeys, Placement, make_model_fn
from tests.input_support import write
from tests.support import make_config, mesh_layout, no_garbage_collection
from utils.training_run import make_estimator

CHIEF, WORKER = "/job:chief/task:0", "/job:worker/task:0"
BATCH, N_CTX = 6, 10
ID_BYTES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    write(folder, "train", np.arange(6 * (N_CTX + 1)).reshape(6, N_CTX + 1) % 22)
    return folder


def host_of(op):
    spec = tf.DeviceSpec.from_string(op.device)
    return f"/job:{spec.job}/task:{spec.task}"


def is_of_the_batch(op, found):
    """Whether ids of the batch are all that an operation's output is made of."""
    if op.name not in found:
        found[op.name] = op.type == "IteratorGetNext" or (
            op.type in ("Slice", "Identity") and is_of_the_batch(op.inputs[0].op, found)
        )
    return found[op.name]


@pytest.mark.parametrize(
    ("mesh_shape", "layout", "devices_per_host", "ids_sent"),
    [
        ("x:2", "batch:x", 1, BATCH // 2 * N_CTX),  # its rows
        ("x:2,y:2", "batch:x,heads:y", 2, 2 * (BATCH // 2 * N_CTX)),  # to each of two devices
        ("x:2", "heads:x", 1, BATCH * N_CTX),  # it works on all of them
    ],
)
def test_a_host_is_sent_its_slice_of_the_ids(
    folder, mesh_shape, layout, devices_per_host, ids_sent
):
    config = make_config(
        mesh_shape=mesh_shape,
        layout=layout,
        datasets=[[str(folder / "train_*"), "", 1, None, 1.0]],
        n_layer=1,
        attention_types=[[["global"], 1]],
        model_path=str(folder / "run"),
    )
    numbers = range(devices_per_host)
    devices = tuple(f"{host}/device:CPU:{i}" for host in (CHIEF, WORKER) for i in numbers)
    placement = Placement(mesh_layout(mesh_shape, layout), devices)
    model_fn = make_model_fn(config, placement)
    place = make_estimator(config, model_fn, devices, "grpc://a:1").config.device_fn
    input_fn = training_input(config, open_sources(config, training=True), 0)
    with no_garbage_collection(), tf.Graph().as_default() as graph, graph.device(place):
        iterator = tf.compat.v1.data.make_initializable_iterator(input_fn({}))
        features, labels = iterator.get_next()
        model_fn(features, labels, ModeKeys.TRAIN, {})
    of_the_batch, sent = {}, {}
    for op in graph.get_operations():
        if "Dataset" in op.type or "Iterator" in op.type:
            assert host_of(op) == CHIEF, op.name
        for tensor in op.inputs:
            if is_of_the_batch(tensor.op, of_the_batch) and host_of(op) != host_of(tensor.op):
                assert (host_of(tensor.op), host_of(op)) == (CHIEF, WORKER)
                # A tensor is sent once to a device, however many operations there read it.
                sent[tensor.name, op.device] = tensor.shape.num_elements()
    assert sum(sent.values()) == 2 * ids_sent  # inputs and labels
    assert all(graph.get_tensor_by_name(name).dtype.size == ID_BYTES for name, _ in sent)
