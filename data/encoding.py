"""Texts to token ids, in order, on any number of processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from data.cleaning import detokenize_wikitext, fix_text
from data.tokenizers import Tokenizer, load_tokenizer

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


class TextEncoder:
    """Cleans and encodes batches of texts in one process."""

    def __init__(self, spec: EncoderSpec) -> None:
        """Loads what is needed.

        Args:
            spec: what to do with a text.
        """
        self._spec = spec
        self._tokenizer = spec.load()

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Encodes a batch.

        Args:
            texts: the texts.

        Returns:
            Token ids of each text, [length], int32.
        """
        if self._spec.ftfy:
            texts = [fix_text(text) for text in texts]
        if self._spec.wikitext_detokenize:
            texts = [detokenize_wikitext(text) for text in texts]
        return [np.array(ids, np.int32) for ids in self._tokenizer.encode_batch(texts)]


def encode_texts(
    texts: Iterable[str], spec: EncoderSpec, processes: int = 0
) -> Iterator[np.ndarray]:
    """Encodes a stream of texts; only a few batches are in memory at a time.

    Args:
        texts: the texts, read as they are needed.
        spec: what to do with a text.
        processes: number of processes, 0 for one per core. The result does not
            depend on it.

    Yields:
        Token ids of each text, [length], int32, in the order of the texts.

    Raises:
        ValueError: `processes` is negative.
    """
    if processes < 0:
        raise ValueError(
            f"processes must be 0 (one per core) or more; got {processes}. Give 0 or leave it out."
        )
    # Parallel work is ours to share out; the library's own threads would compete with it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    batches = _batches(texts)
    first = list(itertools.islice(batches, 2))
    processes = processes or os.cpu_count() or 1
    every = itertools.chain(first, batches)
    if processes == 1 or len(first) < 2:  # one batch does not repay starting processes
        encoder = TextEncoder(spec)
        for batch in every:
            yield from encoder.encode(batch)
    else:
        yield from _encode_in_pool(every, spec, processes)


def _encode_in_pool(
    batches: Iterable[list[str]], spec: EncoderSpec, processes: int
) -> Iterator[np.ndarray]:
    # "spawn", since a fork of a process that runs TensorFlow's threads can hang.
    context = multiprocessing.get_context("spawn")
    waiting: deque[Future[list[np.ndarray]]] = deque()
    pool = ProcessPoolExecutor(processes, context, _start_worker, (spec,))
    try:
        for batch in batches:
            waiting.append(pool.submit(_encode_in_worker, batch))
            if len(waiting) > processes * _BATCHES_AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == _BATCH_TEXTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


_worker: TextEncoder | None = None


def _start_worker(spec: EncoderSpec) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    _worker = TextEncoder(spec)


def _encode_in_worker(texts: list[str]) -> list[np.ndarray]:
    assert _worker is not None
    return _worker.encode(texts)
