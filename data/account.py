"""The account of every document and every token, from the input to the records."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass
class Account:
    """What came in and where it went; the counts always add up.

    Attributes:
        documents: documents read.
        documents_too_small: documents below the minimum size.
        documents_bad: documents that could not be read.
        longest_document: tokens of the longest document read.
        records: records made.
        records_repetitive: records that were dropped for having few different ids.
        tokens_read: tokens of all documents, and separators put after those kept; what is packed
            several times counts as often.
        tokens_kept: tokens in records.
        tokens_too_small: tokens of documents below the minimum size.
        tokens_repetitive: tokens of dropped records.
        tokens_tail: tokens at the end that did not fill a chunk.
        tokens_masked: those of the kept that are no labels.
        text_bytes: UTF-8 bytes of the text that `tokens_read` counts.
    """

    documents: int = 0
    documents_too_small: int = 0
    documents_bad: int = 0
    longest_document: int = 0
    records: int = 0
    records_repetitive: int = 0
    tokens_read: int = 0
    tokens_kept: int = 0
    tokens_too_small: int = 0
    tokens_repetitive: int = 0
    tokens_tail: int = 0
    tokens_masked: int = 0
    text_bytes: int = 0

    @property
    def documents_dropped(self) -> int:
        """Documents that are in no record."""
        return self.documents_too_small + self.documents_bad

    @property
    def documents_kept(self) -> int:
        """Documents whose tokens were packed."""
        return self.documents - self.documents_dropped

    @property
    def tokens_dropped(self) -> int:
        """Tokens that are in no record."""
        return self.tokens_too_small + self.tokens_repetitive + self.tokens_tail

    def add(self, other: Account) -> None:
        """Adds the account of another part of the input.

        Args:
            other: its account.
        """
        longest = max(self.longest_document, other.longest_document)
        for name, count in other.state().items():
            setattr(self, name, getattr(self, name) + count)
        self.longest_document = longest

    def state(self) -> dict[str, Any]:
        """All counts, as JSON can hold them; `Account(**state)` is the account again."""
        return dataclasses.asdict(self)

    def summary(self, epochs: int = 1) -> str:
        """Describes the account.

        Args:
            epochs: how often the documents were packed.

        Returns:
            Aligned lines for a person.
        """
        assert self.tokens_read == self.tokens_kept + self.tokens_dropped
        bad = ""
        if self.documents_bad:
            bad = (
                f" ({self.documents_too_small:,} below the minimum size, "
                f"{self.documents_bad:,} that cannot be read)"
            )
        repetitive_records = repetitive_tokens = ""
        if self.records_repetitive:
            repetitive_records = f" ({self.records_repetitive:,} of few different ids dropped)"
            repetitive_tokens = f", {self.tokens_repetitive:,} in records of few different ids"
        lines = [
            f"documents: {self.documents:,} read = {self.documents_kept:,} kept "
            f"+ {self.documents_dropped:,} dropped{bad}",
            f"records: {self.records:,}{repetitive_records}",
            f"tokens: {self.tokens_read:,} read{f' in {epochs} epochs' if epochs > 1 else ''} = "
            f"{self.tokens_kept:,} kept + {self.tokens_dropped:,} dropped "
            f"({self.tokens_too_small:,} in documents below the minimum size{repetitive_tokens}, "
            f"{self.tokens_tail:,} at the end that fill no chunk)",
        ]
        if self.tokens_masked:
            lines.append(
                f"labels: {self.tokens_kept - self.tokens_masked:,} of {self.tokens_kept:,} kept "
                "tokens; the others are of prompts"
            )
        return "\n".join(lines)
