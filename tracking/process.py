"""The training process: main.py, as a child that does not outlive its supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from tracking.output import Output
from utils.errors import TRACE_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def _stop_with_parent() -> Optional[Callable[[], Any]]:
    """What makes a new process stop, with a checkpoint, when its parent dies; None off Linux."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # found before the fork
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class TrainingProcess:
    """``python main.py`` with the same interpreter, in a group of its own.

    Its own group, so that Ctrl-C reaches the supervisor alone, which passes it on once.

    Args:
        words: of main.py's command line.
        output: takes what it prints.
    """

    def __init__(self, words: Sequence[str], output: Output) -> None:
        descriptor, self._trace_file = tempfile.mkstemp(prefix="trace_")
        os.close(descriptor)
        self._output = output
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "main.py"), *words],
            env=os.environ | {TRACE_VARIABLE: self._trace_file, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_stop_with_parent(),
        )
        assert self._process.stdout is not None
        self._reader = output.follow(self._process.stdout)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait(self, seconds: float) -> Optional[int]:
        """Returns the exit code, or None if the process has not ended by then."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(10.0)  # what it started may hold the pipe open
        return code

    def send(self, number: int) -> None:
        """Sends a signal to the process, unless it has ended."""
        self._process.send_signal(number)

    def end(self, grace: float) -> None:
        """Ends it: asks for a stop, which saves a checkpoint, then kills the whole group."""
        self.send(signal.SIGTERM)
        self.wait(grace)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait(grace)

    def trace(self) -> str:
        """The traceback that it has left, if any; once."""
        with contextlib.suppress(OSError), open(self._trace_file, encoding="utf-8") as file:
            text = file.read()
            os.remove(self._trace_file)
            return text
        return ""
