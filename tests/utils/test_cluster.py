"""Who the hosts of a run are, and how they find and lose each other."""

import argparse
import json
import re
import socket
import time
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import tensorflow as tf

from tests.support import cpus, make_config
from utils.cluster import (
    Cluster,
    Host,
    cluster_from_flags,
    cluster_from_tf_config,
    is_idle,
    log_suffix,
    read_cluster,
)
from utils.cluster_roles import Chief, _Guard
from utils.cluster_watch import GONE_SECONDS, HostWatch
from utils.devices import place_training
from utils.hosts import ClusterError, Lines, Mailbox, NoAnswer, Status, _outcome, post, start_server
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf
from utils.training_run import make_estimator

KUBEFLOW = {
    "cluster": {"worker": ["b:2222", "c:2222"], "chief": ["a:2222"]},
    "task": {"type": "worker", "index": 1},
    "environment": "cloud",
}


def tf_config(**values):
    return cluster_from_tf_config(json.dumps(KUBEFLOW | values), 300)


# ---- flags and TF_CONFIG -----------------------------------------------------------------------


def test_the_variable_of_an_operator():
    cluster = tf_config()
    assert [str(host) for host in cluster.hosts] == [
        "chief 0 (a:2222)",
        "worker 0 (b:2222)",
        "worker 1 (c:2222)",
    ]
    assert cluster.chief.task == "/job:chief/task:0"
    assert str(cluster.here) == "worker 1 (c:2222)"
    assert not cluster.is_chief
    assert cluster.jobs == {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]}
    assert cluster.devices(("device:GPU:0", "device:GPU:1"))[1:4] == (
        "/job:chief/task:0/device:GPU:1",
        "/job:worker/task:0/device:GPU:0",
        "/job:worker/task:0/device:GPU:1",
    )


def test_a_master_is_a_chief_and_without_one_the_first_worker_is():
    master = tf_config(
        cluster={"master": ["a:1"], "worker": ["b:1"]}, task={"type": "master", "index": "0"}
    )
    assert str(master.chief) == "master 0 (a:1)"
    assert master.is_chief
    workers = tf_config(cluster={"worker": ["a:1", "b:1"]})
    assert str(workers.chief) == "worker 0 (a:1)"


@pytest.mark.parametrize("words", [["a:1,[::1]:2"], ["a:1", "[::1]:2"]])
def test_flags(words):
    cluster = cluster_from_flags(words, 1, 7)
    assert cluster == Cluster(
        (Host("worker", 0, "a:1"), Host("worker", 1, "[::1]:2")), Host("worker", 1, "[::1]:2"), 7
    )
    assert cluster.here.port == 2
    assert cluster.others == (cluster.chief,)


def namespace(mode="train", cluster=None, task=None, cluster_timeout=None):
    return argparse.Namespace(
        mode=mode, cluster=cluster, task=task, cluster_timeout=cluster_timeout
    )


def test_the_variable_is_taken_out_of_the_environment():
    """TensorFlow's estimators would read it too."""
    for mode in ("train", "eval", "print_config"):
        environment = {"TF_CONFIG": json.dumps(KUBEFLOW), "OTHER": ""}
        cluster = read_cluster(namespace(mode, cluster_timeout=7), environment)
        assert environment == {"OTHER": ""}
        if mode == "print_config":
            assert cluster is None
        else:
            assert cluster.timeout_seconds == 7


def test_one_host_is_no_cluster():
    alone = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    assert read_cluster(namespace(), {"TF_CONFIG": json.dumps(alone)}) is None
    assert read_cluster(namespace(cluster=["a:1"], task=0), {}) is None
    assert read_cluster(namespace(), {"TF_CONFIG": ""}) is None
    assert read_cluster(namespace(), {}) is None


def test_who_is_idle():
    worker = tf_config()
    chief = Cluster(worker.hosts, worker.chief)
    assert is_idle(worker, "predict")
    assert not is_idle(chief, "predict")
    assert not is_idle(worker, "train")
    assert not is_idle(None, "predict")
    assert (log_suffix(worker), log_suffix(chief), log_suffix(None)) == (".worker1", "", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", 'TF_CONFIG must be JSON; got "{" (Expecting property name'),
        ("[]", "TF_CONFIG must be a JSON object; got []. Correct it."),
        ('{"task": {}}', 'TF_CONFIG must have the key cluster; got {"task": {}}. Write {"clus'),
        ({"task": {"index": 0}}, 'TF_CONFIG must have the key task.type; got {"index": 0}. '),
        ({"task": 3}, "TF_CONFIG must have an object in task; got 3. Correct it."),
        ({"task": {"type": 3}}, "TF_CONFIG must have a text in task.type; got 3. Correct it."),
        (
            {"task": {"type": "evaluator", "index": 0}},
            "TF_CONFIG must have a task.type that its cluster lists, chief or worker; got "
            '"evaluator". A mesh has no parameter servers; evaluation is a job of its own',
        ),
        (
            {"task": {"type": "worker", "index": 2}},
            "TF_CONFIG must have a task.index from 0 to 1 for worker; got 2. Give every host",
        ),
        ({"task": {"type": "worker"}}, "a task.index from 0 to 1 for worker; got null. "),
        ({"task": {"type": "worker", "index": True}}, "from 0 to 1 for worker; got true. "),
        (
            {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}},
            'TF_CONFIG must have jobs named chief (or master) and worker only; got "ps". A mesh',
        ),
        ({"cluster": {"worker": "a:1"}}, 'a list of hosts in cluster.worker; got "a:1". '),
        (
            {"cluster": {"chief": ["a:1", "b:1"]}},
            "TF_CONFIG must have one chief; got chief 0 (a:1), chief 1 (b:1). List the others",
        ),
        ({"cluster": {}}, "TF_CONFIG must name at least one host; got none. Unset it."),
        (
            {"cluster": {"worker": ["a"]}},
            'TF_CONFIG cluster must list hosts as HOST:PORT; got "a". Write for instance 10.0.',
        ),
        ({"cluster": {"worker": [7]}}, "TF_CONFIG cluster must list hosts as HOST:PORT; got 7."),
        (
            {"cluster": {"chief": ["a:1"], "worker": ["a:1"]}},
            "TF_CONFIG cluster must name each host once; got a:1 twice. Several processes on one",
        ),
    ],
)
def test_a_wrong_variable(text, message):
    text = text if isinstance(text, str) else json.dumps(KUBEFLOW | text)
    with pytest.raises(ValueError, match=re.escape(message)):
        cluster_from_tf_config(text, 300)


@pytest.mark.parametrize(
    ("words", "task", "message"),
    [
        (["a:1", "b:0"], 0, '--cluster must list hosts as HOST:PORT; got "b:0". '),
        (["a:1", "b:65536"], 0, '--cluster must list hosts as HOST:PORT; got "b:65536". '),
        (["http://a:1"], 0, '--cluster must list hosts as HOST:PORT; got "http://a:1". '),
        ([","], 0, "--cluster must name at least one host; got none. Write HOST:PORT."),
        (["a:1", "a:1"], 0, "--cluster must name each host once; got a:1 twice. "),
        (
            ["a:1", "b:1"],
            2,
            "--task must be the number of a host in --cluster, 0 to 1; got 2. Give every host",
        ),
    ],
)
def test_wrong_flags(words, task, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        cluster_from_flags(words, task, 300)


def test_flags_beside_the_variable():
    with pytest.raises(ValueError, match=r"--cluster must not be combined with the variable"):
        read_cluster(namespace(cluster=["a:1"], task=0), {"TF_CONFIG": json.dumps(KUBEFLOW)})
    with pytest.raises(ValueError, match=r"--cluster_timeout must come with --cluster or TF_C"):
        read_cluster(namespace(cluster_timeout=3), {})


# ---- devices -----------------------------------------------------------------------------------


def test_a_mesh_over_hosts():
    config = make_config(mesh_shape="x:3,y:2", layout="batch:x,embd:y", train_batch_size=3)
    fit = place_training(config, cpus(2), tf_config())
    assert fit.devices == tf_config().devices(cpus(2))
    assert len(fit.devices) == 6
    with pytest.raises(ValueError) as caught:
        place_training(config, (), tf_config())
    assert str(caught.value) == (
        "mesh_shape must have as many processors as there are devices; got x:3,y:2 = 6 on 3 "
        "hosts with 1 each (the CPU). Add --fit_mesh to fit the mesh to the devices, or change "
        "the hosts or the devices that --gpu_ids names on every host."
    )


def test_all_that_names_no_host_is_on_the_chief(tmp_path):
    """Above all the weights that the saver writes to the chief's disk."""
    config = make_config(model_path=str(tmp_path))
    devices = ("/job:chief/task:0/device:GPU:0", "/job:worker/task:0/device:GPU:0")

    def model_fn(features, labels, mode, params):
        raise NotImplementedError

    run_config = make_estimator(config, model_fn, devices, "grpc://a:1").config
    assert run_config.master == "grpc://a:1"
    with tf.Graph().as_default() as graph, graph.device(run_config.device_fn):
        nowhere = tf.constant(1)
        with tf.device("cpu:0"):  # where Mesh TensorFlow puts the whole weights
            host = tf.constant(1)
        with tf.device(devices[1]):
            elsewhere = tf.constant(1)
    assert nowhere.device == host.device == "/job:chief/task:0/device:CPU:0"
    assert elsewhere.device == devices[1]
    assert make_estimator(config, model_fn, ("",)).config.device_fn is None


# ---- waiting and losing ------------------------------------------------------------------------

HOSTS = (Host("worker", 1, "b:1"), Host("worker", 2, "c:1"))


@pytest.mark.parametrize(
    ("details", "text"),
    [
        ("failed to connect to all addresses; last error: x: Domain name not found]", "not found"),
        ("last error: UNKNOWN: ipv4:1.2.3.4:5: Connection refused", "refused"),
        ("last error: x: no route to [::1]", "no route to [::1]"),
    ],
)
def test_a_reason_has_no_stray_bracket(details, text):
    error = SimpleNamespace(code=lambda: grpc.StatusCode.UNAVAILABLE, details=lambda: details)
    answer = _outcome(SimpleNamespace(exception=lambda: error))
    assert answer.gone
    assert answer.text.endswith(text)


REFUSED, SILENT = NoAnswer(True, "connection refused"), NoAnswer(False, "no answer")


def status(host, incarnation=5, devices=("device:CPU:0",)):
    prefix = f"/job:{host.job}/replica:0/task:{host.index}/"
    return Status(frozenset(prefix + name for name in devices), incarnation)


class Network:
    """Hosts that answer as told, and a clock that runs only while somebody waits."""

    def __init__(self):
        self.hosts = HOSTS
        self.answers = {host: status(host) for host in HOSTS}
        self.time = 100.0

    def ask(self, timeout_seconds):
        return self.answers

    def pause(self, seconds):
        self.time += seconds

    def watch(self, timeout=30.0):
        return HostWatch(self, timeout, clock=lambda: self.time)


def test_missing_hosts_are_waited_for_aloud_and_then_named(caplog):
    caplog.set_level("INFO")
    network = Network()
    network.answers[HOSTS[1]] = REFUSED
    with pytest.raises(ClusterError) as caught:
        network.watch().wait((), pause=network.pause)
    assert str(caught.value) == (
        "all hosts must be there within 30 s; still missing: worker 2 (c:1): connection refused. "
        "Start the same command on them, look at addresses, ports and firewalls, or wait longer "
        "with --cluster_timeout."
    )
    assert network.time == pytest.approx(130.0, abs=1.0)
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for worker 2 (c:1): {seconds} of 30 s" for seconds in (0, 10, 20)
    ]


def test_a_host_of_the_run_before_is_waited_out():
    network = Network()
    asked = []

    def ready(host, incarnation):
        asked.append((host.index, incarnation))
        return len(asked) > 6

    network.watch().wait((), ready, network.pause)
    assert set(asked) == {(1, 5), (2, 5)}
    with pytest.raises(ClusterError, match=r"worker 1 \(b:1\): answers, but has not reported"):
        network.watch().wait((), lambda *unused: False, network.pause)


def test_hosts_that_are_not_who_they_should_be():
    network = Network()
    network.answers[HOSTS[1]] = status(HOSTS[0])
    with pytest.raises(ValueError) as caught:
        network.watch().wait(())
    assert str(caught.value) == (
        "at the address of worker 2 (c:1) must be /job:worker/task:2; got /job:worker/task:1. "
        "Give every host the same list, and its own number in it."
    )
    network.answers[HOSTS[1]] = status(HOSTS[1])
    with pytest.raises(ValueError) as caught:
        network.watch().wait(cpus(2))
    assert str(caught.value) == (
        "worker 1 (b:1) must have the devices of the mesh; got none named device:CPU:1. Give "
        "every host the same --gpu_ids."
    )


def test_how_a_host_is_lost():
    network = Network()
    watch = network.watch(30.0)
    watch.wait(())
    for answer, seconds, text in (
        (REFUSED, GONE_SECONDS, "no process there (connection refused)"),
        (SILENT, 30.0, "no sign of life for 30 s"),
    ):
        network.answers[HOSTS[1]] = status(HOSTS[1])
        assert watch.lost() is None
        network.answers[HOSTS[1]] = answer
        assert watch.lost() is None
        network.pause(seconds - 0.1)
        assert watch.lost() is None  # a short fault is no loss
        network.pause(0.2)
        assert watch.lost() == f"worker 2 (c:1) must stay until the end of the run; got {text}"
    network.answers[HOSTS[1]] = status(HOSTS[1], incarnation=6)
    assert watch.lost().endswith("got another process at its address: it was started anew")


# ---- real servers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    """Chief and worker in this process; TensorFlow's servers end only with it."""
    with socket.socket() as left, socket.socket() as right:
        for probe in (left, right):
            probe.bind(("localhost", 0))
        names = [f"localhost:{probe.getsockname()[1]}" for probe in (left, right)]
    clusters = [cluster_from_flags(names, number, 30) for number in range(2)]
    return clusters, [start_server(cluster, cpus(2)) for cluster in clusters]


def test_servers_say_who_they_are(pair):
    clusters, _ = pair
    lines = Lines(clusters[0].hosts)
    answers = lines.ask(20.0)
    for host in clusters[0].hosts:
        prefix = f"/job:worker/replica:0/task:{host.index}/device:CPU:"
        assert answers[host].devices == {f"{prefix}0", f"{prefix}1"}
    assert len({answer.incarnation for answer in answers.values()}) == 2
    assert lines.ask(20.0) == answers
    lines.close()
    nobody = Host("worker", 0, "localhost:1")
    assert Lines([nobody]).ask(20.0) == {nobody: REFUSED}


def test_messages_between_hosts(pair):
    clusters, servers = pair
    with Mailbox(clusters[1].here, servers[1].target) as mailbox:
        assert list(mailbox.take()) == []
        assert post(clusters[1].here, "first") is None
        assert post(clusters[1].here, "second") is None
        assert list(mailbox.take()) == ["first", "second"]
        assert list(mailbox.take()) == []
    start = time.monotonic()
    assert post(Host("worker", 0, "localhost:1"), "text", timeout_seconds=0.5) is not None
    assert time.monotonic() - start < 20.0


def test_messages_need_no_third_host():
    """A session would wait for every host of the cluster before it does anything."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    cluster = cluster_from_flags([address, "localhost:1"], 0, 30)
    server = start_server(cluster, ())
    with Mailbox(cluster.here, server.target, timeout_seconds=20.0) as mailbox:
        assert list(mailbox.take()) == []


def test_a_mesh_of_several_devices_on_each_host(pair):
    """Slices are on their own devices, sums go over all of them."""
    clusters, servers = pair
    devices = clusters[0].devices(cpus(2))
    rows, columns = mtf.Dimension("rows", 6), mtf.Dimension("columns", 5)
    with tf.Graph().as_default(), tf.device(devices[0]):
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        values = np.arange(30, dtype=np.float32).reshape(6, 5)
        weights = mtf.get_variable(
            mesh, "weights", [rows, columns], initializer=tf.constant_initializer(values)
        )
        total = mtf.reduce_sum(mtf.square(weights), output_shape=[columns])
        layout = MeshLayout((("x", 2), ("y", 2)), (("rows", "x"),))
        lowering = mtf.Lowering(graph, {mesh: layout.placement(list(devices))}, autostack=False)
        sums = lowering.export_to_tf_tensor(total)
        slices = lowering.variables[weights.operation].laid_out_tensor.all_slices
        assert [piece.device for piece in slices] == list(devices)
        assert weights.operation.master_device == "/job:worker/task:0/device:CPU:0"
        with tf.compat.v1.Session(servers[0].target) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(lowering.copy_masters_to_slices())
            np.testing.assert_array_equal(session.run(sums), (values**2).sum(0))


def test_a_taken_port_is_refused(pair):
    clusters, _ = pair
    with pytest.raises(ValueError, match=r"the port of worker 1 \(localhost:\d+\) must be free"):
        start_server(clusters[1], ())


class Session:
    """One whose run fails."""

    def __init__(self, error):
        self.error, self.closed = error, False

    def run(self, fetches):
        raise self.error

    def close(self):
        self.closed = True


def make_chief(tmp_path, lost=None):
    cluster = cluster_from_flags(["a:1", "b:1"], 0, 30)
    chief = Chief(cluster, (), str(tmp_path), pytest.fail)
    chief._lost = lost
    return chief


def test_a_lost_host_is_no_reason_to_make_a_new_session(tmp_path):
    """As a MonitoredSession does after UnavailableError; it would wait for the host for ever."""
    lost = "worker 1 (b:1) must stay until the end of the run; got no process there"
    chief = make_chief(tmp_path)
    session = Session(tf.errors.UnavailableError(None, None, "Socket closed"))
    guard = _Guard(chief.check, lambda: chief._lost is not None)
    guard.after_create_session(session, None)
    chief._lost = lost
    with pytest.raises(ClusterError) as caught:
        session.run("step")
    assert str(caught.value) == (
        f"{lost}. Last good checkpoint: none. Start the same command on every host to go on from "
        "there."
    )
    session.close()
    assert not session.closed  # TensorFlow would wait for the lost host


def test_other_errors_stay_what_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("utils.cluster_roles._VERDICT_SECONDS", 0.2)
    chief = make_chief(tmp_path)
    session = Session(tf.errors.InvalidArgumentError(None, None, "records must hold 12 ids"))
    _Guard(chief.check, lambda: False).after_create_session(session, None)
    with pytest.raises(tf.errors.InvalidArgumentError, match="records must hold 12 ids"):
        session.run("step")
    session.error = tf.errors.UnavailableError(None, None, "Socket closed")
    with pytest.raises(ClusterError, match=r"^connections between hosts must hold; got: Socket c"):
        session.run("step")
    session.close()
    assert session.closed
