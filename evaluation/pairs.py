"""A context and its continuation as token ids."""

from __future__ import annotations

from data.tokenizers import Tokenizer


def encode_pair(
    tokenizer: Tokenizer, end_id: int, context: str, continuation: str
) -> tuple[list[int], list[int]]:
    """Token ids of a context, at least one, and of its continuation.

    Both are encoded together, since a token may begin with the space between them; spaces at the
    end of the context therefore count as the continuation's. A context without a token is the end
    of text, which begins a document.

    Args:
        tokenizer: of the model.
        end_id: of the end of text.
        context: what is given.
        continuation: what is scored.

    Source: lm-evaluation-harness 0.4, whose scores these have to equal.
    """
    given = context.rstrip()
    whole = context + continuation
    before = tokenizer.encode(given)
    after = tokenizer.encode(whole)[len(before) :]
    if not after:  # the continuation's characters went into the context's last token
        after = tokenizer.encode(whole[len(given) :])
    if before:
        return before, after
    return (after[:1], after[1:]) if after[:1] == [end_id] else ([end_id], after)
