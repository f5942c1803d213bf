"""Documents to token ids, in order, on any number of processes."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Optional

import numpy as np

from data.cleaning import detokenize_wikitext, fix_text
from data.documents import BadDocument, Document, Key
from data.tokenizers import Tokenizer, load_tokenizer
from data.word_encoder import WordEncoder

MOST_PROCESSES = 1024
_BATCH_TEXTS = 512
_BATCH_CHARACTERS = 1_000_000
# Batches waiting per process: enough to keep it busy, few enough to bound the memory.
_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class EncoderSpec:
    """All that decides which ids a text becomes; it can be sent to another process.

    Attributes:
        tokenizer_path: `gpt2`, or the path of a tokenizer file.
        is_pretrained: whether `tokenizer_path` is a name rather than a file.
        treat_eot_as_text: encode special tokens found in a text as ordinary text.
        ftfy: repair wrongly decoded text first.
        wikitext_detokenize: undo WikiText's separated tokens first.
    """

    tokenizer_path: str
    is_pretrained: bool
    treat_eot_as_text: bool = False
    ftfy: bool = False
    wikitext_detokenize: bool = False

    def load(self) -> Tokenizer:
        """Loads the tokenizer.

        Returns:
            The tokenizer.
        """
        return load_tokenizer(self.tokenizer_path, self.is_pretrained, self.treat_eot_as_text)


@dataclass(frozen=True)
class EncodedBatch:
    """Some documents, one after another.

    Attributes:
        keys: of the documents that could be read.
        ids: their token ids, [length], int32 each; those of a prompt are masked, that is held as
            their complement (data/record_encoding.py).
        text_bytes: UTF-8 bytes of their texts as they were encoded, cleaned if so asked.
        bad: documents between them that could not be read.
        end: where to go on reading: behind the last of them.
    """

    keys: list[Key]
    ids: list[np.ndarray]
    text_bytes: list[int]
    bad: list[BadDocument]
    end: Key


_Pair = tuple[Optional[str], str]  # prompt and text
_Encoded = tuple[np.ndarray, list[int], list[int]]  # all ids; ids and bytes of each document


class TextEncoder:
    """Cleans and encodes batches of texts in one process."""

    def __init__(self, spec: EncoderSpec) -> None:
        """Loads what is needed.

        Args:
            spec: what to do with a text.
        """
        # Parallel work is ours to share out; the library's own threads would compete with it.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._spec = spec
        self._encoder = WordEncoder(spec.load().backend)

    def encode(self, pairs: list[_Pair]) -> _Encoded:
        """Encodes a batch.

        Args:
            pairs: prompts, or None, and texts.

        Returns:
            Token ids of all documents, [ids], int32, masked where they are of a prompt; the number
            of ids, and of UTF-8 bytes of the text, of each document.
        """
        prompts = iter(self._encode([prompt for prompt, _ in pairs if prompt is not None]))
        parts: list[np.ndarray] = [np.zeros(0, np.int32)]
        lengths, text_bytes = [], []
        for (prompt, _), (ids, size) in zip(pairs, self._encode([text for _, text in pairs])):
            length = len(ids)
            if prompt is not None:
                prompt_ids, prompt_size = next(prompts)
                parts.append(~prompt_ids)
                length += len(prompt_ids)
                size += prompt_size
            parts.append(ids)
            lengths.append(length)
            text_bytes.append(size)
        return np.concatenate(parts), lengths, text_bytes

    def _encode(self, texts: list[str]) -> Iterator[tuple[np.ndarray, int]]:
        """The ids of texts, and the bytes of what was encoded."""
        if self._spec.ftfy:
            texts = [fix_text(text) for text in texts]
        if self._spec.wikitext_detokenize:
            texts = [detokenize_wikitext(text) for text in texts]
        sizes = [len(text) if text.isascii() else len(text.encode()) for text in texts]
        return zip(self._encoder.encode(texts), sizes)


def encode_documents(
    documents: Iterable[Document | BadDocument], spec: EncoderSpec, processes: int = 0
) -> Iterator[EncodedBatch]:
    """Encodes a stream of documents; only a few batches are in memory at a time.

    Args:
        documents: the documents, read as they are needed.
        spec: what to do with a text.
        processes: number of processes, 0 for one per core. The result does not
            depend on it.

    Yields:
        The encoded documents, in the same order.

    Raises:
        ValueError: `processes` is out of range.
    """
    if not 0 <= processes <= MOST_PROCESSES:
        raise ValueError(
            f"processes must be 0 (one per core) to {MOST_PROCESSES}; got {processes}. Give 0 or "
            "leave it out."
        )
    batches = _batches(documents)
    first = list(itertools.islice(batches, 2))
    processes = processes or os.cpu_count() or 1
    every = itertools.chain(first, batches)
    if processes == 1 or len(first) < 2:  # one batch does not repay starting processes
        yield from _encode_batches(every, TextEncoder(spec))
    else:
        yield from _encode_in_pool(every, spec, processes)


def encode_here(
    documents: Iterable[Document | BadDocument], encoder: TextEncoder
) -> Iterator[EncodedBatch]:
    """Encodes a stream of documents in this process.

    Args:
        documents: the documents, read as they are needed.
        encoder: may serve several streams.

    Returns:
        The encoded documents, in the same order.
    """
    return _encode_batches(_batches(documents), encoder)


def _encode_batches(batches: Iterable[_Batch], encoder: TextEncoder) -> Iterator[EncodedBatch]:
    for batch in batches:
        yield batch.encoded(encoder.encode(batch.pairs))


def _encode_in_pool(
    batches: Iterable[_Batch], spec: EncoderSpec, processes: int
) -> Iterator[EncodedBatch]:
    # "spawn", since a fork of a process that runs TensorFlow's threads can hang.
    context = multiprocessing.get_context("spawn")
    waiting: deque[tuple[_Batch, Future[_Encoded]]] = deque()
    pool = ProcessPoolExecutor(processes, context, _start_worker, (spec,))
    try:
        for batch in batches:
            with _without_interrupts():
                future = pool.submit(_encode_in_worker, batch.pairs)
            waiting.append((batch, future))
            batch.pairs = []  # the pool has them
            if len(waiting) > processes * _BATCHES_AHEAD:
                oldest, future = waiting.popleft()
                yield oldest.encoded(future.result())
        for batch, future in waiting:
            yield batch.encoded(future.result())
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Holds Ctrl-C back for a moment; processes that are started in it never get one.

    The terminal sends it to them too, and they could not ignore it before they have loaded Python.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Batch:
    """Documents that are encoded together."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.pairs: list[_Pair] = []
        self.bad: list[BadDocument] = []
        self.end = Key(0, 0)
        self._characters = 0

    def add(self, document: Document | BadDocument) -> None:
        self.end = Key(document.key.file, document.key.number + 1)
        if isinstance(document, BadDocument):
            self.bad.append(document)
            return
        self.keys.append(document.key)
        self.pairs.append((document.prompt, document.text))
        self._characters += len(document.text) + len(document.prompt or "")

    @property
    def is_full(self) -> bool:
        documents = len(self.pairs) + len(self.bad)
        return documents >= _BATCH_TEXTS or self._characters >= _BATCH_CHARACTERS

    def encoded(self, result: _Encoded) -> EncodedBatch:
        flat, lengths, text_bytes = result
        ends = list(itertools.accumulate(lengths))
        ids = [flat[end - length : end] for length, end in zip(lengths, ends)]
        return EncodedBatch(self.keys, ids, text_bytes, self.bad, self.end)


def _batches(documents: Iterable[Document | BadDocument]) -> Iterator[_Batch]:
    batch = _Batch()
    for document in documents:
        batch.add(document)
        if batch.is_full:
            yield batch
            batch = _Batch()
    if batch.keys or batch.bad:
        yield batch


_worker: TextEncoder | None = None


def _start_worker(spec: EncoderSpec) -> None:
    global _worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = TextEncoder(spec)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _encode_in_worker(pairs: list[_Pair]) -> _Encoded:
    assert _worker is not None
    return _worker.encode(pairs)
