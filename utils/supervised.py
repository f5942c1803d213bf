"""What a process does for the one that supervises it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback

TRACE_VARIABLE = "TRACE_FILE"
"""Environment variable that names the file for the traceback of a failed run."""

LEASH_VARIABLE = "STOP_WITH_STDIN"
"""Environment variable that, when set, makes a run stop at the end of its standard input."""


def leave_trace() -> None:
    """Writes the traceback of the error at hand where a supervising process looks for it."""
    path = os.environ.get(TRACE_VARIABLE)
    if path:
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.write(traceback.format_exc())


def stop_with_supervisor() -> None:
    """Asks this process to stop, as SIGTERM does, once the supervising one is gone.

    Its end closes the pipe that is our standard input, however it ends. A signal at the death of
    the parent, which Linux has, may come twice, and a second one ends a run without a checkpoint.
    """
    if LEASH_VARIABLE not in os.environ or sys.stdin is None:
        return
    descriptor = sys.stdin.fileno()

    def wait() -> None:
        while os.read(descriptor, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="supervisor", daemon=True).start()
