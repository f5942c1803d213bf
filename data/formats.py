"""What is in an input file, entry by entry, each with its place, in every accepted format.

The formats are those of lm_dataformat, compressed tar archives, and JSON lines with any
compression. They are read here, since lm_dataformat's reader does not say where a damaged entry
is, ends silently where a compressed file is cut off, reads only the first frame of several, and
fails at tar archives with extended headers.

An entry that is damaged alone is reported in its place, and reading goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import IO

from data.archives import read_tar, read_tar_of, read_zip
from data.decompression import decompress, open_blocks, open_decompressed
from data.entries import READ_ERRORS, Damage, Entry, decode, parse
from data.json_list import read_json_list
from utils.files import open_bytes

_READ_BYTES = 1 << 24
_DAT_HEADER_BYTES = 16  # digits of the length of the text that follows
TEXT_SUFFIX = ".txt"


def read_entries(path: str) -> Iterator[Entry]:
    """Reads a file; damage that hides the rest of it is its last entry.

    Args:
        path: file of an accepted format, local or remote; any other ending is read as one text.

    Yields:
        Its entries.
    """
    # Longest first, since `.jsonl.gz` ends in `.gz` too.
    suffixes = sorted(_READERS, key=len, reverse=True)
    reader = next((_READERS[suffix] for suffix in suffixes if path.endswith(suffix)), _one_text)
    where = ""
    try:
        with open_bytes(path) as file:
            for entry in reader(file):
                where = entry[0]
                yield entry
    except READ_ERRORS as error:
        rest = "; what follows in the file is lost" if where else ""
        yield (f"after {where}" if where else ""), Damage.from_error(error, rest)


def _one_text(file: IO[bytes]) -> Iterator[Entry]:
    yield "", decode(file.read())


def _json_lines(lines: Iterable[bytes], prefix: str = "") -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{prefix}line {number}", parse(line)


def _compressed_json_lines(kind: str) -> Callable[[IO[bytes]], Iterator[Entry]]:
    return lambda file: _json_lines(open_decompressed(file, kind))


def _gzipped_text_lines(file: IO[bytes]) -> Iterator[Entry]:
    for number, line in enumerate(open_decompressed(file, "gz"), 1):
        yield f"line {number}", decode(line)


def _zstandard_json(file: IO[bytes]) -> Iterator[Entry]:
    for number, value in enumerate(read_json_list(decompress(file, "zst")), 1):
        yield f"entry {number}", value


def _zstandard_dat(file: IO[bytes]) -> Iterator[Entry]:
    content, number = open_decompressed(file, "zst"), 0
    while header := content.read(_DAT_HEADER_BYTES):
        number += 1
        if len(header) < _DAT_HEADER_BYTES:
            raise EOFError(f"entry {number} ends too early")
        if not header.isdigit():
            raise ValueError(
                f"entry {number} must begin with 16 digits, its length; got {header!r}"
            )
        yield f"entry {number}", decode(_read_exactly(content, int(header), number))


def _read_exactly(file: IO[bytes], size: int, number: int) -> bytes:
    parts = []
    while size:
        # Not all at once, since memory for a damaged length may not be there.
        part = file.read(min(size, _READ_BYTES))
        if not part:
            raise EOFError(f"entry {number} ends too early")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _compressed_tar(kind: str) -> Callable[[IO[bytes]], Iterator[Entry]]:
    # Read as a stream, so that a large archive is never indexed first.
    return lambda file: read_tar(open_blocks(file, kind))


def _tar_of_json_lines(file: IO[bytes]) -> Iterator[Entry]:
    return read_tar_of(
        file, lambda member, prefix: _json_lines(open_decompressed(member, "zst"), prefix)
    )


_READERS: dict[str, Callable[[IO[bytes]], Iterator[Entry]]] = {
    TEXT_SUFFIX: _one_text,
    ".jsonl": _json_lines,
    ".jsonl.gz": _compressed_json_lines("gz"),
    ".json.gz": _compressed_json_lines("gz"),
    ".gz": _gzipped_text_lines,
    ".jsonl.zst": _compressed_json_lines("zst"),
    ".jsonl.zst.tar": _tar_of_json_lines,
    ".json.zst": _zstandard_json,
    ".dat.zst": _zstandard_dat,
    ".zip": read_zip,
    ".tar.gz": _compressed_tar("gz"),
    ".tgz": _compressed_tar("gz"),
    ".tar.xz": _compressed_tar("xz"),
    "_data.xz": _compressed_tar("xz"),
}
ACCEPTED_SUFFIXES = tuple(_READERS)
