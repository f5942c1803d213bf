"""Sorting more tokens than fit into memory.

Entries are scattered over files, the buckets, by the top bits of their hash; each bucket is then
sorted in memory, in turn. A bucket that is too large is scattered once more, by the next bits.
So the memory in use is bounded by two constants, whatever the size of the corpus:
`BUFFERED_BYTES` for each store that is filled, and twice `SORTED_BYTES` for the one that is read.
One entry that is larger is held as a whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

BUFFERED_BYTES = 64 << 20
SORTED_BYTES = 128 << 20
BLOCK_TOKENS = 1 << 20  # of entries that are given out at once

_OBJECT_BYTES = 256  # that Python takes for an entry while it waits
_BUCKET_BITS = 8
_HASH_BITS = 64
_ENTRY = np.dtype([("hash", "<u8"), ("number", "<u8"), ("file", "<u4"), ("length", "<u4")])
_TOKEN = np.dtype("<i4")
_INDEX, _TOKENS = "index", "tokens"  # endings of the two files of a bucket


class Stored(NamedTuple):
    """Some entries of a store, in order.

    Attributes:
        files: number of the file of each, [entries], uint32.
        numbers: number of each in its file, [entries], uint64.
        ids: token ids of each, [length], int32.
    """

    files: np.ndarray
    numbers: np.ndarray
    ids: list[np.ndarray]


class TokenStore:
    """Arrays of token ids in files, to be read in the order of their hashes.

    A store that is `kept_in_order` is read in the order of the keys in which it was filled.
    """

    def __init__(self, folder: str, kept_in_order: bool = False, depth: int = 0) -> None:
        """Opens an empty store.

        Args:
            folder: of its files, made if missing.
            kept_in_order: whether entries come in the order in which they are to be read.
            depth: how often entries were scattered before.
        """
        self._folder = folder
        self._kept_in_order = kept_in_order
        self._shift = np.uint64(_HASH_BITS - _BUCKET_BITS * (depth + 1))
        self._depth = depth
        self._buffers: dict[int, tuple[list[np.ndarray], list[np.ndarray]]] = {}
        self._buffered = 0
        self._sizes: dict[int, list[int]] = {}  # bytes of the index and of the tokens on the disk
        os.makedirs(folder, exist_ok=True)

    def add(
        self,
        hashes: np.ndarray,
        files: Sequence[int] | np.ndarray,
        numbers: Sequence[int] | np.ndarray,
        ids: Sequence[np.ndarray],
    ) -> None:
        """Adds entries.

        Args:
            hashes: what they are sorted by, [entries], uint64; equal ones by file and number.
            files: number of the file of each.
            numbers: number of each in its file.
            ids: token ids of each, [length], int32.
        """
        entries = np.zeros(len(ids), _ENTRY)
        entries["hash"], entries["file"], entries["number"] = hashes, files, numbers
        entries["length"] = [len(array) for array in ids]
        for i, bucket in enumerate(self._buckets_of(entries)):
            index, tokens = self._buffers.setdefault(bucket, ([], []))
            index.append(entries[i : i + 1])
            tokens.append(ids[i])
            self._buffered += _OBJECT_BYTES + ids[i].nbytes
            if self._buffered >= BUFFERED_BYTES:
                self.flush()

    def flush(self) -> None:
        """Writes what waits in memory."""
        for bucket, contents in sorted(self._buffers.items()):
            sizes = self._sizes.setdefault(bucket, [0, 0])
            for which, (kind, parts) in enumerate(zip((_INDEX, _TOKENS), contents)):
                content = np.concatenate(parts).tobytes()
                with open(self._path(bucket, kind), "ab") as file:
                    file.write(content)
                sizes[which] += len(content)
        self._buffers, self._buffered = {}, 0

    def state(self) -> dict[str, list[int]]:
        """Says what is in the store, and sees to it that it is on the disk.

        Returns:
            What `restore` needs, as JSON can hold it.
        """
        self.flush()
        return {str(bucket): list(sizes) for bucket, sizes in self._sizes.items()}

    def restore(self, state: dict[str, list[int]]) -> None:
        """Goes on from a state; anything added after it is cut off.

        Args:
            state: from `state`, of a store with the same arguments.
        """
        self._sizes = {int(bucket): list(sizes) for bucket, sizes in state.items()}
        expected = {
            self._path(bucket, kind): sizes[which]
            for bucket, sizes in self._sizes.items()
            for which, kind in enumerate((_INDEX, _TOKENS))
        }
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if path in expected:
                os.truncate(path, expected[path])
            elif os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.remove(path)

    def buckets(self) -> list[int]:
        """The buckets that hold entries, in the order in which they are to be read."""
        self.flush()
        return sorted(self._sizes)

    def read(self, bucket: int) -> Iterator[Stored]:
        """Reads the entries of a bucket, sorted.

        Args:
            bucket: one of `buckets`.

        Yields:
            Entries, about `BLOCK_TOKENS` tokens at a time.
        """
        index_bytes, token_bytes = self._sizes[bucket]
        is_last = self._kept_in_order or self._shift == 0 or index_bytes <= _ENTRY.itemsize
        if is_last or index_bytes + token_bytes <= SORTED_BYTES:
            yield from self._read_sorted(bucket)
            return
        smaller = TokenStore(self._path(bucket, "split"), depth=self._depth + 1)
        for entries, ids in self._read_unsorted(bucket):
            smaller.add(entries["hash"], entries["file"], entries["number"], ids)
        for part in smaller.buckets():
            yield from smaller.read(part)
        smaller.remove()

    def remove(self) -> None:
        """Removes all files."""
        shutil.rmtree(self._folder)

    def _buckets_of(self, entries: np.ndarray) -> list[int]:
        if not self._kept_in_order:
            mask = np.uint64((1 << _BUCKET_BITS) - 1)
            found: list[int] = (entries["hash"] >> self._shift & mask).tolist()
            return found
        # One after another; each is full long before it is too large to be sorted.
        buckets = []
        bucket = max(self._buffers, default=max(self._sizes, default=0))
        index, tokens = self._buffers.get(bucket, ([], []))
        size = sum(self._sizes.get(bucket, [])) + sum(part.nbytes for part in index + tokens)
        for length in entries["length"].tolist():
            if size >= SORTED_BYTES // 4:
                bucket, size = bucket + 1, 0
            size += _ENTRY.itemsize + length * _TOKEN.itemsize
            buckets.append(bucket)
        return buckets

    def _read_sorted(self, bucket: int) -> Iterator[Stored]:
        entries = np.fromfile(self._path(bucket, _INDEX), _ENTRY)
        tokens = np.fromfile(self._path(bucket, _TOKENS), _TOKEN)
        ends = np.cumsum(entries["length"], dtype=np.int64)
        order = np.lexsort((entries["number"], entries["file"], entries["hash"]))
        lengths = entries["length"][order].astype(np.int64)
        for chosen in _blocks(order, lengths):
            stops = ends[chosen]
            starts = stops - entries["length"][chosen]
            # Copies, since a view would keep the whole bucket in memory.
            ids = [tokens[start:stop].copy() for start, stop in zip(starts, stops)]
            yield Stored(entries["file"][chosen], entries["number"][chosen], ids)

    def _read_unsorted(self, bucket: int) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        with (
            open(self._path(bucket, _INDEX), "rb") as index,
            open(self._path(bucket, _TOKENS), "rb") as tokens,
        ):
            while len(entries := np.fromfile(index, _ENTRY, 1 << 12)):
                lengths = entries["length"].astype(np.int64)
                for chosen in _blocks(np.arange(len(entries)), lengths):
                    sizes = entries["length"][chosen].tolist()
                    yield entries[chosen], [np.fromfile(tokens, _TOKEN, size) for size in sizes]

    def _path(self, bucket: int, kind: str) -> str:
        return os.path.join(self._folder, f"{bucket:03}.{kind}")


def _blocks(order: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Cuts an order into blocks of about `BLOCK_TOKENS` tokens."""
    block = np.cumsum(lengths) // BLOCK_TOKENS
    cuts = np.flatnonzero(np.diff(block)) + 1
    yield from np.split(order, cuts)
