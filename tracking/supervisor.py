"""Keeps a training process going: ends one that stalls, starts one anew that has died."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Protocol

LOGGER = logging.getLogger(__name__)
USAGE_ERROR = 2  # of main.py: flags, config or data that another start would find the same
LONGEST_WAIT = 600.0  # seconds between a failure and the next start
NO_USE = "NonFiniteLossError"  # in a traceback: the same steps would lead there again


class Process(Protocol):
    """What is supervised; see ``tracking.process.TrainingProcess``."""

    def wait(self, seconds: float) -> Optional[int]: ...  # noqa: D102

    def send(self, number: int) -> None: ...  # noqa: D102

    def end(self, grace: float) -> None: ...  # noqa: D102

    def close(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class Signs:
    """What can be seen of a run from outside.

    Attributes:
        lines: lines of metrics so far, in all processes of the run.
        output: bytes of output so far.
        step: the last step logged.
        checkpoint: step of the newest checkpoint.
    """

    lines: int
    output: int
    step: int
    checkpoint: int


@dataclass(frozen=True)
class Limits:
    """How long is too long, in seconds, and how often too often.

    Attributes:
        first_heartbeat: from the start of a process to its first line of metrics.
        heartbeat: between two signs of life after that.
        restarts: starts in a row that lead to no new checkpoint.
        wait: before the first restart in a row; doubled for each further one.
        poll: between two looks.
        grace: for a process that was asked to stop because it seems dead.
    """

    first_heartbeat: float
    heartbeat: float
    restarts: int
    wait: float
    poll: float = 0.5
    grace: float = 30.0


@dataclass(frozen=True)
class Outcome:
    """How a run has ended.

    Attributes:
        status: of Sacred: COMPLETED, INTERRUPTED or FAILED.
        code: exit code for the whole.
        reason: in words.
        trace: traceback of the last failure, if it left one.
    """

    status: str
    code: int
    reason: str = ""
    trace: str = ""


class StopRequest:
    """SIGINT and SIGTERM, passed on to the training process, as a context manager.

    The first makes it save and stop, the second ends it; the third kills it, should it be frozen.
    """

    def __init__(self) -> None:
        self.signals: list[str] = []
        self.process: Optional[Process] = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *unused: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, unused_frame: Any) -> None:
        self.signals.append(signal.Signals(number).name)
        if self.process is not None:
            self.process.send(number if len(self.signals) < 3 else signal.SIGKILL)


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


class Supervisor:
    """Runs a training process to its end, however many starts that takes.

    Args:
        start: starts the process; given whether the run has logged a step since the first start.
        look: tells what can be seen of the run, and does what is due meanwhile.
        limits: see there.
        stop: signals to this process.
        last_step: where the run ends.
        before_restart: done before each restart.
    """

    def __init__(
        self,
        start: Callable[[bool], Process],
        look: Callable[[], Signs],
        limits: Limits,
        stop: StopRequest,
        last_step: int,
        before_restart: Optional[Callable[[], None]] = None,
    ) -> None:
        self._start = start
        self._look = look
        self._limits = limits
        self._stop = stop
        self._last_step = last_step
        self._before_restart = before_restart
        self.restarts = 0

    def run(self) -> Outcome:
        """Returns how the run has ended."""
        failures, begun = 0, False
        while True:
            before = self._look()
            process = self._start(begun)
            self._stop.process = process
            if self._stop.signals:  # came while it was started
                process.send(signal.SIGTERM)
            code, stalled = self._watch(process)
            after = self._look()
            outcome = self._outcome(code, stalled, process.close(), after)
            begun = begun or after.lines > before.lines
            failures = 1 if after.checkpoint > before.checkpoint else failures + 1
            if not self._may_restart(outcome, code, failures):
                return outcome
            self._wait_for_restart(outcome, failures)
            if self._stop.signals:
                return Outcome("INTERRUPTED", 0, f"stopped by {self._stop.signals[0]}")
            self.restarts += 1

    def _watch(self, process: Process) -> tuple[int, str]:
        """Waits for the end of a process, or ends it when it stalls.

        Returns:
            Its exit code, and how it has stalled; empty if it has not.
        """
        start = time.monotonic()
        signs, moved, beaten = self._look(), start, False
        lines = signs.lines
        asked: Optional[float] = None
        while True:
            code = process.wait(self._limits.poll)
            if code is not None:
                return code, ""
            current, now = self._look(), time.monotonic()
            if current != signs:
                signs, moved = current, now
            beaten = beaten or current.lines != lines
            if self._stop.signals and asked is None:
                asked = now
            since = moved if asked is None else max(moved, asked)
            limit = self._limits.heartbeat
            stalled = f"gave no sign of life for {limit:,.0f} s"
            if not beaten and asked is None:
                since, limit = start, self._limits.first_heartbeat
                stalled = f"logged no step in its first {limit:,.0f} s"
            if now - since > limit:
                LOGGER.warning("the training process %s: ending it", stalled)
                process.end(min(self._limits.grace, limit / 2))
                code = process.wait(self._limits.grace)
                return (-signal.SIGKILL if code is None else code), stalled

    def _outcome(self, code: int, stalled: str, trace: str, signs: Signs) -> Outcome:
        if self._stop.signals:
            code = code if code >= 0 else 128 - code  # as shells say it
            return Outcome("INTERRUPTED", code, f"stopped by {self._stop.signals[0]}")
        if stalled:
            return Outcome("FAILED", 1, f"the training process {stalled}", trace)
        if code:
            return Outcome("FAILED", max(code, 1), f"the training process {_ending(code)}", trace)
        if max(signs.step, signs.checkpoint) < self._last_step:
            return Outcome("INTERRUPTED", 0, f"the training process was stopped at {signs.step}")
        return Outcome("COMPLETED", 0)

    def _may_restart(self, outcome: Outcome, code: int, failures: int) -> bool:
        if outcome.status != "FAILED" or code == USAGE_ERROR or NO_USE in outcome.trace:
            return False
        if failures > self._limits.restarts:
            if self._limits.restarts:
                LOGGER.error(
                    "%s; %d restarts in a row have led to no new checkpoint: giving up",
                    outcome.reason,
                    self._limits.restarts,
                )
            return False
        return True

    def _wait_for_restart(self, outcome: Outcome, failures: int) -> None:
        wait = min(self._limits.wait * 2 ** (failures - 1), LONGEST_WAIT)
        LOGGER.warning(
            "%s: restart %d of %d without a new checkpoint, in %.0f s",
            outcome.reason,
            failures,
            self._limits.restarts,
            wait,
        )
        self._stop.process = None
        if self._before_restart is not None:
            self._before_restart()
        end = time.monotonic() + wait
        while time.monotonic() < end and not self._stop.signals:
            time.sleep(min(self._limits.poll, wait))
            self._look()
