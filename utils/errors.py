"""The words of errors; what one of TensorFlow says, without what surrounds it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Optional

from configs.errors import ConfigError

# What stands above a message that comes from another host.
_ORIGIN = re.compile(r"=+|([A-Z_]+: )?From /job:\S+:")
_REMOTE = re.compile(r"error information from remote target /job:(\w+)/replica:\d+/task:(\d+)")
_ASSERTION = re.compile(r"assertion failed: \[(.*)\]")


def reason(error: Exception) -> str:
    """The one line of an error that says what is wrong.

    TensorFlow puts a header, the stack of the failed node and its name above that line, and
    brackets around the message of an assertion; and where several hosts are at work, whose error
    it is.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if line != "Graph execution error:"]
    nodes = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    lines = lines[nodes[-1] + 1 :] if nodes else lines
    lines = [line for line in lines if not _ORIGIN.fullmatch(line)]
    if not lines:
        return type(error).__name__
    assertion = _ASSERTION.fullmatch(lines[0])
    return assertion[1] if assertion else lines[0]


def message(error: Exception) -> str:
    """What an entry script says of an error: one line, and one more per fault of a config."""
    return str(error) if isinstance(error, ConfigError) else reason(error)


def there_are(numbers: Sequence[int]) -> str:
    """What there is to choose from, within an error: ``there are 3, 5``."""
    if len(numbers) > 1:
        return f"there are {', '.join(map(str, numbers))}"
    return f"there is only {numbers[0]}" if numbers else "there is none"


def remote_host(error: Exception) -> Optional[str]:
    """The host of a cluster, other than this one, that an error comes from; None if there is none.

    Returns:
        Such as ``worker 1``.
    """
    found = _REMOTE.search(str(error))
    return f"{found[1]} {found[2]}" if found else None
