"""Encoded documents to records.

Documents come as they are encoded, some at a time. What a packer keeps between two calls is in
its state, so that packing goes on exactly after an interruption.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from data.account import Account
from data.record_encoding import plain_ids


class Packed(NamedTuple):
    """Records, and their numbers among all that were made; those dropped have one too.

    Attributes:
        numbers: [records], int64.
        records: token ids of each record, [length], int32, masked ones as their complement.
    """

    numbers: np.ndarray
    records: Sequence[np.ndarray]


class Packer(Protocol):
    """Makes records out of documents."""

    def add(self, documents: Sequence[np.ndarray]) -> Packed:
        """Takes documents, and gives the records that became complete with them."""

    def finish(self) -> None:
        """Puts what fills no record into the account."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON can hold it."""

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""


def select_documents(
    documents: Sequence[np.ndarray],
    text_bytes: Sequence[int],
    minimum_size: int,
    epochs: int,
    account: Account,
) -> list[bool]:
    """Decides which documents are large enough.

    Args:
        documents: token ids of each document, [length], int32.
        text_bytes: of each document.
        minimum_size: documents with fewer tokens are dropped; empty ones always are.
        epochs: how often the others will be packed.
        account: is kept up to date.

    Returns:
        Whether each document is kept.
    """
    kept = []
    for ids, size in zip(documents, text_bytes):
        is_kept = len(ids) >= max(1, minimum_size)
        kept.append(is_kept)
        account.documents += 1
        account.longest_document = max(account.longest_document, len(ids))
        account.text_bytes += size * (epochs if is_kept else 1)
        if not is_kept:
            account.documents_too_small += 1
            account.tokens_too_small += len(ids)
            account.tokens_read += len(ids)
    return kept


class DocumentPacker:
    """Makes one record of each document."""

    def __init__(self, min_unique_tokens: int, account: Account) -> None:
        """Starts.

        Args:
            min_unique_tokens: records with fewer different ids are dropped.
            account: is kept up to date.
        """
        self._min_unique = min_unique_tokens
        self._account = account
        self._number = 0

    def add(self, documents: Sequence[np.ndarray]) -> Packed:
        """Takes documents.

        Args:
            documents: token ids of each, [length], int32.

        Returns:
            The records.
        """
        self._account.tokens_read += sum(map(len, documents))
        kept = np.ones(len(documents), bool)
        if self._min_unique > 1:
            kept[:] = [_unique_ids(ids) >= self._min_unique for ids in documents]
        packed = _keep(documents, kept, self._number, self._account)
        self._number += len(documents)
        return packed

    def finish(self) -> None:
        """Does nothing: each document was a record."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON can hold it."""
        return {"number": self._number}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        self._number = state["number"]


class ChunkPacker:
    """Joins documents, each followed by the separator, and cuts the result into chunks.

    Each chunk starts where the one before ended, over the ends of documents.
    What is left at the end and fills no chunk is dropped and counted.
    """

    def __init__(
        self, chunk_length: int, separator: np.ndarray, min_unique_tokens: int, account: Account
    ) -> None:
        """Starts.

        Args:
            chunk_length: ids in a record: one more than the model's context, since
                the inputs are all but the last and the labels all but the first.
            separator: ids put after each document, [length], int32.
            min_unique_tokens: records with fewer different ids are dropped.
            account: is kept up to date.
        """
        self._length = chunk_length
        self._separator = separator
        self._min_unique = min_unique_tokens
        self._account = account
        self._pending = np.zeros(0, np.int32)
        self._number = 0

    def add(self, documents: Sequence[np.ndarray]) -> Packed:
        """Takes documents.

        Args:
            documents: token ids of each, [length], int32.

        Returns:
            The records that are full now, [records, chunk_length].
        """
        joined = np.concatenate([self._pending, *followed(documents, self._separator)])
        self._account.tokens_read += len(joined) - len(self._pending)
        whole = len(joined) // self._length * self._length
        self._pending = joined[whole:].copy()  # a view would keep all of it
        chunks = joined[:whole].reshape(-1, self._length)
        packed = keep_chunks(chunks, self._number, self._min_unique, self._account)
        self._number += len(chunks)
        return packed

    def finish(self) -> None:
        """Counts the tokens that fill no chunk."""
        self._account.tokens_tail += len(self._pending)
        self._pending = self._pending[:0]

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON can hold it."""
        return {"number": self._number, "pending": self._pending.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state."""
        self._number = state["number"]
        self._pending = np.array(state["pending"], np.int32)


def followed(documents: Sequence[np.ndarray], separator: np.ndarray) -> Iterator[np.ndarray]:
    """Documents, each followed by the separator.

    Args:
        documents: token ids of each, [length], int32.
        separator: ids, [length], int32.

    Yields:
        Their ids and the separator, in turn.
    """
    for ids in documents:
        yield ids
        yield separator


def keep_chunks(chunks: np.ndarray, first: int, min_unique_tokens: int, account: Account) -> Packed:
    """Leaves out chunks of few different ids.

    Args:
        chunks: token ids, [chunks, length], int32.
        first: number of the first of them among all chunks.
        min_unique_tokens: those with fewer different ids are dropped.
        account: is kept up to date.

    Returns:
        The others.
    """
    kept = np.ones(len(chunks), bool)
    if min_unique_tokens > 1 and len(chunks):
        kept = _unique_ids(chunks) >= min_unique_tokens
    return _keep(chunks, kept, first, account)


def _unique_ids(ids: np.ndarray) -> np.ndarray:
    """Counts different ids along the last axis, which is not empty."""
    ordered = np.sort(plain_ids(ids), axis=-1)
    return 1 + np.count_nonzero(np.diff(ordered, axis=-1), axis=-1)


def _keep(
    records: np.ndarray | Sequence[np.ndarray], kept: np.ndarray, first: int, account: Account
) -> Packed:
    """Leaves out records, and puts all of them into the account."""
    numbers = first + np.flatnonzero(kept)
    for record, is_kept in zip(records, kept):
        if is_kept:
            account.records += 1
            account.tokens_kept += len(record)
            account.tokens_masked += int(np.count_nonzero(record < 0))
        else:
            account.records_repetitive += 1
            account.tokens_repetitive += len(record)
    if isinstance(records, np.ndarray):
        chosen: Sequence[np.ndarray] = records if kept.all() else records[kept]  # type: ignore[assignment]
    else:
        chosen = [record for record, is_kept in zip(records, kept) if is_kept]
    return Packed(numbers, chosen)
