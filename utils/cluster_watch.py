"""Waiting for the hosts of a run, and noticing when one of them is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Callable, Optional, Union

from utils.cluster import Host, host_devices
from utils.hosts import ClusterError, Lines, NoAnswer, Status

LOGGER = logging.getLogger(__name__)
GONE_SECONDS = 5.0
"""After so long without a process a host is lost: a short fault of the network is no loss."""
_ROUND_SECONDS = 5.0  # in which a host has to answer, or it counts as silent
_LOG_SECONDS = 10.0


class HostWatch:
    """Keeps asking hosts who they are.

    A process that has ended is noticed within seconds, since its host refuses the connection; a
    host that hangs, or has lost its power or network, once it has been silent for the time-out.

    Args:
        lines: to the hosts.
        timeout_seconds: how long they are waited for, and how long they may be silent.
        clock: seconds.
    """

    def __init__(
        self, lines: Lines, timeout_seconds: float, clock: Callable[[], float] = time.monotonic
    ):
        self._lines = lines
        self._timeout = timeout_seconds
        self._clock = clock
        self._incarnations: dict[Host, int] = {}
        self._last_heard: dict[Host, float] = {}
        self._gone_since: dict[Host, float] = {}

    def wait(
        self,
        devices: Sequence[str],
        ready: Callable[[Host, int], bool] = lambda host, incarnation: True,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Returns as soon as all hosts are there.

        Args:
            devices: that each host must have; empty for its CPU.
            ready: whether a host (its incarnation) that answers is ready.
            pause: sleeps.

        Raises:
            ClusterError: a host was not there in time.
            ValueError: at the address of a host is another one, or one with other devices.
        """
        start = logged = self._clock()
        while True:
            missing = {}
            for host, answer in self._lines.ask(_ROUND_SECONDS).items():
                if isinstance(answer, NoAnswer):
                    missing[host] = answer.text
                    continue
                _check_identity(host, answer, devices)
                self._incarnations[host] = answer.incarnation
                if not ready(host, answer.incarnation):
                    missing[host] = "answers, but has not reported to the chief of this run"
            now = self._clock()
            if not missing:
                self._last_heard = dict.fromkeys(self._lines.hosts, now)
                return
            if now - start >= self._timeout:
                whom = "; ".join(f"{host}: {text}" for host, text in missing.items())
                raise ClusterError(
                    f"all hosts must be there within {self._timeout:g} s; still missing: {whom}. "
                    "Start the same command on them, look at addresses, ports and firewalls, or "
                    "wait longer with --cluster_timeout."
                )
            if now - logged >= _LOG_SECONDS or logged == start:
                logged = max(now, start + 1e-6)
                LOGGER.info(
                    "waiting for %s: %d of %d s",
                    ", ".join(map(str, missing)),
                    now - start,
                    self._timeout,
                )
            pause(0.5)

    def lost(self) -> Optional[str]:
        """Asks once more; says which host is lost and why, or returns None."""
        answers = self._lines.ask(min(_ROUND_SECONDS, self._timeout))
        now = self._clock()
        for host, answer in answers.items():
            why = self._why_lost(host, answer, now)
            if why is not None:
                return f"{host} must stay until the end of the run; got {why}"
        return None

    def _why_lost(self, host: Host, answer: Union[Status, NoAnswer], now: float) -> Optional[str]:
        if isinstance(answer, Status):
            self._last_heard[host] = now
            self._gone_since.pop(host, None)
            same = answer.incarnation == self._incarnations[host]
            return None if same else "another process at its address: it was started anew"
        if answer.gone:
            since = self._gone_since.setdefault(host, now)
            return f"no process there ({answer.text})" if now - since >= GONE_SECONDS else None
        silent = now - self._last_heard[host]
        return f"no sign of life for {silent:.0f} s" if silent >= self._timeout else None


def _check_identity(host: Host, status: Status, devices: Sequence[str]) -> None:
    """Refuses a host that has the address of another one, or lacks devices.

    Raises:
        ValueError: that.
    """
    prefix = f"/job:{host.job}/replica:0/task:{host.index}/"
    if not all(name.startswith(prefix) for name in status.devices):
        other = min(status.devices).rsplit("/", 1)[0].replace("/replica:0", "")
        raise ValueError(
            f"at the address of {host} must be {host.task}; got {other}. Give every host the "
            "same list, and its own number in it."
        )
    lacking = [name for name in host_devices(devices) if prefix + name not in status.devices]
    if lacking:
        raise ValueError(
            f"{host} must have the devices of the mesh; got none named {', '.join(lacking)}. "
            "Give every host the same --gpu_ids."
        )
