"""Writes the weights of a Hugging Face model as safetensors, one tensor at a time.

The library's own writer wants all tensors of a file in memory. The format is an 8-byte length, a
JSON header with every tensor's place, and the tensors' bytes; the library reads the result back.

Source: the format's description in the README of huggingface/safetensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

import numpy as np

from interop.hf_files import SAFETENSORS, SAFETENSORS_INDEX, SafetensorsFiles
from interop.tensors import DTYPES, Part, Source, TensorSpec, checksum, grouped
from utils.files import write_atomically

_ALIGNMENT = 8  # of the first tensor, in bytes
_FORMAT_NAMES = {DTYPES["fp32"]: "F32", DTYPES["bf16"]: "BF16", DTYPES["fp16"]: "F16"}


class HfTarget:
    """Writes safetensors shards.

    Args:
        folder: of the output.
        workshop: folder of unfinished shards, within it.
        most_bytes: of a shard; a larger tensor has one of its own.
    """

    def __init__(self, folder: str, workshop: str, most_bytes: int):
        self._folder = folder
        self._workshop = workshop
        self._most_bytes = most_bytes

    def parts(self, specs: Mapping[str, TensorSpec]) -> list[Part]:
        """One shard per part."""
        groups = grouped(specs, self._most_bytes)
        if len(groups) == 1:
            return [Part(SAFETENSORS, groups[0])]
        return [
            Part(f"model-{number:05d}-of-{len(groups):05d}.safetensors", group)
            for number, group in enumerate(groups, start=1)
        ]

    def files(self, parts: Sequence[Part]) -> list[str]:
        """Names of the shards and of their index."""
        return [part.file for part in parts] + [SAFETENSORS_INDEX] * (len(parts) > 1)

    def write(self, part: Part, source: Source) -> dict[str, int]:
        """Writes one shard; see ``Target``."""
        path = os.path.join(self._workshop, part.file)
        checksums = {}
        with open(f"{path}.partial", "wb") as file:
            file.write(_header(part))
            for name in part.specs:
                array = np.ascontiguousarray(source.read(name))
                checksums[name] = checksum(array)
                file.write(array.reshape(-1).view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.partial", path)
        return checksums

    def finished(self, parts: Sequence[Part]) -> set[str]:
        """Files of the parts that are whole; see ``Target``."""
        return {part.file for part in parts if self._is_whole(part)}

    def _is_whole(self, part: Part) -> bool:
        size = len(_header(part)) + sum(spec.size_bytes for spec in part.specs.values())
        paths = [os.path.join(place, part.file) for place in (self._workshop, self._folder)]
        return any(os.path.isfile(path) and os.path.getsize(path) == size for path in paths)

    def finish(self, parts: Sequence[Part]) -> Source:
        """Moves the shards, and writes their index; see ``Target``."""
        for part in parts:
            path = os.path.join(self._workshop, part.file)
            if os.path.isfile(path):
                os.replace(path, os.path.join(self._folder, part.file))
        if len(parts) > 1:
            size = sum(spec.size_bytes for part in parts for spec in part.specs.values())
            index = {
                "metadata": {"total_size": size},
                "weight_map": {name: part.file for part in parts for name in part.specs},
            }
            path = os.path.join(self._folder, SAFETENSORS_INDEX)
            write_atomically(path, (json.dumps(index, indent=2) + "\n").encode())
        return SafetensorsFiles([os.path.join(self._folder, part.file) for part in parts])


def _header(part: Part) -> bytes:
    """Length and JSON header of a shard; blanks fill it up to the alignment."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    offset = 0
    for name, spec in part.specs.items():
        end = offset + spec.size_bytes
        entries[name] = {
            "dtype": _FORMAT_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
