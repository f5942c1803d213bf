"""Finding a TPU by its name and starting it.

TensorFlow is imported by the functions that need it.
"""

from __future__ import annotations

import functools
import math
import os
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional

from configs.errors import shown
from configs.schema import Config
from utils.errors import reason
from utils.files import is_remote

if TYPE_CHECKING:
    from utils.tpu_mesh import Cores

COLAB, LOCAL = "colab", "local"
_COLAB_VARIABLE = "COLAB_TPU_ADDR"
_FIND_SECONDS = 45
_CONNECT_SECONDS = 10
_GRPC = "grpc://"
_START_SECONDS = 300
_WORKER_JOB = "worker"


@dataclass(frozen=True)
class Tpu:
    """A TPU that answers.

    Attributes:
        name: as the user gave it.
        resolver: tf.distribute.cluster_resolver.TPUClusterResolver.
        cores: number of cores.
    """

    name: str
    resolver: Any
    cores: int

    @property
    def master(self) -> str:
        """Target of sessions."""
        return str(self.resolver.master())

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over the network: files must then be where it can read them."""
        return bool(self.master)

    def session_config(self) -> Any:
        """Options of sessions of their own, beside a training run's."""
        import tensorflow as tf

        options = tf.compat.v1.ConfigProto(allow_soft_placement=True, isolate_session_state=True)
        cluster = self.resolver.cluster_spec()
        if cluster:
            options.cluster_def.CopyFrom(cluster.as_cluster_def())
        return options

    def start(self) -> Cores:
        """Initializes the TPU, which ends every other program on it.

        Raises:
            ValueError: it does not start in time.
        """
        return _in_time(lambda: _start(self), _START_SECONDS, self.name)


def connect(name: str) -> Tpu:
    """Finds a TPU, at the first call for a name; it may take most of a minute.

    Args:
        name: of a Cloud TPU, ``grpc://HOST:PORT``, ``local`` (this machine is a TPU VM) or
            ``colab``.

    Raises:
        ValueError: there is none, or it cannot be reached.
    """
    return _connect_once(name, os.environ.get(_COLAB_VARIABLE))


@functools.lru_cache(maxsize=1)
def _connect_once(name: str, colab_address: Optional[str]) -> Tpu:
    address = name
    if name == COLAB:
        if not colab_address:
            raise ValueError(
                f"--tpu colab must find the variable {_COLAB_VARIABLE}; got none. Choose the "
                "runtime type TPU in Colab's menu, or name the TPU."
            )
        address = f"{_GRPC}{colab_address}"
    if address.startswith(_GRPC):
        _check_address(name, address)
    tpu = _in_time(lambda: _find(name, address), _FIND_SECONDS, name)
    if not tpu.cores:
        raise ValueError(
            f"--tpu must name a machine with TPU cores; got none on {name}. Name another one, or "
            "run on the CPU without this flag."
        )
    return tpu


def _check_address(name: str, address: str) -> None:
    """Refuses an address at which nobody listens, before TensorFlow, which would wait for ever."""
    host, _, port = address.removeprefix(_GRPC).split(",")[0].rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        raise ValueError(
            f"--tpu must give an address as grpc://HOST:PORT; got {shown(name)}. Write "
            "grpc://10.0.0.2:8470."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        raise _unreachable(name, getattr(error, "strerror", None) or str(error)) from error


def _find(name: str, address: str) -> Tpu:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(address)
    tpu = Tpu(name, resolver, 0)
    graph = tf.Graph()
    with graph.as_default():
        nothing = tf.no_op()
    with tf.compat.v1.Session(tpu.master, graph, config=tpu.session_config()) as session:
        # A run lets other threads of Python work while it waits for an answer; list_devices does
        # not, and no timeout would ever be noticed.
        session.run(nothing)
        devices = session.list_devices()
    return Tpu(name, resolver, sum(device.device_type == "TPU" for device in devices))


def _start(tpu: Tpu) -> Cores:
    import tensorflow as tf
    from tensorflow.python.tpu.topology import Topology

    from utils.tpu_mesh import Cores

    with tf.Graph().as_default():
        initialize = tf.compat.v1.tpu.initialize_system()
        with tf.compat.v1.Session(tpu.master, config=tpu.session_config()) as session:
            topology = Topology(serialized=session.run(initialize))
    assignment = tf.tpu.experimental.DeviceAssignment.build(topology, num_replicas=tpu.cores)
    job = f"/job:{_WORKER_JOB}" if tpu.is_remote else ""
    hosts = (f"{job}/task:{number}/device:CPU:0" for number in range(topology.num_tasks))
    return Cores(assignment, tuple(hosts))


def _in_time(action: Callable[[], Any], seconds: float, name: str) -> Any:
    """Runs what may hang: requests to a cloud's services know no timeout."""
    results: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(action())
        except Exception as error:  # the libraries of a cloud raise their own of every kind
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    said = reason(errors[0]) if errors else f"no answer within {seconds:g} s"
    raise _unreachable(name, said) from (errors[0] if errors else None)


def _unreachable(name: str, said: str) -> ValueError:
    return ValueError(
        f"--tpu must name a TPU that can be reached; got {name} ({said.rstrip('.')}). Run in its "
        "Google Cloud project and zone, give its address as grpc://HOST:8470, or use --tpu local "
        "on a TPU VM."
    )


def check_files(config: Config, name: str, training: bool) -> None:
    """Refuses files that a TPU's hosts cannot read; asks nobody.

    Args:
        config: model_path and datasets.
        name: of the TPU; all but ``local`` are reached over the network.
        training: whether training records are read, else those of evaluation.

    Raises:
        ValueError: a path is local.
    """
    if name == LOCAL:
        return
    if not is_remote(config.model_path):
        raise ValueError(
            f"model_path must be in a bucket that the TPU's hosts reach; got {config.model_path}. "
            "Write gs://BUCKET/FOLDER."
        )
    globs = [source.train_glob if training else source.eval_glob for source in config.sources]
    local = [glob for glob in globs if glob and not is_remote(glob)]
    if local:
        raise ValueError(
            f"records must be in a bucket that the TPU's hosts reach; got {local[0]}. Copy them to "
            "gs://BUCKET and name them so in the dataset config."
        )


def iterations_per_call(config: Config, steps_per_checkpoint: int) -> int:
    """Steps that a TPU makes in one call: at most ``iterations``, and ending at checkpoints."""
    return math.gcd(config.iterations, steps_per_checkpoint)


def check_mesh(config: Config, tpu: Tpu) -> None:
    """Refuses a mesh of another size.

    Raises:
        ValueError: the mesh has more or fewer processors than the TPU has cores.
    """
    if config.mesh_size != tpu.cores:
        raise ValueError(
            f"mesh_shape must have as many processors as the TPU has cores; got "
            f"{config.mesh_shape} = {config.mesh_size} on {tpu.name} with {tpu.cores}. Add "
            "--fit_mesh to fit the mesh to the TPU, or name another TPU."
        )
