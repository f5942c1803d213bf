"""How tensors of two formats belong together, and reading the one as the other.

A table of links serves both directions: what is split in one is joined in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from interop.tensors import Shape, Source, TensorSpec


@dataclass(frozen=True)
class Link:
    """Variables of ours and the tensor that holds the same numbers elsewhere.

    Attributes:
        ours: names of our variables; several are joined along the last dimension in ``theirs``.
        shape: of each of our variables.
        theirs: name of the tensor; None if their model has none, and ours is all zeros then.
        transposed: whether theirs has its two dimensions the other way round.
    """

    ours: tuple[str, ...]
    shape: Shape
    theirs: Optional[str]
    transposed: bool = False

    @property
    def their_shape(self) -> Shape:
        """Shape of the tensor ``theirs``."""
        joined = (*self.shape[:-1], self.shape[-1] * len(self.ours))
        return joined[::-1] if self.transposed else joined


class AsOurs:
    """Reads another format's tensors as our variables.

    Args:
        source: of the other format.
        links: of all tensors.
        dtype: number format of what is read.
    """

    def __init__(self, source: Source, links: Sequence[Link], dtype: np.dtype):
        self._source = source
        self._links = {name: link for link in links for name in link.ours}
        self.specs = {name: TensorSpec(link.shape, dtype) for name, link in self._links.items()}

    def read(self, name: str) -> np.ndarray:
        """Reads one variable."""
        link, dtype = self._links[name], self.specs[name].dtype
        if link.theirs is None:
            return np.zeros(link.shape, dtype)
        array = self._source.read(link.theirs)
        if link.transposed:
            array = array.T
        width, number = link.shape[-1], link.ours.index(name)
        array = array[..., number * width : (number + 1) * width]
        return np.array(array, dtype, order="C")


class AsTheirs:
    """Reads our variables as another format's tensors.

    Args:
        source: of our variables.
        links: of all tensors.
        dtype: number format of what is read.
    """

    def __init__(self, source: Source, links: Sequence[Link], dtype: np.dtype):
        self._source = source
        self._links = {link.theirs: link for link in links if link.theirs is not None}
        self.specs = {
            name: TensorSpec(link.their_shape, dtype) for name, link in self._links.items()
        }

    def read(self, name: str) -> np.ndarray:
        """Reads one tensor.

        Raises:
            ValueError: a finite number is beyond the number format.
        """
        link, dtype = self._links[name], self.specs[name].dtype
        joined = np.empty((*link.shape[:-1], link.shape[-1] * len(link.ours)), dtype)
        width = link.shape[-1]
        for number, variable in enumerate(link.ours):
            piece = joined[..., number * width : (number + 1) * width]
            round_into(piece, self._source.read(variable), variable)
        return np.ascontiguousarray(joined.T) if link.transposed else joined


class Rounded:
    """Variables of ours in another number format.

    Args:
        source: of our variables.
        names: of those that are wanted.
        dtype: number format of what is read.
    """

    def __init__(self, source: Source, names: Iterable[str], dtype: np.dtype):
        self._source = source
        self.specs = {name: TensorSpec(source.specs[name].shape, dtype) for name in names}

    def read(self, name: str) -> np.ndarray:
        """Reads one variable.

        Raises:
            ValueError: a finite number is beyond the number format.
        """
        values, dtype = self._source.read(name), self.specs[name].dtype
        if values.dtype == dtype:
            return values
        rounded = np.empty(values.shape, dtype)
        round_into(rounded, values, name)
        return rounded


def round_into(rounded: np.ndarray, values: np.ndarray, name: str) -> None:
    """Rounds ``values`` to the number format of ``rounded``, and writes them there.

    Raises:
        ValueError: a finite number of the variable ``name`` is beyond the number format.
    """
    with np.errstate(over="ignore"):  # looked at below
        rounded[...] = values
    if rounded.dtype != values.dtype and not _same_infinities(values, rounded):
        raise ValueError(
            f"weights must be within the number format; got a number in {name} that "
            f"{rounded.dtype.name} has not. Use --dtype bf16 or fp32."
        )


def _same_infinities(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether rounding ``left`` to ``right`` has made no number infinite, row by row."""
    rows = zip(np.atleast_1d(left), np.atleast_1d(right))
    return all(np.isfinite(b).all() or not np.isfinite(a).all() for a, b in rows)
