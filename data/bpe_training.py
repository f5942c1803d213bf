"""Byte-level BPE as in GPT-2: a vocabulary out of the statistics of a text.

Every text can be encoded and comes back unchanged, since all 256 bytes are tokens. Only counts of
distinct words are kept, so the memory does not grow with the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from data.tokenizers import END_OF_TEXT

PADDING = "<|padding|>"
SPECIAL_TOKENS = (END_OF_TEXT, PADDING)
BYTES = 256

_PIECE_CHARACTERS = 1 << 16
# Where a text can be cut without a change of its words: in GPT-2's pattern the last of some spaces
# belongs to the word behind it or is a word of its own, and those before it are another.
_CUT = re.compile(r"[ \n](?=\S)")


def smallest_size(special_tokens: Sequence[str] = SPECIAL_TOKENS) -> int:
    """Ids that a vocabulary has before the first merge."""
    return BYTES + len(special_tokens)


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    min_frequency: int = 2,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
) -> tokenizers.Tokenizer:
    """Trains a tokenizer. The result depends neither on the order of the texts nor on threads.

    Args:
        texts: read once, as a stream.
        vocab_size: ids, at most; fewer if the texts have too few pairs.
        min_frequency: a pair of tokens that occurs less often is not merged.
        special_tokens: have the first ids, in this order; the bytes follow.

    Returns:
        The tokenizer.

    Source: Sennrich et al. 2016 for BPE, Radford et al. 2019 (GPT-2) for bytes and words.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pieces = (piece for text in texts for piece in split_text(text))
    backend.train_from_iterator(pieces, trainer)
    return backend


def split_text(text: str, length: int = _PIECE_CHARACTERS) -> Iterator[str]:
    """Cuts a long text into pieces with the same words.

    The library holds hundreds of texts at a time, each several times over.

    Args:
        text: any text.
        length: characters of a piece; up to twice as many, so that it ends before a space.

    Yields:
        Pieces that make the text, joined.
    """
    begin = 0
    while len(text) - begin > 2 * length:
        cut = _CUT.search(text, begin + length, begin + 2 * length)
        end = cut.start() if cut else begin + 2 * length
        yield text[begin:end]
        begin = end
    if begin < len(text):
        yield text[begin:]
