"""Records as a person reads them: on one line, with all that is no text made visible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Optional

import numpy as np

from configs.schema import Config
from data.tokenizers import Tokenizer

LEGEND = "⟦eos⟧ separator, ⟦pad⟧ padding, ⏎ line end, ⇥ tab, ⟨…⟩ no labels (loss_mask 0)"

_SAMPLE_TOKENS = 60
_AROUND_PLACE_TOKENS = 12


def sample(
    tokenizer: Tokenizer, ids: np.ndarray, mask: Optional[np.ndarray], config: Config
) -> str:
    """Shows the start of a record, and what is around later places that tell something.

    These are the first separator and the first change between labels and none.

    Args:
        tokenizer: of the records.
        ids: of a record, [length].
        mask: 1 where an id counts as a label, else 0, [length]; None if all count.
        config: eos_id, padding_id.

    Returns:
        One line.

    Raises:
        ValueError: an id is not in the vocabulary.
    """
    counts = np.ones(len(ids), bool) if mask is None else np.asarray(mask, bool)

    changes = np.flatnonzero(counts[1:] != counts[:-1]) + 1
    separators = np.flatnonzero(ids == config.eos_id)
    parts = [[0, _SAMPLE_TOKENS]]
    for place in sorted(int(places[0]) for places in (separators, changes) if len(places)):
        last_end = parts[-1][1]
        begin, end = place - _AROUND_PLACE_TOKENS, place + _AROUND_PLACE_TOKENS
        if begin <= last_end <= place:
            parts[-1][1] = end
        elif last_end < place:
            parts.append([begin, end])
    text = " … ".join(
        _visible(tokenizer, ids[begin:end].tolist(), counts[begin:end].tolist(), config)
        for begin, end in parts
    )
    return text if parts[-1][1] >= len(ids) else f"{text} …"


def _visible(
    tokenizer: Tokenizer, ids: Sequence[int], counts: Sequence[bool], config: Config
) -> str:
    """Text on one line, with names for separators and padding and brackets around no labels."""
    text, begin = "", 0
    for labels, run in groupby(counts):
        end = begin + len(list(run))
        piece = _named(tokenizer, ids[begin:end], config)
        text += piece if labels else f"⟨{piece}⟩"
        begin = end
    return text


def _named(tokenizer: Tokenizer, ids: Sequence[int], config: Config) -> str:
    names = {config.padding_id: "pad", config.eos_id: "eos"}
    pieces = []
    for name, run in groupby(ids, key=lambda token: names.get(token)):
        tokens = list(run)
        if name is None:
            decoded = tokenizer.decode(tokens)
            pieces.append(decoded.replace("\r", "␍").replace("\n", "⏎").replace("\t", "⇥"))
        else:
            pieces.append(f"⟦{name}⟧" if len(tokens) == 1 else f"⟦{name} x{len(tokens)}⟧")
    return "".join(pieces)
