"""What is printed where the terminal or the locale cannot show every character."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _UnfailingFile(io.FileIO):
    """Drops what cannot be written, because the disk is full or the reader has gone."""

    def write(self, data: Any) -> int:
        """Writes what can be written."""
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def keep_going_without_stderr() -> None:
    """Lets no log line that cannot be written end the work of this process."""
    stream = sys.stderr
    if stream is None:  # closed from the start
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the end
        return
    try:
        raw = _UnfailingFile(stream.fileno(), "w", closefd=False)
    except (AttributeError, OSError):  # what replaces it has no file
        return
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True
    )


def escape_what_cannot_be_shown(*streams: Any) -> None:
    r"""Makes streams print ``\u27e8`` for a character that their encoding lacks.

    Python would raise an error at the end of the work, and its result would be lost. It applies to
    names of files that are no UTF-8, too.

    Args:
        streams: stdout and stderr of the process; None, or what replaces them, is left as it is.
    """
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
