"""Encoding text so that none of it becomes a special token, whatever stands in it.

The library no longer looks for special tokens if it is told so, but its model still has them in
its vocabulary: byte pair encoding may join `US` and `ER` to a special `USER`.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import tokenizers
from tokenizers import decoders


def without_special_tokens(
    backend: tokenizers.Tokenizer, special: Collection[str], name: str
) -> tokenizers.Tokenizer:
    """Makes a tokenizer that encodes special tokens in a text as ordinary characters.

    Args:
        backend: the tokenizer; it stays as it is.
        special: special tokens, as they stand in the vocabulary.
        name: what the tokenizer was loaded from, for messages.

    Returns:
        A tokenizer with the same ids, without the merges that end in a special token.

    Raises:
        ValueError: a special token is all that the vocabulary has for some text.
    """
    content = json.loads(backend.to_str())
    model = content["model"]
    if model["type"] == "BPE":
        prefix = model.get("continuing_subword_prefix") or ""
        model["merges"] = [pair for pair in model["merges"] if _joined(pair, prefix) not in special]
    encoder = tokenizers.Tokenizer.from_str(json.dumps(content))
    encoder.encode_special_tokens = True
    vocabulary = encoder.get_vocab(with_added_tokens=True)
    unknown = {model.get("unk_token")}
    for token in sorted(set(special) - unknown):
        texts = _texts_of(token, encoder)
        found = (encoder.encode(text, add_special_tokens=False).ids for text in texts)
        if any(vocabulary[token] in ids for ids in found):
            raise ValueError(
                f"special tokens must have other tokens for their characters to be treated as "
                f"text; got {token!r} of {name}, which has none. Leave out --treat_eot_as_text, or "
                "use another tokenizer."
            )
    return encoder


def _joined(pair: Any, prefix: str) -> str:
    first, second = pair.split(" ") if isinstance(pair, str) else pair
    return str(first + second.removeprefix(prefix))


def _texts_of(token: str, backend: tokenizers.Tokenizer) -> list[str]:
    """What may be encoded as this token: its name, and what a byte-level decoder makes of it."""
    texts = [token]
    if isinstance(backend.decoder, decoders.ByteLevel):
        texts.append(backend.decoder.decode([token]))
    return texts
