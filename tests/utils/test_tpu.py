"""Finding a TPU, and what is said when there is none or it does not fit; nothing is executed."""

import socket
import time

import pytest
import tensorflow as tf

import utils.tpu
from model_fns import Placement, make_model_fn
from tests.fake_tpu import fake_tpu
from tests.support import make_config
from utils.devices import place_inference, place_training
from utils.mesh import MeshLayout
from utils.tpu import Tpu, connect, iterations_per_call
from utils.training_run import make_tpu_estimator

POD = {
    "mesh_shape": "x:128,y:2",
    "layout": "batch:x,memory_length:y,embd:y",
    "train_batch_size": 256,
    "model_path": "gs://bucket/run",
}


@pytest.fixture(autouse=True)
def forget_tpus():
    utils.tpu._connect_once.cache_clear()
    yield
    utils.tpu._connect_once.cache_clear()


@pytest.fixture
def found(monkeypatch):
    """Makes ``connect`` find a TPU with so many cores."""

    def find(cores):
        monkeypatch.setattr("utils.devices.connect", lambda name: fake_tpu(cores))

    return find


def refusal(call):
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_tpu_that_is_not_there_is_one_line_and_quick(monkeypatch):
    monkeypatch.setattr(utils.tpu, "_FIND_SECONDS", 20)
    began = time.monotonic()
    message = refusal(lambda: connect("no-such-tpu"))
    assert time.monotonic() - began < 25
    assert message.startswith("--tpu must name a TPU that can be reached; got no-such-tpu (")
    assert message.endswith(
        "Run in its Google Cloud project and zone, give its address as grpc://HOST:8470, or use "
        "--tpu local on a TPU VM."
    )


def test_a_service_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(utils.tpu, "_FIND_SECONDS", 0.2)
    monkeypatch.setattr(utils.tpu, "_find", lambda name, address: time.sleep(5))
    began = time.monotonic()
    assert "got slow (no answer within 0.2 s). Run in" in refusal(lambda: connect("slow"))
    assert time.monotonic() - began < 3


def test_an_address_where_nobody_listens_is_refused_at_once():
    began = time.monotonic()
    assert refusal(lambda: connect("grpc://127.0.0.1:1")).startswith(
        "--tpu must name a TPU that can be reached; got grpc://127.0.0.1:1 (Connection refused). "
    )
    assert "got grpc://nohost.invalid:1 (" in refusal(lambda: connect("grpc://nohost.invalid:1"))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("address", ["grpc://", "grpc://host", "grpc://host:x", "grpc://:8470"])
def test_an_address_has_a_host_and_a_port(address):
    assert refusal(lambda: connect(address)).startswith(
        f'--tpu must give an address as grpc://HOST:PORT; got "{address}". Write grpc://'
    )


def test_a_service_that_listens_and_says_nothing_is_given_up(monkeypatch):
    """TensorFlow's call must leave this thread running, or the time is never up."""
    monkeypatch.setattr(utils.tpu, "_FIND_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        name = f"grpc://127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        assert f"got {name} (no answer within 1 s)" in refusal(lambda: connect(name))
        assert time.monotonic() - began < 5


def test_an_error_of_the_cloud_is_told_in_one_line(monkeypatch):
    def refuse(address):
        raise RuntimeError("credentials must be there\nsee https://example.com")

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", refuse)
    assert "got mine (credentials must be there). Run in" in refusal(lambda: connect("mine"))


def test_this_machine_is_no_tpu_vm():
    assert refusal(lambda: connect("local")) == (
        "--tpu must name a machine with TPU cores; got none on local. Name another one, or run on "
        "the CPU without this flag."
    )


def test_colab_names_its_tpu_in_a_variable(monkeypatch):
    asked = []
    monkeypatch.setattr(
        utils.tpu, "_find", lambda name, address: asked.append(address) or fake_tpu(8)
    )
    monkeypatch.delenv("COLAB_TPU_ADDR", raising=False)
    assert refusal(lambda: connect("colab")).startswith(
        "--tpu colab must find the variable COLAB_TPU_ADDR; got none. Choose the runtime type TPU"
    )
    monkeypatch.setenv("COLAB_TPU_ADDR", "10.1.2.3:8470")
    assert connect("colab").cores == 8
    assert connect("colab").cores == 8
    assert asked == ["grpc://10.1.2.3:8470"]  # once


def test_a_pod_needs_no_list_of_devices(found):
    found(256)
    config = make_config(**POD)
    fit = place_training(config, (), tpu="pod")
    assert (fit.tpu.cores, fit.devices, fit.notices) == (256, ("",), ())
    assert fit.mesh_layout.compiled
    assert fit.mesh_layout.rules == MeshLayout.from_config(config).rules
    options = fit.tpu.session_config()
    [job] = options.cluster_def.job
    assert (job.name, len(job.tasks), options.isolate_session_state) == ("worker", 32, True)


@pytest.mark.parametrize("place", [place_training, place_inference])
def test_the_mesh_must_have_as_many_processors_as_there_are_cores(found, place):
    found(32)
    more = () if place is place_training else (256, "eval_batch_size")
    assert refusal(lambda: place(make_config(**POD), (), *more, tpu="mine")) == (
        "mesh_shape must have as many processors as the TPU has cores; got x:128,y:2 = 256 on "
        "v3-32 with 32. Add --fit_mesh to fit the mesh to the TPU, or name another TPU."
    )


def test_files_must_be_where_the_hosts_can_read_them(found):
    config = make_config(**POD | {"model_path": "runs/here"})
    # Nothing is found yet: files are looked at before anybody is asked.
    assert refusal(lambda: place_training(config, (), tpu="pod")) == (
        "model_path must be in a bucket that the TPU's hosts reach; got runs/here. Write "
        "gs://BUCKET/FOLDER."
    )
    local = [["data/a_*.tfrecords", "", 1, "chunks", 1.0]]
    config = make_config(**POD, datasets=local)
    assert refusal(lambda: place_training(config, (), tpu="pod")).startswith(
        "records must be in a bucket that the TPU's hosts reach; got data/a_*.tfrecords. Copy"
    )
    found(256)
    assert place_inference(config, (), 256, "eval_batch_size", tpu="pod").tpu
    two = [[f"gs://b/{n}_*.tfrecords", "", 1, "chunks", 1.0] for n in "ab"]
    assert place_training(make_config(**POD, datasets=two), (), tpu="pod").tpu


class LocalResolver:
    def master(self):
        return ""

    def cluster_spec(self):
        return None


def test_a_tpu_vm_reads_its_own_files(monkeypatch):
    tpu = Tpu("local", LocalResolver(), 8)
    monkeypatch.setattr("utils.devices.connect", lambda name: tpu)
    config = make_config(mesh_shape="x:8", train_batch_size=16)
    assert place_training(config, (), tpu="local").tpu is tpu
    assert not tpu.session_config().cluster_def.job


def test_inference_keeps_the_mesh_and_drops_what_does_not_divide(found):
    found(8)
    config = make_config(mesh_shape="x:8", train_batch_size=16, model_path="gs://bucket/run")
    fit = place_inference(config, (), 3, "the number of samples", tpu="mine")
    assert fit.mesh_layout == MeshLayout((("x", 8),), (), compiled=True)
    assert fit.notices == (
        "the number of samples 3 is not a multiple of 8; the batch is not split",
    )


@pytest.mark.parametrize(
    ("iterations", "steps_per_checkpoint", "expected"),
    [(500, 5000, 500), (300, 500, 100), (4, 4, 4)],
)
def test_calls_end_at_checkpoints(iterations, steps_per_checkpoint, expected):
    config = make_config(**POD, iterations=iterations)
    model_fn = make_model_fn(config, Placement(MeshLayout.from_config(config), ("",)))
    assert iterations_per_call(config, steps_per_checkpoint) == expected
    estimator = make_tpu_estimator(config, model_fn, fake_tpu(256), steps_per_checkpoint)
    tpu_config = estimator.config.tpu_config
    assert tpu_config.iterations_per_loop == expected
    assert (tpu_config.num_shards, tpu_config.num_cores_per_replica) == (256, 1)
    assert estimator.config.master == "grpc://10.0.0.0:8470"
