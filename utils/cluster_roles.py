"""The two roles in a cluster: the chief trains, the other hosts lend it their devices."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

from utils.cluster import Cluster, Host
from utils.cluster_watch import GONE_SECONDS, HostWatch
from utils.errors import reason
from utils.hooks import StopOnSignal
from utils.hosts import ClusterError, Lines, Mailbox, post, start_server

LOGGER = logging.getLogger(__name__)

# Messages between hosts: a word, and what it is about.
_READY = "ready"  # a worker to the chief, with its incarnation
_STOP = "stop"  # a worker to the chief, with the reason
_DONE = "done"  # the chief to a worker
_FAILED = "failed"  # the chief to a worker

_POLL_SECONDS = 1.0
_LATE_SECONDS = 30.0  # for hosts that start only when all is done
_VERDICT_SECONDS = 3 * GONE_SECONDS
_GIVE_UP_SECONDS = 20.0
"""What the training loop has left to end by itself once a host is lost."""


class Chief:
    """The cluster in the hands of its chief.

    A context manager: it starts the server of this host and sends the others home at the end.

    Args:
        cluster: of the run.
        devices: that each host brings to the mesh; empty for its CPU.
        model_path: folder of the run, for the message when a host is lost.
        give_up: ends this process with a message: TensorFlow waits for a lost host for ever.
    """

    def __init__(
        self,
        cluster: Cluster,
        devices: Sequence[str],
        model_path: str,
        give_up: Callable[[str], None],
    ):
        self._cluster = cluster
        self._devices = devices
        self._model_path = model_path
        self._give_up = give_up
        self._ready: dict[str, str] = {}
        self._lost: Optional[str] = None
        self._ended = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def __enter__(self) -> Chief:
        server = start_server(self._cluster, self._devices)
        self.master = server.target
        self._mailbox = Mailbox(self._cluster.here, self.master)
        self._lines = Lines(self._cluster.others)
        self._watch = HostWatch(self._lines, self._cluster.timeout_seconds)
        return self

    def __exit__(self, kind: Any, *unused: Any) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._dismiss(_FAILED if kind else _DONE)

    def wait_for_hosts(self) -> None:
        """Returns when every host serves and has reported to this chief.

        The report makes sure that it is not a host of the run before, about to end because it
        has lost its chief.

        Raises:
            ClusterError: one is missing.
            ValueError: one is not who it should be.
        """

        def is_ready(host: Host, incarnation: int) -> bool:
            for message in self._mailbox.take():
                word, _, rest = message.partition(" ")
                if word == _READY:
                    task, _, number = rest.partition(" ")
                    self._ready[task] = number
            return self._ready.get(host.task) == str(incarnation)

        self._watch.wait(self._devices, is_ready)
        LOGGER.info(
            "%s leads %s; it writes the checkpoints",
            self._cluster.here,
            ", ".join(map(str, self._cluster.others)),
        )

    def hooks(self, stop: StopOnSignal) -> list[tf.compat.v1.train.SessionRunHook]:
        """Watches the hosts from now on.

        Args:
            stop: the run's StopOnSignal; told when a host is asked to end.

        Returns:
            What ends the training loop when a host is lost; to come before the other hooks.
        """
        self._thread = threading.Thread(target=self._keep_watch, args=(stop,), daemon=True)
        self._thread.start()
        return [_Guard(self.check, lambda: self._lost is not None)]

    def _keep_watch(self, stop: StopOnSignal) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            lost = self._watch.lost()
            if lost is not None:
                self._lost = lost
                if not self._ended.wait(_GIVE_UP_SECONDS):
                    self._give_up(self._message(lost))
                return
            for message in self._mailbox.take():
                word, _, rest = message.partition(" ")
                if word == _STOP:
                    stop.request(rest)

    def check(self, error: Optional[tf.errors.OpError] = None) -> None:
        """Raises ClusterError if a host is lost.

        Args:
            error: of a broken connection; what it means is told only by the watch, and if that
                finds nothing, the connection is to blame.
        """
        deadline = time.monotonic() + _VERDICT_SECONDS
        while error is not None and self._lost is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if self._lost is not None:
            raise ClusterError(self._message(self._lost)) from error
        if error is not None:
            raise ClusterError(
                self._message(f"connections between hosts must hold; got: {reason(error)}")
            ) from error

    def _message(self, problem: str) -> str:
        newest = tf.train.latest_checkpoint(self._model_path)
        return (
            f"{problem.rstrip('.')}. Last good checkpoint: {newest or 'none'}. Start the same "
            "command on every host to go on from there."
        )

    def _dismiss(self, message: str) -> None:
        """Tells the other hosts that the run has ended; those that come late too, if it is done."""
        pending = set(self._cluster.others)
        told = False
        deadline = time.monotonic() + (_LATE_SECONDS if message == _DONE else 0.0)
        while True:
            answers = self._lines.ask(2.0)
            for host in list(pending):
                if hasattr(answers[host], "incarnation") and post(host, message) is None:
                    pending.remove(host)
            if not told and pending and message == _DONE:
                told = True
                LOGGER.info("telling %s that the run is done", ", ".join(map(str, pending)))
            if not pending or time.monotonic() >= deadline:
                break
            time.sleep(0.5)
        self._lines.close()


class _Guard(tf.compat.v1.train.SessionRunHook):
    """Turns the errors of a session that has lost a host into one that ends the run.

    A MonitoredSession answers UnavailableError and AbortedError with a new session, which would
    wait for the lost host for ever; and what the host held of the weights is gone anyway.

    Args:
        check: raises the error of a lost host; given an error, waits for what the watch says.
        is_lost: whether one is lost.
    """

    def __init__(self, check: Callable[..., None], is_lost: Callable[[], bool]):
        self._check = check
        self._is_lost = is_lost

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Wraps the session: hooks are not told of errors, and nothing else ends it in time."""
        run, close = session.run, session.close

        def guarded_run(*args: Any, **kwargs: Any) -> Any:
            self._check()
            try:
                return run(*args, **kwargs)
            except (
                tf.errors.UnavailableError,
                tf.errors.AbortedError,
                tf.errors.CancelledError,
            ) as error:
                self._check(error)
                raise

        def guarded_close() -> None:
            if not self._is_lost():  # or it would wait for the lost host
                close()

        session.run, session.close = guarded_run, guarded_close


def serve(cluster: Cluster, devices: Sequence[str]) -> None:
    """Lends the devices of this host to the chief until the run ends.

    SIGINT and SIGTERM are passed on to the chief, which saves (for that it needs this host) and
    then ends the run; a second one ends this process at once.

    Args:
        cluster: of the run, of which this host is not the chief.
        devices: that each host brings to the mesh; empty for its CPU.

    Raises:
        ClusterError: the chief cannot be reached, is lost, or has failed.
        ValueError: the port of this host is taken.
    """
    here, chief = cluster.here, cluster.chief
    server = start_server(cluster, devices)
    LOGGER.info("%s serves its devices to %s, which trains", here, chief)
    watch = HostWatch(Lines([chief]), cluster.timeout_seconds)
    watch.wait(devices)
    with Mailbox(here, server.target) as mailbox:
        _report_to(chief, here)
        with StopOnSignal(f"%s: {chief} is asked to save and to end the run") as stop:
            _serve_until_the_end(cluster, watch, mailbox, stop)


def _report_to(chief: Host, here: Host) -> None:
    own = Lines([here])
    status = own.ask(60.0)[here]
    own.close()
    failure = post(chief, f"{_READY} {here.task} {getattr(status, 'incarnation', None)}", 30.0)
    if failure is not None:
        raise ClusterError(
            f"{chief} must be reachable; got: {failure}. Look at its log, and start the same "
            "command on every host again."
        )


def _serve_until_the_end(
    cluster: Cluster, watch: HostWatch, mailbox: Mailbox, stop: StopOnSignal
) -> None:
    told = False
    while True:
        for message in mailbox.take():
            if message == _DONE:
                LOGGER.info("%s is done; ending", cluster.chief)
                return
            if message == _FAILED:
                raise ClusterError(
                    f"{cluster.chief} must come to a good end; got a failure, which its log "
                    "explains. Start the same command on every host again."
                )
        lost = watch.lost()
        if lost is not None:
            raise ClusterError(f"{lost}. Start the same command on every host again.")
        if stop.stopped_by is not None and not told:
            told = post(cluster.chief, f"{_STOP} {stop.stopped_by} on {cluster.here}") is None
        time.sleep(_POLL_SECONDS)
