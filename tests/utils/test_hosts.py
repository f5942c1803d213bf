"""How the hosts of a run find and lose each other, and what they tell each other."""

import socket
import time
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import tensorflow as tf

from tests.support import cpus
from utils.cluster import (
    Host,
    cluster_from_flags,
)
from utils.cluster_roles import Chief, _Guard
from utils.cluster_watch import GONE_SECONDS, HostWatch
from utils.hosts import ClusterError, Lines, Mailbox, NoAnswer, Status, _outcome, post, start_server
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

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
