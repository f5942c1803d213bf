"""What is sent between the workers of a pipeline, and where in an order it belongs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data.account import Account
from data.documents import BadDocument
from data.preparation import NAMED_BAD_DOCUMENTS


class Entries(NamedTuple):
    """Documents or records with what they are sorted by: hash, then file, then number.

    Attributes:
        hashes: [entries], uint64; 0 where nothing is shuffled.
        files: number of the file of each, [entries], int64; 0 where that says nothing.
        numbers: [entries], int64.
        lengths: tokens of each, [entries], int64.
        tokens: ids of all, one after another, [tokens], int32; masked ones as their complement.
    """

    hashes: np.ndarray
    files: np.ndarray
    numbers: np.ndarray
    lengths: np.ndarray
    tokens: np.ndarray

    @property
    def ids(self) -> list[np.ndarray]:
        """Token ids of each entry, [length], int32."""
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []

    def by_key(self, keys: np.ndarray) -> Iterator[tuple[int, Entries]]:
        """Parts the entries by a key.

        Args:
            keys: of each, [entries], of whole numbers.

        Yields:
            Each key that there is, and its entries.
        """
        ids = self.ids
        order = np.argsort(keys, kind="stable")
        cuts = np.flatnonzero(np.diff(keys[order])) + 1
        for chosen in np.split(order, cuts) if len(order) else ():
            yield (
                int(keys[chosen[0]]),
                make_entries(
                    self.hashes[chosen],
                    self.files[chosen],
                    self.numbers[chosen],
                    [ids[i] for i in chosen],
                ),
            )


def make_entries(
    hashes: np.ndarray, files: np.ndarray, numbers: np.ndarray, ids: Sequence[np.ndarray]
) -> Entries:
    """Puts entries together.

    Args:
        hashes: [entries], uint64.
        files: [entries].
        numbers: [entries].
        ids: token ids of each, [length], int32.

    Returns:
        The entries.
    """
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    tokens = np.concatenate([np.zeros(0, np.int32), *ids])
    return Entries(hashes, files.astype(np.int64), numbers.astype(np.int64), lengths, tokens)


def sorted_ids(parts: Iterable[Entries]) -> list[np.ndarray]:
    """Sorts the entries of one bucket, in memory.

    Args:
        parts: its entries, in any order.

    Returns:
        Token ids of each entry, in order.
    """
    whole = [np.concatenate(columns) for columns in zip(*parts)]
    entries = Entries(*whole)
    ids = entries.ids
    return [ids[i] for i in np.lexsort((entries.numbers, entries.files, entries.hashes))]


class Starts(NamedTuple):
    """How much lies before each bucket: the sums of the sizes of all that come first.

    Attributes:
        keys: of the buckets that are not empty, in order, [buckets], int64.
        starts: of each, and at last the size of all, [buckets + 1], int64.
    """

    keys: np.ndarray
    starts: np.ndarray

    @classmethod
    def of_sizes(cls, sizes: Iterable[tuple[int, int]]) -> Starts:
        """Adds up.

        Args:
            sizes: key and size of each bucket, in any order.

        Returns:
            The sums.
        """
        ordered = np.array(sorted(sizes), np.int64).reshape(-1, 2)
        return cls(ordered[:, 0], np.concatenate([[0], np.cumsum(ordered[:, 1])]))

    def before(self, key: int) -> int:
        """The size of all buckets before one that is not empty."""
        return int(self.starts[np.searchsorted(self.keys, key)])

    @property
    def total(self) -> int:
        """The size of all."""
        return int(self.starts[-1])


@dataclass
class Report:
    """The account of some of the work, and the first documents that could not be read.

    Attributes:
        account: of what was read and made.
        bad: documents in the order of their keys; no more than are to be named, and one.
    """

    account: Account = dataclasses.field(default_factory=Account)
    bad: list[BadDocument] = dataclasses.field(default_factory=list)

    def add(self, other: Report) -> None:
        """Adds the report of another part.

        Args:
            other: its report.
        """
        self.account.add(other.account)
        bad = sorted(self.bad + other.bad, key=lambda document: document.key)
        self.bad = bad[: NAMED_BAD_DOCUMENTS + 1]
