"""What a run has printed: shown as it comes, and kept within bounds."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading

HEAD_BYTES, TAIL_BYTES = 100_000, 400_000
"""Of the output, what is kept; the middle of more than both is left out."""


class Output(logging.Handler):
    """Collects the output of the training process and the log lines of this one, and shows them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        self._mutex = threading.Lock()
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0
        self.size = 0
        """Bytes of the training process so far."""

    def begin_with(self, earlier: bytes) -> None:
        """Puts the output of earlier processes of the run before that of this one."""
        with self._mutex:
            self._keep(earlier)

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a log line."""
        self._add((self.format(record) + "\n").encode("utf-8", errors="replace"))

    def _add(self, data: bytes) -> None:
        with self._mutex:
            self._keep(data)
            # Training goes on when nobody reads any more.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.buffer.write(data)
                sys.stderr.buffer.flush()

    def _keep(self, data: bytes) -> None:
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        surplus = len(self._tail) - TAIL_BYTES
        if surplus > TAIL_BYTES // 4:  # seldom, since it moves what stays
            del self._tail[:surplus]
            self._left_out += surplus

    def text(self) -> str:
        """What is kept, with a notice of what is not."""
        with self._mutex:
            head = self._head.decode("utf-8", errors="replace")
            tail = self._tail.decode("utf-8", errors="replace")
            left_out = self._left_out
        notice = f"\n[… {left_out:,} bytes left out …]\n" if left_out else ""
        return head + notice + tail

    def take(self, data: bytes) -> None:
        """Takes a piece of what the training process has printed."""
        if data:
            self.size += len(data)
            self._add(data)
