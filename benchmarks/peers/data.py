"""Text to packed chunks on disk as users of PyTorch do it: a tokenizer in a DataLoader's workers.

``transformers`` calls its fast tokenizer; ``torch-compiled``, in which nothing of this is to be
compiled, calls the `tokenizers` library without that layer. Each worker takes its share of the
files, packs what it encodes, and the main process writes the chunks one after another.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Encode = Callable[[list[str]], list[list[int]]]
_BATCH_TEXTS = 512
_BATCH_CHUNKS = 64


def _encoder(peer: str, file: str) -> Encode:
    """What turns texts into ids; ``file`` is the tokenizer in the form of the library."""
    if peer == "transformers":
        from transformers import PreTrainedTokenizerFast

        fast = PreTrainedTokenizerFast(tokenizer_file=file)
        return lambda texts: fast(texts, return_attention_mask=False)["input_ids"]
    from tokenizers import Tokenizer

    plain = Tokenizer.from_file(file)
    return lambda texts: [x.ids for x in plain.encode_batch(texts, add_special_tokens=False)]


class Packed(IterableDataset):
    """Chunks of ids from files of JSON lines.

    Args:
        task: peer, tokenizer, files, chunk_size, separator and processes.

    Attributes:
        tokens: [processes] int64, what each worker has found, without separators.
    """

    def __init__(self, task: dict[str, Any]):
        self.tokens = torch.zeros(task["processes"], dtype=torch.int64).share_memory_()
        self._task = task
        self._encode = _encoder(task["peer"], task["tokenizer"])

    def _ids(self, files: list[str], worker: int) -> Iterator[np.ndarray]:
        lines = itertools.chain.from_iterable(map(open, files))
        while batch := list(itertools.islice(lines, _BATCH_TEXTS)):
            for ids in self._encode([json.loads(line)["text"] for line in batch]):
                self.tokens[worker] += len(ids)
                yield np.array([*ids, self._task["separator"]], np.int32)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yields [chunk_size + 1] int32."""
        info = get_worker_info()
        assert info is not None
        size = self._task["chunk_size"] + 1
        parts: list[np.ndarray] = []
        for ids in self._ids(self._task["files"][info.id :: info.num_workers], info.id):
            parts.append(ids)
            if sum(map(len, parts)) < size:
                continue
            joined = np.concatenate(parts)
            rows = joined[: len(joined) // size * size].reshape(-1, size)
            yield from torch.from_numpy(rows)
            parts = [joined[rows.size :]]


def prepare(task: dict[str, Any]) -> dict[str, float]:
    """Writes the chunks of ``task["files"]`` to ``task["output"]``; seconds and tokens."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    began = time.perf_counter()
    packed = Packed(task)
    loader = DataLoader(packed, batch_size=_BATCH_CHUNKS, num_workers=task["processes"])
    with open(task["output"], "wb") as file:
        for chunks in loader:
            chunks.numpy().tofile(file)
    return {"seconds": time.perf_counter() - began, "tokens": int(packed.tokens.sum())}


def main() -> None:
    """Does what the first argument describes in JSON, and prints what it took as JSON."""
    result = prepare(json.loads(sys.argv[1]))
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    memory = max(resource.getrusage(user).ru_maxrss for user in users) * unit
    print(json.dumps(result | {"peak_memory_bytes": memory}))


if __name__ == "__main__":
    main()
