"""Whether another host sees the same records: a real second process, in a folder of its own."""

import os
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from data.shared_records import _read_on, difference
from data.sources import Source
from tests.input_support import write
from utils.cluster import Cluster, Host
from utils.errors import remote_host
from utils.hosts import start_server

SERVE = """
import sys
import tensorflow as tf
tf.distribute.Server({"worker": sys.argv[1:]}, "worker", 1).join()
"""
FILES = ("train_0_3.tfrecords", "train_1_1.tfrecords")


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """(cluster, target of the chief, its folder, folder of the other host)."""
    folders = [tmp_path_factory.mktemp(name) for name in ("chief", "worker")]
    addresses = [f"localhost:{free_port()}" for _ in folders]
    other = subprocess.Popen([sys.executable, "-c", SERVE, *addresses], cwd=folders[1])
    members = tuple(Host("worker", number, address) for number, address in enumerate(addresses))
    cluster = Cluster(members, members[0], timeout_seconds=10)
    server = start_server(cluster, ())
    yield cluster, server.target, *folders
    other.kill()


@pytest.fixture
def records(hosts, monkeypatch):
    """The folders, with the same records in both; the chief is in its own."""
    *_, here, there = hosts
    for folder in (here, there):
        for file in folder.iterdir():
            file.unlink()
    monkeypatch.chdir(here)
    write(here, "train", np.arange(20).reshape(4, 5), files_per=3)
    for name in FILES:
        shutil.copy(here / name, there / name)
    return here, there


def told(hosts):
    cluster, target, *_ = hosts
    source = Source("tiny", FILES, (3, 1), "chunks", 1, 1.0)
    return difference([source], cluster, target)


def test_the_same_records(hosts, records):
    assert told(hosts) is None


def test_records_that_are_missing(hosts, records):
    (records[1] / FILES[1]).unlink()
    message = told(hosts)
    assert message.startswith("worker 1 (localhost:")
    assert message.endswith(f"): {FILES[1]}; No such file or directory")


def test_other_records_of_the_same_name(hosts, records):
    write(records[1], "train", np.arange(100, 120).reshape(4, 5), files_per=3)
    assert told(hosts).endswith(f"): {FILES[0]} begins with another record")


def test_an_error_tells_its_host(hosts, records):
    cluster, target, *_ = hosts
    (records[1] / FILES[1]).unlink()
    with pytest.raises(tf.errors.NotFoundError) as caught:
        _read_on(cluster.hosts[1], FILES, target, 30)
    assert remote_host(caught.value) == "worker 1"
    (records[0] / FILES[1]).unlink()
    with pytest.raises(tf.errors.NotFoundError) as caught:
        _read_on(cluster.chief, FILES, target, 30)
    assert remote_host(caught.value) is None


def test_a_file_that_never_answers(hosts, records):
    """The last test here: the other host goes on waiting for the pipe."""
    (records[1] / FILES[1]).unlink()
    os.mkfifo(records[1] / FILES[1])
    assert told(hosts).startswith("worker 1 (localhost:")
