"""The ids that `--separator` puts after each document."""

from __future__ import annotations

import json
import re

import numpy as np

from data.documents import is_text
from data.tokenizers import Tokenizer


def parse_separator(value: str | None, tokenizer: Tokenizer) -> np.ndarray:
    """Finds the ids that end a document.

    Args:
        value: ids (`[0]`, `0,1`), a text to encode, or None for the end of text.
        tokenizer: the tokenizer.

    Returns:
        Token ids, [length], int32, at least one.

    Raises:
        ValueError: an id is not in the vocabulary, or there is no end of text.
    """
    if value is None:
        if tokenizer.eos_id is None:
            raise ValueError(
                f"tokenizer must have an end-of-text token; got none in {tokenizer.name}. "
                "Give the ids of a separator with --separator."
            )
        return np.array([tokenizer.eos_id], np.int32)
    ids = _listed_ids(value)
    if ids is None:
        ids = tokenizer.encode(value) if is_text(value) else []
    if not ids or not 0 <= min(ids) <= max(ids) < tokenizer.size:
        raise ValueError(
            f"--separator must be one or more ids from 0 to {tokenizer.size - 1}, or a text; "
            f"got {value!r}. Leave it out to use the tokenizer's end of text."
        )
    return np.array(ids, np.int32)


def _listed_ids(value: str) -> list[int] | None:
    """The ids that a separator lists; None if it is a text, such as `[SEP]`.

    Raises:
        ValueError: it is a JSON list of something else than whole numbers.
    """
    numbers = value.strip().strip("[]").replace(",", " ").split()
    if numbers and all(re.fullmatch(r"[+-]?[0-9]+", number) for number in numbers):
        return [int(number) for number in numbers]
    try:
        is_list = isinstance(json.loads(value), list)
    except (ValueError, RecursionError):
        is_list = False
    if is_list:
        raise ValueError(
            f"--separator in brackets must list token ids, as in '[0]'; got {value!r}. Write whole "
            "numbers, or a text that is no JSON list."
        )
    return None
