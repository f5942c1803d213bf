"""TensorFlow's server on each host: starting one, asking one, leaving it a message."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import grpc
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import device_attributes_pb2

from utils.cluster import Cluster, Host, host_devices
from utils.devices import session_config
from utils.errors import reason

_CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    # After a failure the next try comes soon, however many failures there were.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]

# In small letters, as gRPC reads them.
_NO_PROXY, _NO_GRPC_PROXY = "no_proxy", "no_grpc_proxy"


class ClusterError(RuntimeError):
    """A host could not be reached, or was lost."""


def start_server(cluster: Cluster, devices: Sequence[str]) -> Any:
    """Starts TensorFlow's server of this host; it lives as long as the process.

    Args:
        cluster: of the run.
        devices: that each host brings to the mesh; empty for its CPU.

    Raises:
        ValueError: the port is taken.
    """
    here = cluster.here
    _check_port(here)
    hosts = [host.address.rsplit(":", 1)[0] for host in cluster.hosts]
    # TensorFlow would send the traffic between the hosts through a web proxy.
    known = os.environ.get(_NO_GRPC_PROXY) or os.environ.get(_NO_PROXY, "")
    os.environ[_NO_GRPC_PROXY] = ",".join([*filter(None, [known]), *hosts])
    return tf.distribute.Server(
        cluster.jobs, here.job, here.index, config=session_config(host_devices(devices))
    )


def _check_port(here: Host) -> None:
    """Refuses a port on which somebody listens, which TensorFlow would not name."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", here.port))
        except OSError as error:
            raise ValueError(
                f"the port of {here} must be free on this host; got: {error.strerror}. Stop what "
                "uses it, or give the host another port."
            ) from error


@dataclass(frozen=True)
class Status:
    """What a server says of itself.

    Attributes:
        devices: full names.
        incarnation: a number that the next process on the same address does not have.
    """

    devices: frozenset[str]
    incarnation: int


@dataclass(frozen=True)
class NoAnswer:
    """What came in place of an answer.

    Attributes:
        gone: nobody listens there, as opposed to somebody who is slow.
        text: why.
    """

    gone: bool
    text: str


@functools.cache
def _status_message() -> Any:
    """TensorFlow's GetStatusResponse, which its Python package leaves out.

    Source: tensorflow/core/protobuf/worker.proto
    """
    attributes = device_attributes_pb2.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(
        name="utils/host_status.proto", package="host_status", dependency=[attributes.name]
    )
    file.message_type.add(name="GetStatusResponse").field.add(
        name="device_attributes",
        number=1,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{device_attributes_pb2.DeviceAttributes.DESCRIPTOR.full_name}",
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("host_status.GetStatusResponse")
    )


def _status(response: bytes) -> Status:
    devices = _status_message().FromString(response).device_attributes
    first = min(devices, key=lambda device: device.name)
    return Status(frozenset(device.name for device in devices), first.incarnation)


class Lines:
    """Open connections to the servers of some hosts.

    Args:
        hosts: whom to ask.
    """

    def __init__(self, hosts: Sequence[Host]):
        self.hosts = tuple(hosts)
        self._channels = [grpc.insecure_channel(host.address, _CHANNEL_OPTIONS) for host in hosts]

    def ask(self, timeout_seconds: float) -> dict[Host, Union[Status, NoAnswer]]:
        """Asks all hosts at once who they are."""
        calls = [
            channel.unary_unary("/tensorflow.WorkerService/GetStatus").future(
                b"", timeout=timeout_seconds
            )
            for channel in self._channels
        ]
        return {host: _outcome(call) for host, call in zip(self.hosts, calls)}

    def close(self) -> None:
        """Closes them."""
        for channel in self._channels:
            channel.close()


def _outcome(call: Any) -> Union[Status, NoAnswer]:
    error = call.exception()
    if error is None:
        return _status(call.result())
    code = error.code()
    gone = code is not grpc.StatusCode.DEADLINE_EXCEEDED
    text = str(error.details()).rsplit(": ", 1)[-1].lower() if gone else "no answer"
    if "[" not in text:  # the list of all attempts, whose last one this is, ends with a bracket
        text = text.removesuffix("]")
    return NoAnswer(gone, text)


class Mailbox:
    """A queue of short texts on the server of a host, which every host can add to.

    Args:
        host: whose it is.
        target: of the server, as this process reaches it.
        timeout_seconds: for each use; 0 for none.
    """

    def __init__(self, host: Host, target: str, timeout_seconds: float = 0.0):
        graph = tf.Graph()
        with graph.as_default(), tf.device(host.device("device:CPU:0")):
            queue = tf.queue.FIFOQueue(1000, tf.string, [[]], shared_name="mailbox")
            self._text = tf.compat.v1.placeholder(tf.string, [])
            self._add = queue.enqueue(self._text)
            self._take = queue.dequeue_many(queue.size())
        # Of this host alone, or the session would wait for all others of the cluster.
        config = tf.compat.v1.ConfigProto(
            device_filters=[host.task], operation_timeout_in_ms=int(1000 * timeout_seconds)
        )
        self._session = tf.compat.v1.Session(target, graph=graph, config=config)

    def __enter__(self) -> Mailbox:
        return self

    def __exit__(self, *unused: Any) -> None:
        self._session.close()

    def add(self, text: str) -> None:
        """Leaves a message."""
        self._session.run(self._add, {self._text: text})

    def take(self) -> Iterator[str]:
        """Takes all messages out."""
        return (text.decode() for text in self._session.run(self._take))


def post(host: Host, text: str, timeout_seconds: float = 5.0) -> Optional[str]:
    """Leaves a message with another host; returns why not if it cannot be done."""
    try:
        with Mailbox(host, f"grpc://{host.address}", timeout_seconds) as mailbox:
            mailbox.add(text)
    except tf.errors.OpError as error:
        return reason(error)
    return None
