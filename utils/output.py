"""What is printed where the terminal or the locale cannot show every character."""

from __future__ import annotations

import io
from typing import Any


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
