"""The manifest: what was made, out of what and how, in a file beside the records.

`create_tfrecords.py` writes it last, so that records with a manifest are complete. Training,
evaluation and ``--check_dataset`` compare it with the config (data/manifest_check.py); records
without one still work. It is JSON, and its file names carry no folder, so that records may move.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from typing import Annotated, Any, Literal, Optional

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from data.tokenizers import Tokenizer
from utils.files import read_bytes, write_atomically

SUFFIX = ".manifest.json"
FORMAT_VERSION = 1

_STRICT = ConfigDict(strict=True, extra="forbid")
_Count = Annotated[int, Field(ge=0)]
_Positive = Annotated[int, Field(gt=0)]


@dataclass(frozen=True, config=_STRICT)
class TokenizerIdentity:
    """Which tokenizer made the ids.

    Attributes:
        name: what it was loaded from, for people.
        size: the smallest `n_vocab` that covers its ids.
        eos_id: its end of text; None if it has none.
        fingerprint: equal for two tokenizers with the same vocabulary, merges and special tokens,
            wherever they were loaded from.
    """

    name: str
    size: _Positive
    eos_id: Optional[_Count]
    fingerprint: str


@dataclass(frozen=True, config=_STRICT)
class Counts:
    """What came in and where it went, over all epochs that were packed.

    Attributes:
        documents_read: documents of the input.
        documents_kept: those whose tokens were packed.
        documents_dropped: all others, by reason.
        records: records in all files.
        tokens_read: tokens of the documents read, and separators put after those kept.
        tokens_kept: tokens in records.
        tokens_dropped: all others, by reason.
        text_bytes: UTF-8 bytes of the text, as encoded, that ``tokens_read`` counts.
    """

    documents_read: _Count
    documents_kept: _Count
    documents_dropped: dict[str, _Count]
    records: _Count
    tokens_read: _Count
    tokens_kept: _Count
    tokens_dropped: dict[str, _Count]
    text_bytes: _Count

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes of text for each token, separators counted as tokens; 0 without any."""
        return self.text_bytes / self.tokens_read if self.tokens_read else 0.0


@dataclass(frozen=True, config=_STRICT)
class Manifest:
    """Everything about one data set that the records themselves do not say.

    Attributes:
        name: first part of the names of the record files.
        tokenizer: which tokenizer made the ids.
        mode: ``chunks`` or ``documents``.
        chunk_size: the window `n_ctx` that records were cut for, which hold one id more; None in
            ``documents`` mode.
        separator: ids put after each document; in ``documents`` mode, where none are in the
            records, what training is to put there. Empty if there is none.
        options: all other options that decide which records come out, by flag without dashes.
        counts: documents, records and tokens.
        files: number of records of each record file, by its name without folder, in order.
        loss_mask: whether records say which ids count as labels.
        format_version: of this file.
    """

    name: str
    tokenizer: TokenizerIdentity
    mode: Literal["chunks", "documents"]
    chunk_size: Optional[_Positive]
    separator: tuple[_Count, ...]
    options: dict[str, Any]
    counts: Counts
    files: dict[str, _Count]
    loss_mask: bool = False
    format_version: int = FORMAT_VERSION

    @property
    def eos_id(self) -> Optional[int]:
        """The id that ends a document: the separator's last, else the tokenizer's."""
        return self.separator[-1] if self.separator else self.tokenizer.eos_id

    def to_json(self) -> str:
        """The content of a manifest file."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"


_READER = TypeAdapter(Manifest)


def manifest_path(output_dir: str, name: str) -> str:
    """Where the manifest of a data set is.

    Args:
        output_dir: folder of the records, local or `gs://`.
        name: first part of the names of the record files.

    Returns:
        The path; the file need not exist.
    """
    return os.path.join(output_dir, name + SUFFIX)


def write_manifest(manifest: Manifest, output_dir: str) -> str:
    """Writes a manifest beside its records, whole or not at all.

    Args:
        manifest: the manifest.
        output_dir: folder of the records, local or `gs://`.

    Returns:
        Its path.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = manifest_path(output_dir, manifest.name)
    write_atomically(path, manifest.to_json().encode())
    return path


def read_manifest(path: str) -> Manifest:
    """Reads a manifest.

    Args:
        path: of the file, local or `gs://`.

    Returns:
        The manifest.

    Raises:
        ValueError: it cannot be read, is damaged, or is of a later version of this project.
    """
    try:
        content = read_bytes(path)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    try:
        text = content.decode()
        values = json.loads(text)
        version = values.get("format_version") if isinstance(values, dict) else None
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise _unusable(path, f"format_version {version}, made by a later version")
        manifest = _READER.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise _unusable(path, f"{place}: {first['msg']}") from error
    except UnicodeDecodeError as error:
        raise _unusable(path, f"no UTF-8: {error}") from error
    except json.JSONDecodeError as error:
        raise _unusable(path, f"no JSON: {error}") from error
    except RecursionError as error:
        raise _unusable(path, "no JSON that can be read: nested too deeply") from error
    contradiction = _contradiction(manifest)
    if contradiction is not None:
        raise _unusable(path, contradiction)
    return manifest


def _contradiction(manifest: Manifest) -> Optional[str]:
    """What cannot be true of any records, so that somebody must have changed it."""
    counts, in_files = manifest.counts, sum(manifest.files.values())
    documents = counts.documents_kept + sum(counts.documents_dropped.values())
    tokens = counts.tokens_kept + sum(counts.tokens_dropped.values())
    in_chunks = manifest.mode == "chunks"
    chunked = counts.records * ((manifest.chunk_size or 0) + 1)
    folders = [name for name in manifest.files if os.path.basename(name) != name]
    claims = [
        (manifest.format_version >= 1, f"format_version: {manifest.format_version}"),
        (manifest.files, "files: none"),
        (not folders, f"files: {folders[:1]} in a folder"),
        (counts.records == in_files, f"counts.records: {counts.records}, files: {in_files}"),
        (
            counts.documents_read == documents,
            f"counts: {counts.documents_read} documents read, {documents} kept and dropped",
        ),
        (
            counts.tokens_read == tokens,
            f"counts: {counts.tokens_read} tokens read, {tokens} kept and dropped",
        ),
        (
            in_chunks == (manifest.chunk_size is not None),
            f"mode: {manifest.mode}, chunk_size: {manifest.chunk_size}",
        ),
        (
            not in_chunks or counts.tokens_kept == chunked,
            f"counts.tokens_kept: {counts.tokens_kept}, in chunks of chunk_size + 1: {chunked}",
        ),
    ]
    return next((claim for holds, claim in claims if not holds), None)


def _unusable(path: str, why: str) -> ValueError:
    return ValueError(
        f"manifest must be a file of format_version {FORMAT_VERSION} as data/create_tfrecords.py "
        f"writes it; got {path} ({why}). Make the records again, or remove the manifest to use "
        "them unchecked."
    )


def identify(tokenizer: Tokenizer) -> TokenizerIdentity:
    """Says which tokenizer this is.

    Args:
        tokenizer: a loaded tokenizer.

    Returns:
        Its name, size, end of text and fingerprint.
    """
    return TokenizerIdentity(
        tokenizer.name, tokenizer.size, tokenizer.eos_id, tokenizer_fingerprint(tokenizer)
    )


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of all that decides what an id means.

    The same tokenizer may come from different files: with merges written as pairs or as texts,
    with added tokens inside or outside of the vocabulary. That does not count. Neither does how
    special tokens in a text are treated, which is an option and no property of the tokenizer.

    Args:
        tokenizer: a loaded tokenizer.

    Returns:
        64 hexadecimal digits: SHA-256 of vocabulary, merges, scores and special tokens.
    """
    model = json.loads(tokenizer.to_json())["model"]
    merges = [
        tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)
        for merge in model.get("merges", [])
    ]
    vocabulary = tokenizer.vocabulary
    # Unigram models keep scores beside their tokens, which decide how a text is cut.
    scores = model["vocab"] if isinstance(model["vocab"], list) else []
    canonical = [
        model["type"],
        sorted(vocabulary.items(), key=lambda item: (item[1], item[0])),
        merges,
        scores,
        sorted(tokenizer.special_ids),
    ]
    content = json.dumps(canonical, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()
