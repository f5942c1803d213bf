"""Documents to record files, in stages that can be interrupted.

In the order of the input, documents are read, encoded, packed and written as one stream. In any
other order, and for several epochs, they are encoded once into a store on disk (stage
``encode``); then each epoch is packed (``pack``) and, where records are shuffled too, sorted and
written (``write``). At the end the files get their names (``publish``).

Every stage reads something whose position is known and appends to files whose lengths are known.
So the state of the work is a few numbers, and it goes on exactly from any of them.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.account import Account
from data.documents import BadDocument, read_keyed_documents
from data.encoding import EncodedBatch, EncoderSpec, encode_documents
from data.packing import ChunkPacker, DocumentPacker, Packer, select_documents
from data.progress import Work
from data.record_writer import RecordWriter
from data.shuffle import DOCUMENTS, SEQUENCES, order_hash
from data.token_store import TokenStore

_log = logging.getLogger(__name__)

NAMED_BAD_DOCUMENTS = 20


@dataclass(frozen=True)
class Plan:
    """What is to be made. The records are a function of it and of the input files.

    Attributes:
        paths: input files, in order.
        text_key: key of the text in JSON objects.
        spec: how a text becomes ids.
        name: first part of the names of the record files.
        output_dir: their folder.
        files_per: records per file.
        chunk_length: ids in each record; None to make one record of each document.
        separator: ids put after each document, [length], int32; not used without chunks.
        minimum_size: documents with fewer tokens are dropped.
        min_unique_tokens: records with fewer different ids are dropped.
        compress: whether the record files are compressed.
        seed: of the shuffle; None to keep the order of the input.
        epochs: how often the documents are packed.
    """

    paths: list[str]
    text_key: str
    spec: EncoderSpec
    name: str
    output_dir: str
    files_per: int
    chunk_length: int | None
    separator: np.ndarray
    minimum_size: int
    min_unique_tokens: int
    compress: bool
    seed: int | None
    epochs: int

    @property
    def is_stream(self) -> bool:
        """Whether documents are written as they come."""
        return self.seed is None and self.epochs == 1

    @property
    def shuffles_records(self) -> bool:
        """Whether records are shuffled, and not only the documents that they are made of."""
        return self.seed is not None and self.chunk_length is not None


@dataclass
class _Cursor:
    """How far the work is.

    Attributes:
        stage: `encode`, `pack`, `write` or `publish`.
        document: key of the next document to read.
        epoch: that is packed or written.
        bucket: of the store that is read next.
    """

    stage: str = "encode"
    document: tuple[int, int] = (0, 0)
    epoch: int = 0
    bucket: int = 0


class Preparation:
    """One run of a plan, from its beginning or from where an earlier one was interrupted."""

    def __init__(
        self,
        plan: Plan,
        work: Work,
        processes: int = 0,
        skip_bad: bool = False,
        watch: Callable[[Iterable[EncodedBatch], Account], Iterable[EncodedBatch]] | None = None,
    ) -> None:
        """Goes to where the work was interrupted.

        Args:
            plan: what is to be made.
            work: where it is done.
            processes: that encode; 0 for one per core.
            skip_bad: whether to leave out documents that cannot be read.
            watch: is given the encoded batches as they come, and passes them on.
        """
        self._plan = plan
        self._work = work
        self._processes = processes
        self._skip_bad = skip_bad
        self._watch = watch
        self.account = Account()
        self.writer = RecordWriter(
            plan.output_dir,
            plan.name,
            plan.files_per,
            work_dir=work.folder,
            compress=plan.compress,
        )
        self._stores: dict[str, TokenStore] = {}
        self._cursor = _Cursor()
        state = work.state
        if state is not None:
            self.account = Account(**state["account"])
        self._packer = self._make_packer()
        if state is not None:
            self._cursor = _Cursor(**state["cursor"])
            self._cursor.document = (state["cursor"]["document"][0], state["cursor"]["document"][1])
            self._packer.restore(state["packer"])
            self.writer.restore(state["writer"])
            for name, content in state["stores"].items():
                self._store(name).restore(content)
            _log.info("going on with %s", self._describe_position())

    @property
    def is_published(self) -> bool:
        """Whether only file names are left to be given."""
        return self._cursor.stage == "publish"

    def make(self) -> None:
        """Does everything but giving the files their names.

        Raises:
            ValueError: a document cannot be read, and is not to be skipped.
        """
        if self._cursor.stage == "encode":
            self._encode()
        while self._cursor.stage in ("pack", "write"):
            if self._cursor.stage == "pack":
                self._pack()
            if self._cursor.stage == "write":
                self._write()
            self._next_epoch()

    def seal(self) -> None:
        """Notes that the records are complete, so that only `RecordWriter.close` is left.

        That is quick: they are compressed before.
        """
        if not self.is_published:
            self.writer.end_file()
            self._go_to("publish")
        self.writer.compress(self._processes or os.cpu_count() or 1)

    def _encode(self) -> None:
        """Reads and encodes all documents; writes them, or puts them into the first store."""
        plan, cursor = self._plan, self._cursor
        store = None if plan.is_stream else self._store(self._documents_name(0))
        documents = read_keyed_documents(plan.paths, plan.text_key, cursor.document)
        checked = documents if self._skip_bad else map(_refuse_bad, documents)
        batches: Iterable[EncodedBatch] = encode_documents(checked, plan.spec, self._processes)
        if self._watch is not None:
            batches = self._watch(batches, self.account)
        for batch in batches:
            self._note_bad(batch)
            kept = select_documents(
                batch.ids, batch.text_bytes, plan.minimum_size, plan.epochs, self.account
            )
            ids = [array for array, is_kept in zip(batch.ids, kept) if is_kept]
            if store is None:
                self.writer.write_all(self._packer.add(ids).records)
            elif ids:
                keys = np.array([key for key, is_kept in zip(batch.keys, kept) if is_kept])
                self._add_documents(store, 0, keys[:, 0], keys[:, 1], ids)
            cursor.document = (batch.end.file, batch.end.number)
            self._work.save(self._state)
        if store is None:
            self._packer.finish()
        else:
            self._go_to("pack")

    def _pack(self) -> None:
        """Packs one epoch out of its store."""
        plan, cursor = self._plan, self._cursor
        name = self._documents_name(cursor.epoch)
        source = self._store(name)
        has_next = cursor.epoch + 1 < plan.epochs
        following = None
        if has_next and plan.seed is not None:
            following = self._store(self._documents_name(cursor.epoch + 1))
        sequences = self._store("sequences") if plan.shuffles_records else None
        for bucket in source.buckets():
            if bucket < cursor.bucket:
                continue
            for files, numbers, ids in source.read(bucket):
                if following is not None:
                    self._add_documents(following, cursor.epoch + 1, files, numbers, ids)
                packed = self._packer.add(ids)
                if sequences is None:
                    self.writer.write_all(packed.records)
                else:
                    assert plan.seed is not None
                    none = np.zeros(len(packed.numbers), np.uint32)
                    hashes = order_hash(plan.seed, cursor.epoch, SEQUENCES, none, packed.numbers)
                    sequences.add(hashes, none, packed.numbers, packed.records)
            cursor.bucket = bucket + 1
            self._work.save(self._state)
        done = [] if has_next and plan.seed is None else [name]
        self._go_to("write", done)

    def _write(self) -> None:
        """Writes the records of one epoch, shuffled, if they are not written yet."""
        if not self._plan.shuffles_records:
            return
        sequences = self._store("sequences")
        for bucket in sequences.buckets():
            if bucket < self._cursor.bucket:
                continue
            for stored in sequences.read(bucket):
                self.writer.write_all(stored.ids)
            self._cursor.bucket = bucket + 1
            self._work.save(self._state)

    def _next_epoch(self) -> None:
        done = ["sequences"] if self._plan.shuffles_records else []
        self._cursor.epoch += 1
        if self._cursor.epoch < self._plan.epochs:
            self._go_to("pack", done)
        else:
            self._packer.finish()
            self._go_to("packed", done)

    def _go_to(self, stage: str, done: Iterable[str] = ()) -> None:
        """Ends a stage; what was read in it is removed only when no state speaks of it."""
        self._cursor.stage, self._cursor.bucket = stage, 0
        removed = [self._stores.pop(name) for name in done]
        self._work.save(self._state, force=True)
        for store in removed:
            store.remove()

    def _state(self) -> dict[str, Any]:
        return {
            "cursor": dataclasses.asdict(self._cursor),
            "account": self.account.state(),
            "packer": self._packer.state(),
            "writer": self.writer.state(),
            "stores": {name: store.state() for name, store in self._stores.items()},
        }

    def _make_packer(self) -> Packer:
        plan = self._plan
        if plan.chunk_length is None:
            return DocumentPacker(plan.min_unique_tokens, self.account)
        return ChunkPacker(plan.chunk_length, plan.separator, plan.min_unique_tokens, self.account)

    def _documents_name(self, epoch: int) -> str:
        """The store of an epoch; in the order of the input it is the same for all."""
        return f"documents_{epoch if self._plan.seed is not None else 0}"

    def _store(self, name: str) -> TokenStore:
        if name not in self._stores:
            folder = os.path.join(self._work.folder, name)
            in_order = self._plan.seed is None
            self._stores[name] = TokenStore(folder, in_order)
            if self._work.state is None or name not in self._work.state["stores"]:
                self._stores[name].restore({})  # whatever was left by an interrupted stage
        return self._stores[name]

    def _add_documents(
        self,
        store: TokenStore,
        epoch: int,
        files: np.ndarray,
        numbers: np.ndarray,
        ids: list[np.ndarray],
    ) -> None:
        seed = self._plan.seed
        if seed is None:
            hashes = np.zeros(len(ids), np.uint64)
        else:
            hashes = order_hash(seed, epoch, DOCUMENTS, files, numbers)
        store.add(hashes, files, numbers, ids)

    def _note_bad(self, batch: EncodedBatch) -> None:
        for bad in batch.bad:
            self.account.documents += 1
            self.account.documents_bad += 1
            name_bad(bad, self.account.documents_bad)

    def _describe_position(self) -> str:
        cursor = self._cursor
        if cursor.stage == "encode":
            file, number = cursor.document
            done = self.account.documents
            path = self._plan.paths[min(file, len(self._plan.paths) - 1)]
            return f"document {number + 1} of {path}; {done:,} documents are done."
        if cursor.stage in ("pack", "write"):
            return f"epoch {cursor.epoch + 1} of {self._plan.epochs}, stage {cursor.stage}."
        return "the names of the record files."


def name_bad(bad: BadDocument, number: int) -> None:
    """Names a document that is left out, if it is among the first.

    Args:
        bad: the document.
        number: how many were left out with it.
    """
    if number <= NAMED_BAD_DOCUMENTS:
        _log.warning("left out: %s", bad)
    elif number == NAMED_BAD_DOCUMENTS + 1:
        _log.warning("more documents are left out and counted, but not named.")


def _refuse_bad(document: Any) -> Any:
    if isinstance(document, BadDocument):
        raise document.error()
    return document
