"""What tells records from others under the same names, without reading them all.

A run keeps it, so that one that is resumed on records that were made again can say so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Optional

from data.manifest_check import find_manifests, plain_path
from data.records import compression_of, is_local, natural_sorted, read_labelled_records
from data.sources import Source
from utils.files import size_and_time

Fingerprint = dict[str, Optional[str]]
"""Hashes by what they are of; None where that is not known, and so says nothing."""


def fingerprints(sources: Sequence[Source]) -> dict[str, Fingerprint]:
    """The fingerprints of all datasets, by their names.

    Raises:
        ValueError: a file is damaged.
    """
    return {source.id: _fingerprint(source) for source in sources}


def _fingerprint(source: Source) -> Fingerprint:
    counts = dict(zip(source.files, source.counts))
    files = natural_sorted(counts)
    # The name only: records may move to another folder, or be compressed.
    names = [plain_path(path).rpartition("/")[2] for path in files]
    sizes = None
    if all(is_local(path) and not compression_of(path) for path in files):
        sizes = [size_and_time(path)[0] for path in files]
    first = next(path for path in files if counts[path])
    ids, mask = next(read_labelled_records(first))
    return {
        "files": _hash([names, [counts[path] for path in files]]),
        "sizes": None if sizes is None else _hash(sizes),
        "first record": _hash([ids.tolist(), None if mask is None else mask.tolist()]),
        "manifests": _manifests(files),
    }


def _manifests(files: Sequence[str]) -> Optional[str]:
    found = [dataclasses.asdict(item.manifest) for item in find_manifests(files)]
    for values in found:
        values["tokenizer"].pop("name")  # where it was loaded from
        values["files"] = {plain_path(name): count for name, count in values["files"].items()}
    return _hash(found) if found else None


def _hash(value: Any) -> str:
    content = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()
