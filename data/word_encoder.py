"""Encoding by a memory of words, several times faster than the library's own encoding.

A byte-level vocabulary first cuts a text into words and then encodes each word by itself. Words
repeat, so most of the work is to look up what is known already, and only a new word is encoded,
by the library. The ids are the library's for every text, since nothing is taken for granted:

* how characters are classed (letter, number, space, other) is compared with the library, for
  each character when it first occurs; a text with one that is classed otherwise, because the
  Unicode versions differ, is encoded by the library as a whole;
* so is a text in which an added token occurs, such as `<|endoftext|>`.

Source: the pattern of GPT-2, https://github.com/openai/gpt-2/blob/master/src/encoder.py, line 53.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import tokenizers

# When so many words are known, they are forgotten and learned anew: about 60 MB.
MOST_WORDS = 1 << 18
_LONGEST_WORD = 64  # characters; longer ones are not remembered


def _other_numbers() -> str:
    """Numbers that `re` takes for letters, such as ½; rare ones above U+FFFF would slow it down."""
    characters = (chr(code) for code in range(0x10000))
    return "".join(c for c in characters if unicodedata.category(c) in ("Nl", "No"))


def _pattern(letter: str, number: str, others: str, space: str, no_space: str) -> re.Pattern[str]:
    """GPT-2's pattern, out of classes of characters, and one for several characters of no class.

    The order of the first three does not matter: they exclude each other. Python's own `re`, which
    has no classes of Unicode, is twice as fast as the package that has.
    """
    words = rf" ?{letter}+| ?{number}+|'(?:[stmd]|re|ve|ll)| ?{others}"
    return re.compile(rf"{words}|{space}+(?!{no_space})|{space}+")


_ASCII = _pattern("[A-Za-z]", "[0-9]", r"[^\t-\r A-Za-z0-9]+", r"[\t-\r ]", r"[^\t-\r ]")


def _unicode() -> re.Pattern[str]:
    # Python takes four separators of ASCII for spaces, which Unicode does not.
    separators, numbers = r"\x1c-\x1f", _other_numbers()
    return _pattern(
        letter=rf"[^\W\d_{numbers}]",
        number=rf"[\d{numbers}]",
        others=rf"(?:[^\w\s]+|[_{separators}]+)+",
        space=rf"[^\S{separators}]",
        no_space=rf"[\S{separators}]",
    )


class _Words(dict[str, bytes]):
    """The ids of each word, as the bytes of int32; words that are not known are added."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._backend = backend

    def __missing__(self, word: str) -> bytes:
        ids = self._backend.encode(word, add_special_tokens=False).ids
        content = np.array(ids, np.int32).tobytes()
        if len(word) <= _LONGEST_WORD:
            if len(self) >= MOST_WORDS:
                self.clear()
            self[word] = content
        return content


class WordEncoder:
    """Encodes texts as a tokenizer of the `tokenizers` library does, faster if it is byte-level."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Looks at the tokenizer.

        Args:
            backend: the tokenizer; it must not be changed any more.
        """
        self._backend = backend
        self._words = _Words(backend)
        self._any: re.Pattern[str] | None = None
        self._alike: set[str] = set()  # characters classed as in the library
        self._different: set[str] = set()
        added = backend.get_added_tokens_decoder().values()
        # Special tokens are ordinary text if the tokenizer was loaded so.
        self._added = [
            token.content
            for token in added
            if not (token.special and backend.encode_special_tokens)
        ]
        self.is_fast = _is_plain_byte_level(backend) and all(
            self._is_alike(chr(code), _ASCII) for code in range(128)
        )

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts; nothing is added at their start or end.

        Args:
            texts: any texts.

        Returns:
            Token ids of each text, [length], int32.
        """
        if not self.is_fast:
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array(encoding.ids, np.int32) for encoding in encodings]
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> np.ndarray:
        pattern = _ASCII if text.isascii() else self._unicode_pattern(text)
        if pattern is None or any(token in text for token in self._added):
            ids = self._backend.encode(text, add_special_tokens=False).ids
            return np.array(ids, np.int32)
        content = b"".join(map(self._words.__getitem__, pattern.findall(text)))
        return np.frombuffer(content, np.int32)

    def _unicode_pattern(self, text: str) -> re.Pattern[str] | None:
        """The pattern for a text with any characters; None if the library cuts it otherwise."""
        if self._any is None:
            self._any = _unicode()
        used = set(text)
        for character in used - self._alike - self._different:
            is_alike = self._is_alike(character, self._any)
            (self._alike if is_alike else self._different).add(character)
        return self._any if used.isdisjoint(self._different) else None

    def _is_alike(self, character: str, pattern: re.Pattern[str]) -> bool:
        """Whether a character is of the same class here and in the library."""
        probes = (f"a{character}1", f"!{character}!", f"_{character * 2} {character}b")
        return all(pattern.findall(probe) == self._cut(probe) for probe in probes)

    def _cut(self, text: str) -> list[str]:
        """How the library cuts a text into words."""
        pre_tokenizer = self._backend.pre_tokenizer
        assert pre_tokenizer is not None
        return [text[start:end] for _, (start, end) in pre_tokenizer.pre_tokenize_str(text)]


def _is_plain_byte_level(backend: tokenizers.Tokenizer) -> bool:
    """Whether a text is cut by GPT-2's pattern and each word always becomes the same ids."""
    content = json.loads(backend.to_str())
    pre_tokenizer = content["pre_tokenizer"] or {}
    return (
        content["normalizer"] is None
        and pre_tokenizer.get("type") == "ByteLevel"
        and pre_tokenizer.get("use_regex", True)
        and not pre_tokenizer.get("add_prefix_space", True)
        and not content["model"].get("dropout")
        and content["truncation"] is None
        and content["padding"] is None
    )
