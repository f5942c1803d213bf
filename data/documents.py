"""Finding and reading documents, as a stream and in a fixed order.

A text file is one document, and so is each file in a tar archive. Other formats
are read by lm_dataformat, except where its reader fails: tar archives with
extended headers, tar archives of compressed JSON lines, and compressed JSON
lines of several frames, of which it reads the first only, or that are cut off,
of which it does not say so.
"""

from __future__ import annotations

import gzip
import os
import random
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from lzma import LZMAError
from typing import IO, Any

from data.records import natural_sorted

_BLOCK_BYTES = 1 << 20
_TEXT_SUFFIX = ".txt"
_READER_SUFFIXES = (".jsonl", ".json.zst", ".dat.zst", ".json.gz", ".zip")
_ZSTANDARD_LINES = ".jsonl.zst"
_GZIPPED_LINES = ".jsonl.gz"
_TAR_OF_LINES = ".jsonl.zst.tar"
# Opened as streams ("|"), so that a large archive is never indexed first.
_TAR_MODES = {".tar.gz": "r|gz", ".tgz": "r|gz", ".tar.xz": "r|xz", "_data.xz": "r|xz"}
ACCEPTED_SUFFIXES = (
    _TEXT_SUFFIX,
    *_READER_SUFFIXES,
    _ZSTANDARD_LINES,
    _GZIPPED_LINES,
    _TAR_OF_LINES,
    *_TAR_MODES,
)


def find_files(
    source: str, suffixes: Sequence[str] = (), seed: int | None = None
) -> tuple[list[str], int]:
    """Lists the files to read.

    Args:
        source: a folder, searched with its subfolders, or a single file.
            Hidden files and folders are left out.
        suffixes: endings of further text files to take, such as `.py`.
        seed: shuffles the order of the files; natural order if None.

    Returns:
        Paths of the files, and the number of files of other kinds left out.

    Raises:
        ValueError: `source` is missing or holds no usable file.
    """
    if not os.path.exists(source):
        raise ValueError(
            f"input_dir must be a folder or a file that exists; got {source}. Check the path."
        )
    accepted = (*ACCEPTED_SUFFIXES, *_with_dots(suffixes))
    present = [source] if os.path.isfile(source) else _walk(source)
    usable = natural_sorted(path for path in present if path.endswith(accepted))
    if not usable:
        raise ValueError(
            f"input_dir must hold at least one file of an accepted format ({' '.join(accepted)}); "
            f"got {len(present)} other files in {source}. "
            "Add --suffix with the ending of your text files, or give another folder."
        )
    if seed is not None:
        random.Random(seed).shuffle(usable)
    return usable, len(present) - len(usable)


def read_documents(paths: Iterable[str]) -> Iterator[str]:
    """Reads the documents of several files, one after another.

    Args:
        paths: files of accepted formats; any other ending is read as a text file.

    Yields:
        The text of each document.

    Raises:
        ValueError: a file cannot be read; it is named.
    """
    import jsonlines
    import zstandard

    damage = (
        OSError,
        EOFError,
        ValueError,  # wrong UTF-8, wrong JSON
        KeyError,
        TypeError,
        LZMAError,
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        jsonlines.Error,
        zstandard.ZstdError,
    )
    for path in paths:
        documents = _read_file(path)
        while True:
            try:
                text = next(documents, None)
            except damage as error:
                raise ValueError(
                    "input file must be readable and hold text in UTF-8; "
                    f"got {path} ({_describe(error)}). Repair, convert or remove it."
                ) from error
            if text is None:
                break
            yield text


def _describe(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"an entry without the key {error}"
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _with_dots(suffixes: Sequence[str]) -> list[str]:
    return [suffix if suffix.startswith(".") else f".{suffix}" for suffix in suffixes]


def _walk(folder: str) -> list[str]:
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(parent, name) for name in names if not name.startswith(".")]
    return found


def _read_file(path: str) -> Iterator[str]:
    if path.endswith(_TAR_OF_LINES):
        yield from _read_tar_of_lines(path)
    elif path.endswith(_ZSTANDARD_LINES):
        with open(path, "rb") as file:
            yield from _read_zstandard_lines(file)
    elif path.endswith(_GZIPPED_LINES):
        with gzip.open(path, "rb") as unzipped:
            yield from _read_lines(unzipped)
    elif path.endswith(_READER_SUFFIXES):
        yield from _read_with_lm_dataformat(path)
    elif path.endswith(tuple(_TAR_MODES)):
        mode = next(mode for suffix, mode in _TAR_MODES.items() if path.endswith(suffix))
        with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
            yield from _read_tar(archive)
    else:
        with open(path, "rb") as text_file:
            yield _decode(text_file.read())


def _decode(content: bytes) -> str:
    # Line ends stay as they are, so that a text gives the same tokens in every format.
    return content.decode("utf-8-sig")


def _read_tar(archive: tarfile.TarFile) -> Iterator[str]:
    for member in archive:
        file = archive.extractfile(member)
        if file is None:  # a folder or a link
            continue
        if member.name.endswith(".xz"):  # OpenWebText is a tar archive of tar archives
            with tarfile.open(fileobj=file, mode="r|xz") as inner:
                yield from _read_tar(inner)
        else:
            yield _decode(file.read())


def _read_tar_of_lines(path: str) -> Iterator[str]:
    with tarfile.open(path, "r|") as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                yield from _read_zstandard_lines(file)


def _read_zstandard_lines(file: IO[bytes]) -> Iterator[str]:
    return _read_lines(_split_lines(_decompress_zstandard(file)))


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
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _read_lines(lines: Iterable[bytes]) -> Iterator[str]:
    import jsonlines
    from lm_dataformat import handle_jsonl

    entries = handle_jsonl(jsonlines.Reader(_not_cut_off(lines)), False, True, "\n\n")
    yield from (_text_of(entry) for entry in entries)


def _not_cut_off(lines: Iterable[bytes]) -> Iterator[bytes]:
    # The JSON lines reader would take the exception of a file cut off for the end of the file.
    try:
        yield from lines
    except EOFError as error:
        raise OSError(str(error)) from error


def _read_with_lm_dataformat(path: str) -> Iterator[str]:
    from lm_dataformat import Reader

    yield from (_text_of(entry) for entry in Reader(path).stream_data())


def _text_of(entry: Any) -> str:
    text = entry["text"] if isinstance(entry, dict) else entry
    if not isinstance(text, str):
        raise TypeError(f"a document that is no text but of type {type(text).__name__}")
    return text
