"""Encoded documents to records, and the account of every token on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass
class Account:
    """What came in and where it went; the token counts always add up.

    Attributes:
        documents: documents read.
        documents_dropped: documents below the minimum size.
        longest_document: tokens of the longest document read.
        records: records made.
        tokens_read: tokens of all documents, and separators put after those kept.
        tokens_kept: tokens in records.
        tokens_too_small: tokens of dropped documents.
        tokens_tail: tokens at the end that did not fill a chunk.
    """

    documents: int = 0
    documents_dropped: int = 0
    longest_document: int = 0
    records: int = 0
    tokens_read: int = 0
    tokens_kept: int = 0
    tokens_too_small: int = 0
    tokens_tail: int = 0

    @property
    def tokens_dropped(self) -> int:
        """Tokens that are in no record."""
        return self.tokens_too_small + self.tokens_tail

    def summary(self) -> str:
        """Describes the account.

        Returns:
            Aligned lines for a person.
        """
        assert self.tokens_read == self.tokens_kept + self.tokens_dropped
        documents_kept = self.documents - self.documents_dropped
        return "\n".join(
            (
                f"documents: {self.documents:,} read = {documents_kept:,} kept "
                f"+ {self.documents_dropped:,} dropped",
                f"records: {self.records:,}",
                f"tokens: {self.tokens_read:,} read = {self.tokens_kept:,} kept "
                f"+ {self.tokens_dropped:,} dropped ({self.tokens_too_small:,} in documents below "
                f"the minimum size, {self.tokens_tail:,} at the end that fill no chunk)",
            )
        )


def pack_documents(
    documents: Iterable[np.ndarray], minimum_size: int, account: Account
) -> Iterator[np.ndarray]:
    """Makes one record of each document.

    Args:
        documents: token ids of each document, [length], int32.
        minimum_size: documents with fewer tokens are dropped; empty ones always are.
        account: is kept up to date.

    Yields:
        Token ids of a record, [length], int32.
    """
    for ids in _large_enough(documents, minimum_size, account):
        account.records += 1
        account.tokens_kept += len(ids)
        yield ids


def pack_chunks(
    documents: Iterable[np.ndarray],
    chunk_length: int,
    separator: np.ndarray,
    minimum_size: int,
    account: Account,
) -> Iterator[np.ndarray]:
    """Joins documents, each followed by the separator, and cuts the result into chunks.

    Each chunk starts where the one before ended, over the ends of documents.
    What is left at the end and fills no chunk is dropped and counted.

    Args:
        documents: token ids of each document, [length], int32.
        chunk_length: ids in a record: one more than the model's context, since
            the inputs are all but the last and the labels all but the first.
        separator: ids put after each document, [length], int32.
        minimum_size: documents with fewer tokens are dropped; empty ones always are.
        account: is kept up to date.

    Yields:
        Token ids of a record, [chunk_length], int32.
    """
    pending: list[np.ndarray] = []
    pending_tokens = 0
    for ids in _large_enough(documents, minimum_size, account):
        pending += [ids, separator]
        pending_tokens += len(ids) + len(separator)
        account.tokens_read += len(separator)
        if pending_tokens < chunk_length:
            continue
        joined = np.concatenate(pending)
        whole = len(joined) // chunk_length * chunk_length
        for start in range(0, whole, chunk_length):
            account.records += 1
            account.tokens_kept += chunk_length
            yield joined[start : start + chunk_length]
        pending, pending_tokens = [joined[whole:]], len(joined) - whole
    account.tokens_tail += pending_tokens


def _large_enough(
    documents: Iterable[np.ndarray], minimum_size: int, account: Account
) -> Iterator[np.ndarray]:
    for ids in documents:
        account.documents += 1
        account.tokens_read += len(ids)
        account.longest_document = max(account.longest_document, len(ids))
        if len(ids) < max(1, minimum_size):
            account.documents_dropped += 1
            account.tokens_too_small += len(ids)
        else:
            yield ids
