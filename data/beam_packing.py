"""Workers that cut documents into records and say where in their order these belong.

What `ChunkPacker` does one document after another is here a sum: a document's place in the stream
of tokens is the size of all that come before it, and says which chunks it is part of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Optional

import apache_beam as beam
import numpy as np

from data.beam_entries import Entries, Report, Starts, sorted_ids
from data.beam_reading import REPORTS, SIZES, bucket_of
from data.packing import followed, keep_chunks
from data.preparation import Plan
from data.shuffle import SEQUENCES, order_hash

PIECES = "pieces"
"""Output beside the main one: parts of chunks, by the number of the chunk."""


class PlaceShuffled(beam.DoFn):
    """(bucket, its documents) to chunks (number of the first, [chunks, length]) and pieces."""

    def __init__(self, plan: Plan) -> None:
        """Takes what decides the records.

        Args:
            plan: what is to be made, in chunks; its paths do not matter.
        """
        self._plan = plan

    def process(self, element: Any, starts: Optional[Starts]) -> Iterator[Any]:
        """Sorts and cuts the documents of one bucket."""
        if starts is not None:
            bucket, parts = element
            yield from _cut(sorted_ids(parts), starts.before(bucket), self._plan)


class PlaceInOrder(beam.DoFn):
    """(shard, some of its documents) to chunks and pieces as above, or to (bucket, records)."""

    def __init__(self, plan: Plan, bucket_tokens: int) -> None:
        """Takes what decides the records.

        Args:
            plan: what is to be made; its paths do not matter.
            bucket_tokens: tokens of a bucket of records.
        """
        self._plan = plan
        self._bucket_tokens = bucket_tokens

    def process(self, element: Any, starts: Optional[Starts]) -> Iterator[Any]:
        """Cuts some documents, once per epoch."""
        shard, entries = element
        if starts is None or not len(entries.numbers):
            return
        for epoch in range(self._plan.epochs):
            start = epoch * starts.total + starts.before(shard)
            if self._plan.chunk_length is not None:
                yield from _cut(entries.ids, start + int(entries.numbers[0]), self._plan)
            else:
                placed = entries._replace(numbers=entries.numbers + start)
                yield from _in_buckets(placed, placed.numbers // self._bucket_tokens)


class JoinPieces(beam.DoFn):
    """(number of a chunk, its pieces) to (number, [1, length]); the last may not be full."""

    def __init__(self, chunk_length: int) -> None:
        """Takes the length.

        Args:
            chunk_length: ids in a chunk.
        """
        self._length = chunk_length

    def process(self, element: Any) -> Iterator[Any]:
        """Joins the pieces of one chunk."""
        number, pieces = element
        ids = np.concatenate([ids for _, ids in sorted(pieces, key=lambda piece: piece[0])])
        if len(ids) == self._length:
            yield number, ids[None]


class OrderChunks(beam.DoFn):
    """(number of the first, [chunks, length]) to (bucket, records), without repetitive ones."""

    def __init__(self, plan: Plan, bucket_bits: int, bucket_tokens: int) -> None:
        """Takes what decides the records.

        Args:
            plan: what is to be made, in chunks; its paths do not matter.
            bucket_bits: top bits of the hash that are the number of a bucket, with a seed.
            bucket_tokens: tokens of a bucket without.
        """
        self._plan = plan
        self._bucket_bits = bucket_bits
        self._bucket_tokens = bucket_tokens

    def process(self, element: Any, starts: Optional[Starts]) -> Iterator[Any]:
        """Keeps and orders some chunks."""
        plan = self._plan
        first, chunks = element
        assert plan.chunk_length is not None and starts is not None
        report = Report()
        numbers, kept = keep_chunks(chunks, first, plan.min_unique_tokens, report.account)
        yield beam.pvalue.TaggedOutput(REPORTS, report)
        none = np.zeros(len(kept), np.int64)
        if plan.seed is None:
            hashes = none.astype(np.uint64)
            buckets = numbers * plan.chunk_length // self._bucket_tokens
        else:
            # A chunk belongs to the epoch that fills it.
            epoch_tokens = starts.total // plan.epochs
            epochs = ((numbers + 1) * plan.chunk_length - 1) // epoch_tokens
            hashes = order_hash(plan.seed, epochs, SEQUENCES, none, numbers)
            buckets = bucket_of(hashes, epochs, self._bucket_bits)
        lengths = np.full(len(kept), plan.chunk_length)
        entries = Entries(hashes, none, numbers, lengths, np.asarray(kept).ravel())
        yield from _in_buckets(entries, buckets)


def _in_buckets(records: Entries, buckets: np.ndarray) -> Iterator[Any]:
    for bucket, entries in records.by_key(buckets):
        yield bucket, entries
        yield beam.pvalue.TaggedOutput(SIZES, (bucket, len(entries.lengths)))


def _cut(documents: Iterable[np.ndarray], position: int, plan: Plan) -> Iterator[Any]:
    """Cuts documents where the chunks of the whole stream begin.

    Args:
        documents: token ids of each, [length], int32.
        position: of the first id in the stream.
        plan: chunk length and separator.

    Yields:
        The chunks that are whole, in one array; and what is before and behind them, as pieces.
    """
    assert plan.chunk_length is not None
    tokens = np.concatenate(list(followed(list(documents), plan.separator)))
    length = plan.chunk_length
    head = min(-position % length, len(tokens))
    tail = head + (len(tokens) - head) // length * length
    for start, stop in ((0, head), (tail, len(tokens))):
        if start < stop:
            number, offset = divmod(position + start, length)
            piece = (offset, tokens[start:stop].copy())
            yield beam.pvalue.TaggedOutput(PIECES, (number, piece))
    if head < tail:
        yield (position + head) // length, tokens[head:tail].reshape(-1, length)
