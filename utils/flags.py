"""What the command lines share: parsers whose errors are one line, and readers of numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from utils.files import is_remote

_LARGEST_INT = 2**31 - 1


class ExitingParser(argparse.ArgumentParser):
    """A parser that ends the program at an error, with one line on stderr and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        self.exit(2, f"{self.prog}: error: {message}\n")


class RaisingParser(argparse.ArgumentParser):
    """A parser that reports an error as a ValueError, in one line."""

    def error(self, message: str) -> NoReturn:
        """Raises ValueError."""
        raise ValueError(f"{message.rstrip('.')}. See {self.prog} --help.")


def at_least(least: int) -> Callable[[str], int]:
    """Returns a reader of whole numbers from ``least`` up to the largest int32."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}; got {text[:40]!r}. Change it."
            )
        if value > _LARGEST_INT:
            raise argparse.ArgumentTypeError(
                f"must be at most {_LARGEST_INT}; got {text[:40]!r}. Change it."
            )
        return value

    return read


def local_folder(text: str) -> str:
    """Reads the path of a folder that is on this machine."""
    if is_remote(text):
        raise argparse.ArgumentTypeError(
            f"must be a local folder; got {text}. Name a folder of this machine."
        )
    return text
