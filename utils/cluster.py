"""The hosts of a run: who they are, which is the chief, and what their devices are called."""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from configs.errors import shown

if TYPE_CHECKING:
    from utils.cluster_roles import Chief
    from utils.hooks import StopOnSignal

LOGGER = logging.getLogger(__name__)

VARIABLE = "TF_CONFIG"
DEFAULT_TIMEOUT_SECONDS = 300
# Modes in which one process is enough, and in which several would write the same files.
ALONE = ("eval", "predict", "export")

_CHIEFS = ("chief", "master")  # two names for the same role
_WORKER = "worker"
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/,\[\]]+):(?P<port>\d{1,5})")
_SAME = "Give every host the same list."


@dataclass(frozen=True)
class Host:
    """One process of a run.

    Attributes:
        job: ``chief``, ``master`` or ``worker``.
        index: among the hosts of the same job.
        address: ``host:port``.
    """

    job: str
    index: int
    address: str

    def __str__(self) -> str:
        return f"{self.job} {self.index} ({self.address})"

    @property
    def port(self) -> int:
        """On which it is reached."""
        return int(self.address.rsplit(":", 1)[1])

    @property
    def task(self) -> str:
        """What TensorFlow calls it, ``/job:worker/task:1``."""
        return f"/job:{self.job}/task:{self.index}"

    def device(self, name: str) -> str:
        """The full name of one of its devices, such as ``device:GPU:0``."""
        return f"{self.task}/{name}"


@dataclass(frozen=True)
class Cluster:
    """The hosts of a run as one of them sees it.

    Attributes:
        hosts: the chief first; the mesh takes their devices in this order.
        here: the host that this process is.
        timeout_seconds: how long a host is waited for, and how long it may be silent.
    """

    hosts: tuple[Host, ...]
    here: Host
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS

    @property
    def chief(self) -> Host:
        """The host that builds the graph and writes the checkpoints."""
        return self.hosts[0]

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief."""
        return self.here == self.chief

    @property
    def others(self) -> tuple[Host, ...]:
        """All hosts but this one."""
        return tuple(host for host in self.hosts if host != self.here)

    @property
    def jobs(self) -> dict[str, list[str]]:
        """Job -> addresses, as TensorFlow wants it."""
        jobs: dict[str, list[str]] = {}
        for host in self.hosts:
            jobs.setdefault(host.job, []).append(host.address)
        return jobs

    def devices(self, on_each: Sequence[str]) -> tuple[str, ...]:
        """Full names of the devices of all hosts, in the order of the mesh.

        Args:
            on_each: devices that every host has; empty for its CPU.
        """
        names = host_devices(on_each)
        return tuple(host.device(name) for host in self.hosts for name in names)


def host_devices(on_each: Sequence[str]) -> tuple[str, ...]:
    """The devices that a host brings to the mesh: its CPU unless others are named."""
    return tuple(on_each) or ("device:CPU:0",)


def _check_addresses(addresses: Sequence[Any], source: str) -> None:
    for address in addresses:
        match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if match is None or not 0 < int(match["port"]) < 2**16:
            raise ValueError(
                f"{source} must list hosts as HOST:PORT; got {shown(address)}. Write for "
                "instance 10.0.0.1:2222."
            )
        if list(addresses).count(address) > 1:
            raise ValueError(
                f"{source} must name each host once; got {address} twice. Several processes on "
                "one host need a port each."
            )


def cluster_from_flags(words: Sequence[str], task: int, timeout_seconds: int) -> Cluster:
    """Reads ``--cluster HOST:PORT HOST:PORT --task N``.

    Raises:
        ValueError: an address or the number cannot be used.
    """
    addresses = [part for word in words for part in word.replace(",", " ").split()]
    if not addresses:
        raise ValueError("--cluster must name at least one host; got none. Write HOST:PORT.")
    _check_addresses(addresses, "--cluster")
    if task >= len(addresses):
        raise ValueError(
            f"--task must be the number of a host in --cluster, 0 to {len(addresses) - 1}; got "
            f"{task}. {_SAME}"
        )
    hosts = tuple(Host(_WORKER, number, address) for number, address in enumerate(addresses))
    return Cluster(hosts, hosts[task], timeout_seconds)


def _part(values: Any, key: str, kind: type, where: str) -> Any:
    """A key of TF_CONFIG that must be there."""
    words = "an object" if kind is dict else "a text"
    if key not in values:
        raise ValueError(
            f"{VARIABLE} must have the key {where}; got {shown(values)}. Write "
            '{"cluster": {"chief": ["HOST:PORT"], "worker": ["HOST:PORT"]}, "task": {"type": '
            '"worker", "index": 0}}, or unset it.'
        )
    if not isinstance(values[key], kind):
        raise ValueError(
            f"{VARIABLE} must have {words} in {where}; got {shown(values[key])}. Correct it."
        )
    return values[key]


def _hosts_of(jobs: dict[str, Any]) -> tuple[Host, ...]:
    for job, addresses in jobs.items():
        if job not in (*_CHIEFS, _WORKER):
            raise ValueError(
                f"{VARIABLE} must have jobs named chief (or master) and worker only; got "
                f"{shown(job)}. A mesh has no parameter servers; evaluation is a job of its own, "
                "with --eval and without this variable."
            )
        if not isinstance(addresses, list):
            raise ValueError(
                f"{VARIABLE} must have a list of hosts in cluster.{job}; got {shown(addresses)}. "
                "Correct it."
            )
    chiefs = [Host(job, i, a) for job in _CHIEFS for i, a in enumerate(jobs.get(job, ()))]
    workers = [Host(_WORKER, index, a) for index, a in enumerate(jobs.get(_WORKER, ()))]
    _check_addresses([host.address for host in chiefs + workers], f"{VARIABLE} cluster")
    if len(chiefs) > 1:
        raise ValueError(
            f"{VARIABLE} must have one chief; got {', '.join(map(str, chiefs))}. List the others "
            "as workers."
        )
    if not chiefs + workers:
        raise ValueError(f"{VARIABLE} must name at least one host; got none. Unset it.")
    return (*chiefs, *workers)


def cluster_from_tf_config(text: str, timeout_seconds: int) -> Cluster:
    """Reads ``TF_CONFIG``. Without a chief the first worker is the chief.

    Raises:
        ValueError: it is no JSON, lacks a key, or names a host or a task that cannot be.

    Source: https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{VARIABLE} must be JSON; got {shown(text)} ({error}). Correct it, or unset it."
        ) from error
    if not isinstance(values, dict):
        raise ValueError(f"{VARIABLE} must be a JSON object; got {shown(values)}. Correct it.")
    hosts = _hosts_of(_part(values, "cluster", dict, "cluster"))
    task = _part(values, "task", dict, "task")
    job = _part(task, "type", str, "task.type")
    index = task.get("index")
    jobs = sorted({host.job for host in hosts})
    if job not in jobs:
        raise ValueError(
            f"{VARIABLE} must have a task.type that its cluster lists, {' or '.join(jobs)}; got "
            f"{shown(job)}. A mesh has no parameter servers; evaluation is a job of its own, with "
            "--eval and without this variable."
        )
    for host in hosts:  # some launchers write the number as a text
        if host.job == job and type(index) in (int, str) and str(index) == str(host.index):
            return Cluster(hosts, host, timeout_seconds)
    count = sum(host.job == job for host in hosts)
    raise ValueError(
        f"{VARIABLE} must have a task.index from 0 to {count - 1} for {job}; got {shown(index)}. "
        f"{_SAME}"
    )


def read_cluster(
    arguments: argparse.Namespace, environment: MutableMapping[str, str]
) -> Optional[Cluster]:
    """The cluster of a run, from the flags or from ``TF_CONFIG``.

    The variable is taken out of the environment: TensorFlow's estimators read it too, and would
    give this process a role of theirs.

    Args:
        arguments: flags of main.py.
        environment: of this process; changed.

    Returns:
        None without a cluster, with a single host, and for modes that only look at things.

    Raises:
        ValueError: flags or variable cannot be used.
    """
    text = environment.pop(VARIABLE, "").strip()
    if arguments.mode not in ("train", *ALONE):
        return None
    timeout_seconds = arguments.cluster_timeout or DEFAULT_TIMEOUT_SECONDS
    if arguments.cluster and text:
        raise ValueError(
            f"--cluster must not be combined with the variable {VARIABLE}; got both. Unset one."
        )
    if arguments.cluster:
        cluster = cluster_from_flags(arguments.cluster, arguments.task, timeout_seconds)
    elif text:
        cluster = cluster_from_tf_config(text, timeout_seconds)
    elif arguments.cluster_timeout:
        raise ValueError(
            f"--cluster_timeout must come with --cluster or {VARIABLE}; got neither. Leave it out."
        )
    else:
        return None
    return cluster if len(cluster.hosts) > 1 else None


def log_suffix(cluster: Optional[Cluster]) -> str:
    """Keeps the log files of hosts apart that share a folder; the chief has the plain name."""
    if cluster is None or cluster.is_chief:
        return ""
    return f".{cluster.here.job}{cluster.here.index}"


def is_idle(cluster: Optional[Cluster], mode: str) -> bool:
    """Whether this host has nothing to do, since the chief does the work alone; says so."""
    if cluster is None or mode not in ALONE:
        return False
    if cluster.is_chief:
        LOGGER.warning("--%s runs on %s alone", mode, cluster.here)
        return False
    LOGGER.warning("--%s runs on %s alone; nothing to do on %s", mode, cluster.chief, cluster.here)
    return True


class Alone:
    """What a run without a cluster has in place of a Chief."""

    master = ""

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *unused: Any) -> None:
        pass

    def wait_for_hosts(self) -> None:
        """There are none."""

    def hooks(self, stop: StopOnSignal) -> list[Any]:
        """Nobody can be lost."""
        return []


Leader = Union[Alone, "Chief"]


def lead(
    cluster: Optional[Cluster],
    devices: Sequence[str],
    model_path: str,
    give_up: Callable[[str], None],
) -> Leader:
    """The leader of a run, as a context manager; see ``Chief`` for the arguments."""
    if cluster is None:
        return Alone()

    from utils.cluster_roles import Chief  # and TensorFlow

    return Chief(cluster, devices, model_path, give_up)
