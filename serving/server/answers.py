"""Answers in the format of OpenAI's completions."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from data.tokenizers import TextStream, Tokenizer
from serving.requests import Completion, TokenScores, WrittenToken


def spelled(tokenizer: Tokenizer, token: int) -> str:
    r"""The text of one token; bytes that are no characters as ``bytes:\xe2\x80``."""
    if not tokenizer.is_byte_level:
        return tokenizer.decode([token])
    content = tokenizer.token_bytes.get(token, b"")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


class LogProbs:
    """Log-probabilities of the tokens of one text, as they come.

    Args:
        tokenizer: of the tokens.
        prompt: ids in front, which a tokenizer may need to place a space.
        offset: characters of the answer in front of the first token.
        count: of most likely tokens.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], offset: int, count: int):
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer)
        for token in prompt:
            self._stream.push(token)
        self._offset = offset
        self._count = count

    def take(self, tokens: Iterable[WrittenToken]) -> dict[str, Any]:
        """The next tokens, as the field ``logprobs``."""
        names, values, tops, offsets = [], [], [], []
        for token, scores in tokens:
            assert scores is not None
            name, text = spelled(self._tokenizer, token), self._stream.push(token)
            names.append(name)
            values.append(scores.log_probability)
            tops.append(self._top(token, scores))
            # What a former token left of a character may stand in front.
            in_front = len(text) - len(name) if text.endswith(name) else 0
            offsets.append(self._offset + in_front)
            self._offset += len(text)
        return {
            "tokens": names,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _top(self, token: int, scores: TokenScores) -> dict[str, float]:
        """The most likely tokens, and the one that was drawn."""
        found = {spelled(self._tokenizer, one): value for one, value in scores.top[: self._count]}
        return found | {spelled(self._tokenizer, token): scores.log_probability}


class AnswerFormat:
    """What all parts of an answer have in common.

    Args:
        model: its name.
        warnings: about the request.
    """

    def __init__(self, model: str, warnings: Sequence[str]):
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._warnings = {"warnings": list(warnings)} if warnings else {}

    def body(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """An answer, or a part of a stream; the first one has the warnings."""
        warnings, self._warnings = self._warnings, {}
        return self._head | {"choices": list(choices)} | more | warnings


def choice(
    index: int, text: str, logprobs: Optional[dict[str, Any]], reason: Optional[str] = None
) -> dict[str, Any]:
    """A text, or a part of it."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def finish_reason(completion: Completion) -> str:
    """Why a text ended."""
    return "stop" if completion.stopped else "length"


def usage(completions: Sequence[Completion], n: int) -> dict[str, int]:
    """Numbers of tokens; a prompt with ``n`` answers counts once."""
    prompt = sum(len(one.prompt) for one in itertools.islice(completions, 0, None, n))
    written = sum(len(one.continuation) for one in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
    }
