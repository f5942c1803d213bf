"""What is in an input file, entry by entry, each with its place, in every accepted format.

The formats are those of lm_dataformat, compressed tar archives, and JSON lines with any
compression. They are read here, since lm_dataformat's reader does not say where a damaged entry
is, ends silently where a compressed file is cut off, reads only the first frame of several, and
fails at tar archives with extended headers.

An entry that is damaged alone is reported in its place, and reading goes on behind it.
"""

from __future__ import annotations

import gzip
import json
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from lzma import LZMAError
from typing import IO, Any

from data.json_list import read_json_list
from utils.files import open_bytes

_BLOCK_BYTES = 1 << 16  # compressed, of which some megabytes may become
_DAT_HEADER_BYTES = 16  # digits of the length of the text that follows
_ZIP_ENCRYPTED = 1  # bit of a member's flags
TEXT_SUFFIX = ".txt"


@dataclass(frozen=True)
class Damage:
    """Stands for an entry that cannot be read.

    Attributes:
        why: a few words.
    """

    why: str


Entry = tuple[str, Any]
"""Where it is in its file, empty for the whole; and a text, a value of JSON, or a Damage."""


def read_entries(path: str) -> Iterator[Entry]:
    """Reads a file; damage that hides the rest of it is its last entry.

    Args:
        path: file of an accepted format, local or remote; any other ending is read as one text.

    Yields:
        Its entries.
    """
    import zstandard

    # Longest first, since `.jsonl.gz` ends in `.gz` too.
    suffixes = sorted(_READERS, key=len, reverse=True)
    reader = next((_READERS[suffix] for suffix in suffixes if path.endswith(suffix)), _one_text)
    where = ""
    try:
        with open_bytes(path) as file:
            for entry in reader(file):
                where = entry[0]
                yield entry
    except (
        OSError,
        EOFError,
        ValueError,
        LZMAError,
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        zstandard.ZstdError,
    ) as error:
        lines = str(error).splitlines()
        why = lines[0] if lines else type(error).__name__
        yield (f"after {where}" if where else ""), Damage(why)


def _decode(content: bytes) -> str | Damage:
    try:
        # Line ends stay as they are, so that a text gives the same tokens in every format.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Damage(str(error))


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except ValueError as error:  # wrong UTF-8 or wrong JSON
        return Damage(str(error))


def _one_text(file: IO[bytes]) -> Iterator[Entry]:
    yield "", _decode(file.read())


def _json_lines(lines: Iterable[bytes], prefix: str = "") -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{prefix}line {number}", _parse(line)


def _gzipped_json_lines(file: IO[bytes]) -> Iterator[Entry]:
    with gzip.open(file, "rb") as lines:
        yield from _json_lines(lines)


def _gzipped_text_lines(file: IO[bytes]) -> Iterator[Entry]:
    with gzip.open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            yield f"line {number}", _decode(line)


def _zstandard_json_lines(file: IO[bytes], prefix: str = "") -> Iterator[Entry]:
    return _json_lines(_split_lines(_decompress_zstandard(file)), prefix)


def _zstandard_json(file: IO[bytes]) -> Iterator[Entry]:
    for number, value in enumerate(read_json_list(_decompress_zstandard(file)), 1):
        yield f"entry {number}", value


def _zstandard_dat(file: IO[bytes]) -> Iterator[Entry]:
    blocks = _decompress_zstandard(file)
    content, number = bytearray(), 0

    def take(size: int) -> bytes:
        while len(content) < size and (block := next(blocks, b"")):
            content.extend(block)
        taken = bytes(content[:size])
        del content[:size]
        return taken

    while header := take(_DAT_HEADER_BYTES):
        number += 1
        size = int(header)
        text = take(size)
        if len(text) < size:
            raise EOFError(f"entry {number} ends too early")
        yield f"entry {number}", _decode(text)


def _zip_archive(file: IO[bytes]) -> Iterator[Entry]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            position = f"member {info.filename}"
            if info.flag_bits & _ZIP_ENCRYPTED:
                yield position, Damage("it is encrypted")
            elif not info.is_dir():
                yield position, _decode(archive.read(info))


def _tar_archive(mode: str) -> Callable[[IO[bytes]], Iterator[Entry]]:
    def read(file: IO[bytes]) -> Iterator[Entry]:
        # Opened as a stream ("|"), so that a large archive is never indexed first.
        with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
            yield from _tar_members(archive)

    return read


def _tar_members(archive: tarfile.TarFile, prefix: str = "") -> Iterator[Entry]:
    for member in archive:
        file = archive.extractfile(member)
        if file is None:  # a folder or a link
            continue
        name = prefix + member.name
        if name.endswith(".xz"):  # OpenWebText is a tar archive of tar archives
            with tarfile.open(fileobj=file, mode="r|xz") as inner:
                yield from _tar_members(inner, f"{name}/")
        else:
            yield f"member {name}", _decode(file.read())


def _tar_of_json_lines(file: IO[bytes]) -> Iterator[Entry]:
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for member in archive:
            lines = archive.extractfile(member)
            if lines is not None:
                yield from _zstandard_json_lines(lines, f"member {member.name}, ")


def _decompress_zstandard(file: IO[bytes]) -> Iterator[bytes]:
    """Decompresses all frames; the library's reader ends silently where a file is cut off."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    frame = None
    while block := file.read(_BLOCK_BYTES):
        while block:
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(block)
            block = frame.unused_data if frame.eof else b""
            if frame.eof:
                frame = None
    if frame is not None:
        raise EOFError("it ends in the middle of a frame")


def _split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []  # of a line that spans blocks
    for block in blocks:
        first, *lines = block.split(b"\n")
        rest.append(first)
        if lines:
            yield b"".join(rest)
            yield from lines[:-1]
            rest = lines[-1:]
    if last := b"".join(rest):
        yield last


_READERS: dict[str, Callable[[IO[bytes]], Iterator[Entry]]] = {
    TEXT_SUFFIX: _one_text,
    ".jsonl": _json_lines,
    ".jsonl.gz": _gzipped_json_lines,
    ".json.gz": _gzipped_json_lines,
    ".gz": _gzipped_text_lines,
    ".jsonl.zst": _zstandard_json_lines,
    ".jsonl.zst.tar": _tar_of_json_lines,
    ".json.zst": _zstandard_json,
    ".dat.zst": _zstandard_dat,
    ".zip": _zip_archive,
    ".tar.gz": _tar_archive("r|gz"),
    ".tgz": _tar_archive("r|gz"),
    ".tar.xz": _tar_archive("r|xz"),
    "_data.xz": _tar_archive("r|xz"),
}
ACCEPTED_SUFFIXES = tuple(_READERS)
