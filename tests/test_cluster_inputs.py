"""What the hosts of a cluster read of a batch, and what goes from one to another, read off the
graph: nothing when each reads for itself; their slices, once, when the chief reads for all.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import inputs
from inputs import hosts_training_input, open_sources, training_input
from model_fns import ModeKeys, Placement, make_model_fn
from models.dimensions import Dimensions
from tests.input_support import MODES, batches_of, config_in_mode, write
from tests.support import make_config, mesh_layout
from utils.errors import reason
from utils.garbage import no_garbage_collection
from utils.host_rows import host_rows
from utils.training_run import make_estimator

CHIEF, WORKER = "/job:chief/task:0", "/job:worker/task:0"
BATCH, N_CTX = 6, 10
ID_BYTES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    write(folder, "train", np.arange(6 * (N_CTX + 1)).reshape(6, N_CTX + 1) % 22)
    return folder


def devices_of(per_host):
    return tuple(f"{host}/device:CPU:{i}" for host in (CHIEF, WORKER) for i in range(per_host))


def rows_of_hosts(config, devices):
    dims = Dimensions.from_config(config, config.train_batch_size)
    split = mesh_layout(config.mesh_shape, config.layout)
    return host_rows(split, devices, [dims.batch, dims.sequence])


def host_of(op):
    spec = tf.DeviceSpec.from_string(op.device)
    return f"/job:{spec.job}/task:{spec.task}"


def is_of_the_batch(op, found):
    """Whether ids of the batch are all that an operation's output is made of."""
    if op.name not in found:
        found[op.name] = op.type == "IteratorGetNext" or (
            op.type in ("Slice", "StridedSlice", "Identity")
            and is_of_the_batch(op.inputs[0].op, found)
        )
    return found[op.name]


@pytest.mark.parametrize("each_reads", [False, True], ids=["chief reads", "each reads"])
@pytest.mark.parametrize(
    ("mesh_shape", "layout", "devices_per_host", "ids_sent"),
    [
        ("x:2", "batch:x", 1, BATCH // 2 * N_CTX),  # its rows
        ("x:2,y:2", "batch:x,heads:y", 2, 2 * (BATCH // 2 * N_CTX)),  # to each of two devices
        ("x:2", "heads:x", 1, BATCH * N_CTX),  # it works on all of them
    ],
)
def test_a_host_is_sent_its_slice_of_the_ids(
    folder, mesh_shape, layout, devices_per_host, ids_sent, each_reads
):
    config = make_config(
        mesh_shape=mesh_shape,
        layout=layout,
        datasets=[[str(folder / "train_*"), "", 1, None, 1.0]],
        n_layer=1,
        attention_types=[[["global"], 1]],
        model_path=str(folder / "run"),
    )
    devices = devices_of(devices_per_host)
    placement = Placement(mesh_layout(mesh_shape, layout), devices)
    model_fn = make_model_fn(config, placement)
    place = make_estimator(config, model_fn, devices, "grpc://a:1").config.device_fn
    sources = open_sources(config, training=True)
    if each_reads:
        input_fn = hosts_training_input(config, sources, 0, rows_of_hosts(config, devices))
    else:
        input_fn = training_input(config, sources, 0)
    with no_garbage_collection(), tf.Graph().as_default() as graph, graph.device(place):
        batch = input_fn({})
        if not each_reads:
            batch = tf.compat.v1.data.make_initializable_iterator(batch).get_next()
        features, labels = batch
        model_fn(features, labels, ModeKeys.TRAIN, {})
    of_the_batch, sent, readers, compared = {}, {}, set(), set()
    for op in graph.get_operations():
        if "Dataset" in op.type or "Iterator" in op.type:
            readers.add(host_of(op))
        for tensor in op.inputs:
            if is_of_the_batch(tensor.op, of_the_batch) and host_of(op) != host_of(tensor.op):
                if tensor.shape.rank == 0:  # by which batches are compared
                    assert (host_of(tensor.op), host_of(op)) == (WORKER, CHIEF)
                    compared.add(tensor.name)
                    continue
                assert (host_of(tensor.op), host_of(op)) == (CHIEF, WORKER)
                # A tensor is sent once to a device, however many operations there read it.
                sent[tensor.name, op.device] = tensor.shape.num_elements()
    assert readers == ({CHIEF, WORKER} if each_reads else {CHIEF})
    assert len(compared) == each_reads
    assert sum(sent.values()) == (0 if each_reads else 2 * ids_sent)  # inputs and labels
    assert all(graph.get_tensor_by_name(name).dtype.size == ID_BYTES for name, _ in sent)


LAYOUTS = [
    ("x:4", "batch:x"),
    ("x:2,y:2", "batch:x,heads:y"),
    ("x:2,y:2", "batch:y,sequence:x"),  # rows of a host that are not neighbours
    ("x:2,y:2", "sequence:x,heads:y"),
]


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_rows_of_hosts_are_those_of_the_layout(mesh_shape, layout):
    config = make_config(mesh_shape=mesh_shape, layout=layout, train_batch_size=4, n_ctx=8)
    parts = [part for host in rows_of_hosts(config, devices_of(2)) for part in host.parts]
    assert [part.processor for part in parts] == [0, 1, 2, 3]
    axes = dict(pair.split(":") for pair in layout.split(","))
    for part in parts:
        place = {"x": part.processor // 2, "y": part.processor % 2}
        if mesh_shape == "x:4":
            place = {"x": part.processor}
        pieces = {axis: int(size) for axis, size in (p.split(":") for p in mesh_shape.split(","))}
        for dim, size, found in (("batch", 4, part.rows), ("sequence", 8, part.columns)):
            axis = axes.get(dim)
            piece = size // pieces[axis] if axis else size
            begin = place[axis] * piece if axis else 0
            assert found == range(begin, begin + piece)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    ids = np.arange(24 * 13).reshape(24, 13)
    write(folder / "few", "train", ids[:5], files_per=2)
    write(folder / "many", "train", ids[5:], files_per=8)
    return folder


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
@pytest.mark.parametrize("mode", [*MODES, "masked"])
def test_hosts_read_together_what_one_reads(mixture, mesh_shape, layout, mode):
    """From a place in the second epoch of the smaller data set on."""
    keys = {"mesh_shape": mesh_shape, "layout": layout, "train_batch_size": 4, "n_ctx": 12}
    if mode == "masked":
        keys |= {"mlm_training": True, "mlm_mask_id": 7}
    mode = "chunks" if mode == "masked" else mode
    config = config_in_mode(mixture, mode, ("few", "many"), n_head=4, **keys)
    sources = open_sources(config, training=True)
    first, steps, devices = 26, 4, devices_of(2)
    hosts = rows_of_hosts(config, devices)
    whole = batches_of(training_input(config, sources, first), config.seed, steps)
    here = [replace(host, device="") for host in hosts]  # all on this machine
    apart = batches_of(hosts_training_input(config, sources, first, here), config.seed, steps)
    parts = [part for host in hosts for part in host.parts]
    for batch, slices in zip(whole, apart):
        for one, cut in zip((batch[0]["inputs"], batch[1]), (slices[0]["inputs"], slices[1])):
            assert len(cut) == len(parts)
            for part, found in zip(parts, cut):
                columns = slice(part.columns.start, part.columns.stop)
                np.testing.assert_array_equal(found, one[list(part.rows), columns])


def test_a_host_with_other_records_stops_the_run(mixture, tmp_path, monkeypatch):
    """Same names, sizes and first records: only what is read tells."""
    ids = np.arange(24 * 13).reshape(24, 13)
    write(tmp_path / "few", "train", ids[:5], files_per=2)
    write(tmp_path / "many", "train", ids[[*range(5, 9), 10, 9, *range(11, 24)]], files_per=8)
    keys = {"mesh_shape": "x:2", "layout": "batch:x", "train_batch_size": 4, "n_ctx": 12}
    config = config_in_mode(mixture, "chunks", ("few", "many"), n_head=4, **keys)
    sources = open_sources(config, training=True)
    others = [
        replace(source, files=tuple(str(tmp_path / source.id / Path(f).name) for f in source.files))
        for source in sources
    ]
    hosts = [replace(host, device="") for host in rows_of_hosts(config, devices_of(1))]
    given = iter([sources, others])
    mixed = inputs._mixture
    monkeypatch.setattr(inputs, "_mixture", lambda _, *rest: mixed(next(given), *rest))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        batches_of(hosts_training_input(config, sources, 0, hosts), config.seed, 8)
    assert reason(caught.value).startswith(
        "all hosts must read the same records; got another batch on "
    )
