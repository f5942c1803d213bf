"""Workers that read and encode documents, and say where in their order they belong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np

from data.account import Account
from data.beam_entries import Report, make_entries
from data.documents import BadDocument, Document, read_keyed_documents
from data.encoding import EncodedBatch, TextEncoder, encode_here
from data.packing import DocumentPacker, select_documents
from data.preparation import Plan
from data.shuffle import DOCUMENTS, order_hash

REPORTS, SIZES = "reports", "sizes"
"""Outputs beside the main one: accounts, and how much of it each bucket gets."""


class Shard(NamedTuple):
    """Files that one worker reads, one after another.

    Attributes:
        number: of the shard; shards follow one another as their files do.
        first_file: number of the first file.
        paths: of the files.
    """

    number: int
    first_file: int
    paths: list[str]


def make_shards(paths: Sequence[str], sizes: Sequence[int], shard_bytes: int) -> list[Shard]:
    """Puts small files together, so that there is enough to do for each worker.

    Args:
        paths: all files, in order.
        sizes: of the files, in bytes.
        shard_bytes: a shard that is as large as that gets no further file.

    Returns:
        The shards.
    """
    shards: list[Shard] = []
    filled = shard_bytes
    for file, (path, size) in enumerate(zip(paths, sizes)):
        if filled >= shard_bytes:
            shards.append(Shard(len(shards), file, []))
            filled = 0
        shards[-1].paths.append(path)
        filled += size
    return shards


class ReadDocuments(beam.DoFn):
    """Shards to documents.

    Gives (key, Entries). With a seed the key is that of the bucket by epoch and hash; without, the
    number of the shard, and the documents' numbers are their positions in its stream of tokens.
    In documents mode these are the records.
    """

    def __init__(self, plan: Plan, bucket_bits: int, skip_bad: bool) -> None:
        """Takes what decides the records.

        Args:
            plan: what is to be made; its paths do not matter.
            bucket_bits: top bits of the hash that are the number of a bucket.
            skip_bad: whether to go on behind documents that cannot be read.
        """
        self._plan = plan
        self._bucket_bits = bucket_bits
        self._skip_bad = skip_bad
        self._bad = beam.metrics.Metrics.counter("create_tfrecords", "documents_bad")
        self._good = beam.metrics.Metrics.counter("create_tfrecords", "documents_read")

    def setup(self) -> None:
        """Loads the tokenizer, once per worker."""
        self._encoder = TextEncoder(self._plan.spec)

    def process(self, element: Any) -> Iterator[Any]:
        """Reads one shard."""
        shard = Shard(*element)
        documents: Iterable[Document | BadDocument] = read_keyed_documents(
            shard.paths, self._plan.text_key, first_file=shard.first_file
        )
        if not self._skip_bad:
            documents = _to_first_bad(documents)
        position = 0
        for batch in encode_here(documents, self._encoder):
            self._good.inc(len(batch.ids))
            self._bad.inc(len(batch.bad))
            report = Report(Account(), batch.bad)
            report.account.documents = report.account.documents_bad = len(batch.bad)
            keys, ids, sizes = self._select(batch, report.account)
            yield beam.pvalue.TaggedOutput(REPORTS, report)
            if self._plan.seed is None:
                ends = position + np.cumsum(sizes)
                none = np.zeros(len(ids), np.uint64)
                entries = make_entries(none, none, ends - sizes, ids)
                yield shard.number, entries
                yield beam.pvalue.TaggedOutput(SIZES, (shard.number, int(sizes.sum())))
                position += int(sizes.sum())
            else:
                for epoch in range(self._plan.epochs):
                    yield from self._scatter(self._plan.seed, epoch, keys, ids)

    def _select(
        self, batch: EncodedBatch, account: Account
    ) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        """Keys and ids of the documents that are kept, and their lengths with separators."""
        plan = self._plan
        kept = select_documents(
            batch.ids, batch.text_bytes, plan.minimum_size, plan.epochs, account
        )
        chosen = np.flatnonzero(kept)
        ids = [batch.ids[i] for i in chosen]
        if plan.chunk_length is None:
            packed = DocumentPacker(plan.min_unique_tokens, account).add(ids)
            chosen, ids = chosen[packed.numbers], list(packed.records)
        keys = np.array(batch.keys, np.int64).reshape(-1, 2)[chosen]
        sizes = np.fromiter(map(len, ids), np.int64, len(ids))
        if plan.chunk_length is not None:
            sizes += len(plan.separator)
            account.tokens_read += plan.epochs * int(sizes.sum())
        return keys, ids, sizes

    def _scatter(
        self, seed: int, epoch: int, keys: np.ndarray, ids: list[np.ndarray]
    ) -> Iterator[Any]:
        """The documents of one epoch, by buckets."""
        plan = self._plan
        hashes = order_hash(seed, epoch, DOCUMENTS, keys[:, 0], keys[:, 1])
        buckets = bucket_of(hashes, epoch, self._bucket_bits)
        for bucket, entries in make_entries(hashes, keys[:, 0], keys[:, 1], ids).by_key(buckets):
            yield bucket, entries
            size = len(entries.lengths)
            if plan.chunk_length is not None:
                size = len(entries.tokens) + size * len(plan.separator)
            yield beam.pvalue.TaggedOutput(SIZES, (bucket, size))


def bucket_of(hashes: np.ndarray, epochs: int | np.ndarray, bucket_bits: int) -> np.ndarray:
    """Numbers of buckets, by epoch and then by hash.

    Args:
        hashes: [entries], uint64.
        epochs: one for all, or one for each, [entries].
        bucket_bits: top bits of the hash that count; 1 to 31.

    Returns:
        The numbers, [entries], int64.
    """
    within = (hashes >> np.uint64(64 - bucket_bits)).astype(np.int64)
    return np.asarray(epochs, np.int64) * (1 << bucket_bits) + within


def _to_first_bad(documents: Iterable[Document | BadDocument]) -> Iterator[Document | BadDocument]:
    """Ends behind the first document that cannot be read, since nothing will be made."""
    for document in documents:
        yield document
        if isinstance(document, BadDocument):
            return
