"""Prompts: of a file, of standard input, or the built-in one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import BinaryIO, Optional

LOGGER = logging.getLogger(__name__)
DEFAULT_PROMPT = (
    "The night train had been standing at the little mountain station for an hour when the "
    "conductor finally came through the cars and told us what was on the line."
)


def read_prompt(path: Optional[str], standard_input: Optional[BinaryIO] = None) -> str:
    """The prompt of a file, of standard input (``-``), or the built-in one (None).

    Ends of lines become newlines; the one that editors put at the end of a file is not part of
    the prompt.

    Args:
        path: of the file, ``-`` or None.
        standard_input: read for ``-``; None if it is closed.

    Raises:
        ValueError: there is nothing to read, or it is no UTF-8.
    """
    if path is None:
        return DEFAULT_PROMPT
    source = "standard input" if path == "-" else path
    try:
        if path != "-":
            with open(path, "rb") as file:
                content = file.read()
        elif standard_input is not None:
            content = standard_input.read()
        else:
            raise OSError("it is closed")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(source, error) from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text[:-1] if text.endswith("\n") else text


def typed_prompts(terminal: BinaryIO) -> Iterator[Optional[str]]:
    """Lines as they are typed, up to an empty one or the end of the input (Ctrl-D).

    Yields:
        A line; None for one that is no UTF-8, of which the log tells.
    """
    while line := terminal.readline().rstrip(b"\r\n"):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            LOGGER.warning("the line must be UTF-8; got %r (%s). Type it again.", line[:40], error)
            yield None


def _unreadable(source: str, error: Exception) -> ValueError:
    return ValueError(
        f"--prompt must be a readable UTF-8 text file; got {source} ({error}). Name a "
        "file, or - for standard input."
    )
