"""Finding input files, and reading documents as a stream in a fixed order.

A document has a **key**: the number of its file, in the order of the files, and its own number
in the file, both from 0. Everything that depends on an order of documents depends on it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from data.entries import Damage
from data.formats import ACCEPTED_SUFFIXES, read_entries
from data.records import natural_sorted
from utils.files import exists, files_below, is_folder, is_remote

DEFAULT_TEXT_KEY = "text"
PROMPT_KEY, COMPLETION_KEY = "prompt", "completion"
_PARAGRAPHS = "\n\n"  # joins a text that is a list, as lm_dataformat does
_SHOWN_KEYS = 5


class Key(NamedTuple):
    """The place of a document among all documents.

    Attributes:
        file: number of its file.
        number: its number in the file; documents that cannot be read count.
    """

    file: int
    number: int


@dataclass(frozen=True)
class Document:
    """A text to be encoded.

    Attributes:
        key: its place.
        text: the text; the completion where there is a prompt.
        prompt: text before it that is read but not learned; None for plain documents.
    """

    key: Key
    text: str
    prompt: str | None = None


@dataclass(frozen=True)
class BadDocument:
    """A document that cannot be used.

    Attributes:
        key: its place.
        path: its file.
        position: where it is in the file, for people; empty if it is the whole file.
        why: a few words.
    """

    key: Key
    path: str
    position: str
    why: str

    def __str__(self) -> str:
        """Names it."""
        position = f"{self.position}: " if self.position else ""
        return f"{self.path} ({position}{self.why})"

    def error(self) -> ValueError:
        """The error that names it."""
        return ValueError(
            f"input file must be readable and hold text in UTF-8; got {self}. "
            "Repair, convert or remove it."
        )


def find_files(source: str, suffixes: Sequence[str] = ()) -> tuple[list[str], int]:
    """Lists the files to read.

    Args:
        source: a folder, searched with its subfolders, or a single file, local or `gs://`.
            Hidden files and folders are left out. Links are followed, to each folder once.
        suffixes: endings of further text files to take, such as `.py`.

    Returns:
        Paths of the files, in natural order, and the number of files of other
        kinds left out.

    Raises:
        ValueError: `source` is missing, holds no usable file, or something that cannot be read.
    """
    accepted = (*ACCEPTED_SUFFIXES, *_with_dots(suffixes))
    try:
        if not exists(source):
            raise ValueError(
                f"input_dir must be a folder or a file that exists; got {source}. Check the path."
            )
        present = files_below(source) if is_folder(source) else [source]
        usable = natural_sorted(path for path in present if path.endswith(accepted))
        for path in present:
            _check_file(path, path.endswith(accepted))
    except OSError as error:
        raise ValueError(
            f"input_dir must hold folders and files that can be read; got {error.filename} "
            f"({error.strerror}). Repair or remove it, or correct its permissions."
        ) from error
    if not usable:
        raise ValueError(
            f"input_dir must hold at least one file of an accepted format ({' '.join(accepted)}); "
            f"got {len(present)} other files in {source}. "
            "Add --suffix with the ending of your text files, or give another folder."
        )
    return usable, len(present) - len(usable)


def read_documents(paths: Iterable[str], text_key: str = DEFAULT_TEXT_KEY) -> Iterator[str]:
    """Reads the texts of several files, one after another.

    Args:
        paths: files of accepted formats; any other ending is read as a text file.
        text_key: key of the text in JSON objects.

    Yields:
        The text of each document; a prompt and its completion as one.

    Raises:
        ValueError: a document cannot be read; it is named.
    """
    for document in read_keyed_documents(paths, text_key):
        if isinstance(document, BadDocument):
            raise document.error()
        yield (document.prompt or "") + document.text


def read_keyed_documents(
    paths: Iterable[str],
    text_key: str = DEFAULT_TEXT_KEY,
    start: tuple[int, int] = (0, 0),
    first_file: int = 0,
) -> Iterator[Document | BadDocument]:
    """Reads the documents of several files, one after another.

    Args:
        paths: files of accepted formats; any other ending is read as a text file.
        text_key: key of the text in JSON objects. Objects without it may have `prompt` and
            `completion`.
        start: key of the first document to yield. Files before its file are not opened.
        first_file: number of the first of the files, if they are not all that there are.

    Yields:
        Each document, or what stands in its place where it cannot be read.
    """
    for file, path in enumerate(paths, first_file):
        if file < start[0]:
            continue
        for number, (position, value) in enumerate(read_entries(path)):
            key = Key(file, number)
            if key < start:
                continue
            prompt, text = _prompt_and_text(value, text_key)
            if isinstance(text, Damage):
                yield BadDocument(key, path, position, text.why)
            else:
                yield Document(key, text, prompt)


def _prompt_and_text(value: Any, text_key: str) -> tuple[str | None, str | Damage]:
    """What an entry says: the prompt if it has one, and the text."""
    prompt = None
    if isinstance(value, dict):
        if text_key in value:
            value = value[text_key]
            if isinstance(value, list) and all(isinstance(part, str) for part in value):
                value = _PARAGRAPHS.join(value)
        elif PROMPT_KEY in value and COMPLETION_KEY in value:
            prompt, value = value[PROMPT_KEY], value[COMPLETION_KEY]
            if value == "":
                value = Damage("a completion without text")
        else:
            keys = ", ".join(repr(key) for key in list(value)[:_SHOWN_KEYS]) or "none"
            value = Damage(f"an entry without the key {text_key!r}; its keys are {keys}")
    if isinstance(value, Damage):
        return None, value
    for part in (value, "" if prompt is None else prompt):
        if not isinstance(part, str):
            return None, Damage(f"a document that is no text but of type {type(part).__name__}")
        if not is_text(part):
            return None, Damage("half of a character that takes two (a lone surrogate)")
    return prompt, value


def is_text(text: str) -> bool:
    """Whether it can be encoded: no half of a character that takes two is in it."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_dots(suffixes: Sequence[str]) -> list[str]:
    return [suffix if suffix.startswith(".") else f".{suffix}" for suffix in suffixes]


def _check_file(path: str, is_input: bool) -> None:
    """Refuses what cannot be read as a file, before it is waited for.

    Raises:
        OSError: it is a link that leads nowhere, or an input file that is a pipe or a device.
    """
    if is_remote(path) or not (is_input or os.path.islink(path)):
        return
    mode = os.stat(path).st_mode
    if is_input and not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "no regular file", path)
