"""A TPU that is not there: enough of one for graphs to be built and looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.tpu import tpu_system_metadata
from tensorflow.python.tpu.topology import Topology

from utils.tpu import Tpu
from utils.tpu_mesh import Cores

CORES_PER_HOST, CORES_PER_CHIP = 8, 2


def topology(cores: int) -> Topology:
    """A TPU v3 slice: a grid of chips of two cores, four chips to a host."""
    chips = cores // CORES_PER_CHIP
    rows = 2 ** ((chips.bit_length() - 1) // 2)
    grid = [rows, chips // rows, 1, CORES_PER_CHIP]
    coordinates = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), -1)
    by_host = coordinates.reshape(cores // CORES_PER_HOST, CORES_PER_HOST, 4)
    return Topology(mesh_shape=grid, device_coordinates=by_host.astype(np.int32))


class Resolver:
    """As TPUClusterResolver, of a TPU that is reached over the network."""

    def __init__(self, cores: int):
        self._hosts = [f"10.0.0.{number}:8470" for number in range(cores // CORES_PER_HOST)]

    def master(self) -> str:
        return f"grpc://{self._hosts[0]}"

    def cluster_spec(self) -> tf.train.ClusterSpec:
        return tf.train.ClusterSpec({"worker": self._hosts})


class FakeTpu(Tpu):
    """A Tpu that starts."""

    def start(self) -> Cores:
        assignment = tf.tpu.experimental.DeviceAssignment.build(
            topology(self.cores), num_replicas=self.cores
        )
        hosts = range(self.cores // CORES_PER_HOST)
        return Cores(assignment, tuple(f"/job:worker/task:{n}/device:CPU:0" for n in hosts))


def fake_tpu(cores: int) -> FakeTpu:
    """A TPU v3 with so many cores."""
    return FakeTpu(f"v3-{cores}", Resolver(cores), cores)


def system_metadata(cores: int) -> Any:
    """What TPUEstimator would be told by the TPU."""
    return tf.tpu.experimental.TPUSystemMetadata(
        num_cores=cores,
        num_hosts=cores // CORES_PER_HOST,
        num_of_cores_per_host=CORES_PER_HOST,
        topology=topology(cores),
        devices=(),
    )


@contextlib.contextmanager
def answering(cores: int) -> Iterator[None]:
    """TPUEstimator asks a TPU with so many cores, and is answered."""
    asked = tpu_system_metadata._query_tpu_system_metadata
    tpu_system_metadata._query_tpu_system_metadata = lambda *_, **__: system_metadata(cores)
    try:
        yield
    finally:
        tpu_system_metadata._query_tpu_system_metadata = asked


def on_cores(graph: tf.Graph) -> list[tf.Operation]:
    """The operations of the program that every core runs."""
    return [op for op in graph.get_operations() if "_tpu_replicate" in op.node_def.attr]
