"""The text of new tokens as it becomes certain, up to the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from data.tokenizers import TextStream, Tokenizer
from serving.requests import WrittenToken


class Settled(NamedTuple):
    """What a new token made certain.

    Attributes:
        text: to be shown.
        tokens: whose text is now shown to the end.
        stopped: whether a stop string ended the text.
    """

    text: str
    tokens: list[WrittenToken]
    stopped: bool = False


def end_of_first(text: str, stops: Sequence[str]) -> Optional[int]:
    """Where the text must be cut: before the stop string that is complete first; None if none is.

    It is the one that a reader of single characters would meet first, so the borders of tokens
    decide nothing; of two that end together, the longer one counts.
    """
    found = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def beginning_of_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of ``text`` with which a stop string begins."""
    return max(
        (
            length
            for stop in stops
            for length in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:length])
        ),
        default=0,
    )


class StoppingText:
    """Decodes tokens one by one and holds back what a stop string may take away.

    Args:
        tokenizer: of the tokens; None for no text at all.
        prompt: ids in front, which a tokenizer may need to place a space; not part of the text.
        stops: none of them empty; need a tokenizer.
    """

    def __init__(
        self, tokenizer: Optional[Tokenizer], prompt: Sequence[int], stops: Sequence[str] = ()
    ):
        assert tokenizer is not None or not stops
        self._stream = None if tokenizer is None else TextStream(tokenizer)
        self._stops = stops
        self._held = ""
        self._shown = 0  # characters
        self._waiting: list[tuple[WrittenToken, int, int]] = []  # with begin and end of its text
        if self._stream is not None:
            for token in prompt:
                self._stream.push(token)

    def push(self, written: WrittenToken) -> Settled:
        """Takes the next token."""
        begin = self._shown + len(self._held)
        if self._stream is not None:
            self._held += self._stream.push(written.token)
        self._waiting.append((written, begin, self._shown + len(self._held)))
        return self._settle(final=False)

    def finish(self) -> Settled:
        """Ends the text: nothing is held back any longer."""
        if self._stream is not None:
            self._held += self._stream.finish()
        return self._settle(final=True)

    def _settle(self, final: bool) -> Settled:
        cut = end_of_first(self._held, self._stops)
        stopped = cut is not None
        if cut is None:
            held_back = 0 if final else beginning_of_stop(self._held, self._stops)
            cut = len(self._held) - held_back
        text, self._held = self._held[:cut], self._held[cut:]
        self._shown += cut
        if stopped:  # the last token may reach beyond
            tokens = [token for token, begin, _ in self._waiting if begin < self._shown]
            self._waiting = []
        else:
            count = self._count_shown(final)
            tokens = [token for token, *_ in self._waiting[:count]]
            self._waiting = self._waiting[count:]
        return Settled(text, tokens, stopped)

    def _count_shown(self, final: bool) -> int:
        """How many of the waiting tokens have all of their text shown.

        One without text may be the beginning of a character, with which it will be told.
        """
        if final or self._stream is None:
            return len(self._waiting)
        shown = [begin < end <= self._shown for _, begin, end in self._waiting]
        return len(shown) - shown[::-1].index(True) if True in shown else 0
