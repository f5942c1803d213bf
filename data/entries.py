"""What a file of any format consists of, as far as it can be read."""

from __future__ import annotations

import json
import lzma
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

READ_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,  # a method of compression that is not known
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What damage is reported as by the libraries that read files and archives."""


@dataclass(frozen=True)
class Damage:
    """Stands for an entry that cannot be read.

    Attributes:
        why: a few words.
    """

    why: str

    @classmethod
    def from_error(cls, error: Exception, more: str = "") -> Damage:
        """Says what an error says.

        Args:
            error: one of `READ_ERRORS`.
            more: what is said behind it.

        Returns:
            The damage.
        """
        if isinstance(error, OSError) and error.strerror:  # without its number and the path
            return cls(error.strerror + more)
        lines = str(error).splitlines()
        return cls((lines[0] if lines else type(error).__name__) + more)


Entry = tuple[str, Any]
"""Where it is in its file, empty for the whole; and a text, a value of JSON, or a Damage."""


def decode(content: bytes) -> str | Damage:
    """The text of some bytes.

    Line ends stay as they are, so that a text gives the same tokens in every format.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Damage(str(error))


def parse(content: bytes) -> Any:
    """The value of some JSON."""
    try:
        return json.loads(content.decode("utf-8-sig"))
    except ValueError as error:  # wrong UTF-8 or wrong JSON
        return Damage(str(error))
    except RecursionError:
        return Damage("a value that is nested too deeply")
