"""Config errors and the words they are made of."""

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Optional

_LONGEST_VALUE = 80


class ConfigError(ValueError):
    """A config that cannot be used.

    Attributes:
        problems: One line per problem, each *key: what is wrong (got X); what to do*.
    """

    def __init__(self, problems: Sequence[str], source: str = "config") -> None:
        """Stores the problems.

        Args:
            problems: At least one line.
            source: What was read, a file name for instance; it heads the message.
        """
        self.problems: list[str] = list(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"{source} has {count}:{lines}")


def shown(value: Any) -> str:
    """Returns a value as it would be written in JSON, shortened to 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if not text.isprintable():  # it would break the line or steer the terminal
        text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def problem(key: str, wrong: str, got: Any, remedy: str) -> str:
    """Returns one problem line, *key: what is wrong (got X); what to do*."""
    return f"{key}: {wrong} (got {shown(got)}); {remedy}"


def closest(name: str, known: Iterable[str]) -> Optional[str]:
    """Returns the known name that `name` most likely meant, or None if nothing is near."""
    matches = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def choose_from(name: str, known: Sequence[str]) -> str:
    """Returns a remedy: a "did you mean", or all the choices if none is near."""
    match = closest(name, known)
    return f"did you mean '{match}'?" if match else f"choose one of {', '.join(known)}"
