"""The training process: main.py, as a child that does not outlive its supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from tracking.output import Output
from utils.supervised import LEASH_VARIABLE, TRACE_VARIABLE

ROOT = Path(__file__).resolve().parent.parent


class TrainingProcess:
    """``python main.py`` with the same interpreter, in a group of its own.

    Its own group, so that Ctrl-C reaches the supervisor alone, which passes it on once. Its input
    is a pipe that ends with the supervisor, and it saves and stops then. It prints into a file:
    a pipe would break in that moment, and training would end unsaved.

    Args:
        words: of main.py's command line.
        output: takes what it prints.
        folder: for its output and traceback, until they have been taken.
    """

    def __init__(self, words: Sequence[str], output: Output, folder: str) -> None:
        self._trace_file = os.path.abspath(os.path.join(folder, "traceback.txt"))
        self._output = output
        self._output_file = os.path.join(folder, "process.txt")
        variables = {TRACE_VARIABLE: self._trace_file, LEASH_VARIABLE: "1", "PYTHONUNBUFFERED": "1"}
        with open(self._output_file, "wb") as printed:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "main.py"), *words],
                env=os.environ | variables,
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._printed = open(self._output_file, "rb")  # noqa: SIM115 - read until the end

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait(self, seconds: float) -> Optional[int]:
        """Returns the exit code, or None if the process has not ended by then."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self._output.take(self._printed.read())

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

    def close(self) -> str:
        """Removes the files of a process that has ended; returns its traceback, if it left one."""
        self._printed.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._output_file)
        with contextlib.suppress(FileNotFoundError), open(self._trace_file) as file:
            text = file.read()
            os.remove(self._trace_file)
            return text
        return ""
