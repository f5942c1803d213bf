"""Compressed files, read to their very end.

A file may consist of several streams, one behind the other, as `cat`, `pigz` and `xz` make them.
All of them are read, their checksums are compared, and an end that is missing or is something
else is an error. For gzip the standard library does that. Its reader of xz takes whatever is no
stream for the end, and zstandard's reads the first frame only.
"""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Iterator
from typing import IO, Any, cast

_BLOCK_BYTES = 1 << 16  # compressed, of which some megabytes may become


def decompress(file: IO[bytes], kind: str) -> Iterator[bytes]:
    """Decompresses a file.

    Args:
        file: the compressed file.
        kind: `gz`, `xz` or `zst`.

    Yields:
        What is in it, in blocks of any size.

    Raises:
        EOFError: it ends too early.
        OSError: it cannot be read, or is damaged.
        ValueError: it is damaged.
    """
    blocks = _gzip_blocks(file) if kind == "gz" else _blocks(file, kind)
    is_empty = True
    for block in blocks:
        is_empty = False
        yield block
    if is_empty and not file.tell():
        raise EOFError("it is empty, which no compressed file is")


def open_decompressed(file: IO[bytes], kind: str) -> IO[bytes]:
    """Opens a compressed file to be read forwards; arguments and errors as `decompress`."""
    return io.BufferedReader(_Blocks(decompress(file, kind)), _BLOCK_BYTES)


def open_blocks(file: IO[bytes], kind: str) -> IO[bytes]:
    """As `open_decompressed`, but a read may give less than is asked for.

    So all that stands before damage is given before it is reported.
    """
    return cast(IO[bytes], _Blocks(decompress(file, kind)))


def _gzip_blocks(file: IO[bytes]) -> Iterator[bytes]:
    with gzip.open(file, "rb") as content:
        while block := content.read1(_BLOCK_BYTES):
            yield block


def _blocks(file: IO[bytes], kind: str) -> Iterator[bytes]:
    import zstandard

    stream, is_behind = None, False
    try:
        while block := file.read(_BLOCK_BYTES):
            while block:
                if stream is None:
                    # Behind a stream of xz zeros may stand, up to a whole number of words.
                    block = block.lstrip(b"\0") if is_behind and kind == "xz" else block
                    if not block:
                        break
                    stream = _new_stream(kind)
                yield stream.decompress(block)
                block = b""
                if stream.eof:
                    block, stream, is_behind = stream.unused_data, None, True
    except (lzma.LZMAError, zstandard.ZstdError) as error:
        raise ValueError(f"damaged {kind} data: {error}") from error
    if stream is not None:
        raise EOFError(f"it ends in the middle of its {kind} data")


def _new_stream(kind: str) -> Any:
    import zstandard

    if kind == "xz":
        return lzma.LZMADecompressor(lzma.FORMAT_XZ)
    # Windows as large as the format has them; memory is taken for what a frame needs.
    return zstandard.ZstdDecompressor(max_window_size=1 << zstandard.WINDOWLOG_MAX).decompressobj()


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")
        self._error: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._error is not None:  # an iterator that has failed would look like one at its end
            raise self._error
        try:
            while not self._rest:
                block = next(self._blocks, None)
                if block is None:
                    return 0
                self._rest = memoryview(block)
        except Exception as error:
            self._error = error
            raise
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
