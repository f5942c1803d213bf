"""Numbers of a dataset as lines: how long its records are, and what its manifest says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.names import CHUNKS
from data.manifest import Counts
from data.manifest_check import FoundManifest

_BAR_COLUMNS = 30


def histogram(lengths: Sequence[int]) -> list[str]:
    """Draws how often records are how long, in classes that double.

    Args:
        lengths: ids of each record.

    Returns:
        One line per class from the first to the last that is not empty; none if all records are
        equally long.
    """
    if len(set(lengths)) < 2:
        return []
    # Class 0 is length 0, class k holds 2^(k - 1) to 2^k - 1.
    classes = np.array([int(length).bit_length() for length in lengths])
    counts = np.bincount(classes)
    low, high = int(classes.min()), int(classes.max())
    ranges = [f"{1 << number >> 1:,} to {(1 << number) - 1:,}" for number in range(high + 1)]
    ranges[0] = "0"
    ranges[1:2] = ["1"] if high else []
    width = max(len(text) for text in ranges[low:])
    digits = len(f"{counts.max():,}")
    lines = []
    for number in range(low, high + 1):
        count = int(counts[number])
        bar = "█" * -(-count * _BAR_COLUMNS // int(counts.max()))
        lines.append(f"{ranges[number]:>{width}}  {count:>{digits},}  {bar}".rstrip())
    return lines


def _of_reasons(counts: Mapping[str, int]) -> str:
    reasons = [f"{count:,} {reason}" for reason, count in counts.items() if count]
    return f" ({', '.join(reasons)})" if reasons else ""


def _count_lines(counts: Counts) -> list[str]:
    dropped_documents = sum(counts.documents_dropped.values())
    dropped_tokens = sum(counts.tokens_dropped.values())
    return [
        f"documents  {counts.documents_read:,} read = {counts.documents_kept:,} kept + "
        f"{dropped_documents:,} dropped{_of_reasons(counts.documents_dropped)}",
        f"tokens     {counts.tokens_read:,} read = {counts.tokens_kept:,} kept + "
        f"{dropped_tokens:,} dropped{_of_reasons(counts.tokens_dropped)}; "
        f"{counts.text_bytes:,} bytes of text, {counts.bytes_per_token:.2f} per token",
    ]


def _is_set(value: Any) -> bool:
    return value is not None and value is not False and value != []


def manifest_lines(found: Sequence[FoundManifest]) -> list[str]:
    """Sums up the manifests of a dataset.

    Args:
        found: the manifests.

    Returns:
        Lines that begin with a name of up to 10 characters.
    """
    if not found:
        return ["manifest   none: nothing is known of the tokenizer that made the records"]
    lines = []
    for item in found:
        manifest = item.manifest
        tokenizer = manifest.tokenizer
        if manifest.mode == CHUNKS and manifest.chunk_size is not None:
            made = f"chunks of {manifest.chunk_size:,} + 1 ids"
        else:
            made = "whole documents"
        separator = " ".join(str(i) for i in manifest.separator) or "none"
        options = " ".join(
            f"{name}={value}" for name, value in manifest.options.items() if _is_set(value)
        )
        lines += [
            f"manifest   {item.path}: {made} in {len(manifest.files):,} file(s), "
            f"{manifest.counts.records:,} records, separator {separator}"
            + (", loss mask" if manifest.loss_mask else ""),
            f"tokenizer  {tokenizer.name}, {tokenizer.size:,} ids, end of text "
            f"{tokenizer.eos_id}, fingerprint {tokenizer.fingerprint[:8]}",
            *_count_lines(manifest.counts),
            f"options    {options or 'none'}",
        ]
    return lines
