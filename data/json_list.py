"""A JSON list, entry by entry, of which no more is in memory than the largest entry takes."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any

_SPACE = " \t\n\r"
# Of a cut number, word or escape so much may be left over; a cut string is told from its start on.
_LONGEST_REST = len("-Infinity")
_CUT_STRING = "Unterminated string"


class _Text:
    """What of a text is still to be parsed."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.ended = False
        self.rest, self.position = "", 0

    def grow(self, needed: int) -> None:
        """Reads on until so many characters more are there, or the end."""
        parts, size = [self.rest[self.position :]], 0
        while size < needed and not self.ended:
            block = next(self._blocks, None)
            self.ended = block is None
            parts.append(self._decoder.decode(block or b"", final=self.ended))
            size += len(parts[-1])
        self.rest, self.position = "".join(parts), 0

    def next_sign(self) -> str:
        """The character behind spaces, which are passed over; empty at the end."""
        while True:
            while self.position < len(self.rest) and self.rest[self.position] in _SPACE:
                self.position += 1
            if self.position < len(self.rest) or self.ended:
                return self.rest[self.position : self.position + 1]
            self.grow(1)

    def value(self) -> Any:
        """The value that begins here.

        A value that is cut off is tried again with twice the text, so that all tries together
        take no longer than a few.
        """
        parse = json.JSONDecoder().raw_decode
        while True:
            surely_there = len(self.rest) if self.ended else len(self.rest) - _LONGEST_REST
            try:
                value, end = parse(self.rest, self.position)
                if end <= surely_there:
                    self.position = end
                    return value
            except json.JSONDecodeError as error:
                is_cut = error.pos >= surely_there or error.msg.startswith(_CUT_STRING)
                if self.ended or not is_cut:
                    raise ValueError(error.msg) from error  # its position is one in the rest
            except RecursionError as error:
                raise ValueError("a value that is nested too deeply") from error
            self.grow(len(self.rest) - self.position)


def read_json_list(blocks: Iterable[bytes]) -> Iterator[Any]:
    """Parses a JSON list.

    Args:
        blocks: the text in UTF-8, cut anywhere.

    Yields:
        Its entries.

    Raises:
        ValueError: it is no list, not whole, or no UTF-8.
    """
    text = _Text(blocks)
    if text.next_sign() != "[":
        raise ValueError("a file that is no JSON list of documents")
    text.position += 1
    sign = text.next_sign()
    while sign != "]":
        yield text.value()
        sign = text.next_sign()
        if sign == ",":
            text.position += 1
            text.next_sign()
        elif sign != "]":
            raise ValueError("Expecting ',' delimiter" if sign else "it ends within the list")
    text.position += 1
    if text.next_sign():
        raise ValueError("Extra data behind the list")
