"""Reading of the two strings that say how tensors are split: `mesh_shape` and `layout`."""

import math
import re

from configs.errors import shown
from configs.fields import MOST_PROCESSORS

_MOST_PAIRS = 100
_SEPARATORS = re.compile(r"[,;\s]+")


def _pairs(text: str, example: str) -> tuple[tuple[str, str], ...]:
    """Splits `a:b,c:d` into pairs; commas, semicolons and spaces separate them.

    Raises:
        ValueError: If a part is not *name:name*, or there are too many of them.
    """
    parts = [part for part in _SEPARATORS.split(text) if part]
    if len(parts) > _MOST_PAIRS:
        raise ValueError(
            f"must have at most {_MOST_PAIRS} pairs, and has {len(parts)} (got {shown(text)}); "
            f"shorten it"
        )
    pairs = []
    for part in parts:
        left, colon, right = part.partition(":")
        if not (left and colon and right and part.isprintable()) or ":" in right:
            raise ValueError(
                f"must be a list of pairs like {example} (got {shown(text)}); "
                f"write {shown(part)} as one name, a colon and one value"
            )
        pairs.append((left, right))
    return tuple(pairs)


def parse_mesh_shape(text: str) -> tuple[tuple[str, int], ...]:
    """Returns the mesh axes of, for instance, `x:128,y:2`.

    Args:
        text: The value of `mesh_shape`.

    Returns:
        (axis name, number of processors along it) in the order written.

    Raises:
        ValueError: If the text is unreadable, a size is not a positive integer, an axis is
            named twice or there are too many processors.
    """
    axes: dict[str, int] = {}
    for name, size in _pairs(text, "x:128,y:2"):
        if not (size.isascii() and size.isdigit() and int(size) > 0):
            raise ValueError(
                f"must give axis '{name}' a size of at least 1 (got {shown(text)}); "
                f"write a whole number after the colon"
            )
        if name in axes:
            raise ValueError(
                f"must name each axis once, '{name}' is there twice (got {shown(text)}); "
                f"rename or remove one of them"
            )
        axes[name] = int(size)
    if math.prod(axes.values()) > MOST_PROCESSORS:
        raise ValueError(
            f"must have at most {MOST_PROCESSORS:,} processors in all (got {shown(text)}); "
            f"lower the sizes"
        )
    if not axes:
        raise ValueError(f"must name at least one axis (got {shown(text)}); write x:1")
    return tuple(axes.items())


def parse_layout(text: str) -> tuple[tuple[str, str], ...]:
    """Returns the rules of, for instance, `batch:x,heads:y`.

    Args:
        text: The value of `layout`; it may be empty, then nothing is split.

    Returns:
        (dimension name, mesh axis name) in the order written.

    Raises:
        ValueError: If the text is unreadable.
    """
    return _pairs(text, "batch:x,heads:y")
