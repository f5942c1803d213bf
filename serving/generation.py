"""A text that is being written: what its reader holds, and what the engine's worker adds to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Optional

from serving.requests import Completion, Event, Sampling, TokenScores, WrittenToken
from serving.text_stream import Settled, StoppingText


class Generation:
    """The answer to a request, as it comes.

    Iterating gives an ``Event`` for each piece; every iterator begins at the beginning. All
    methods may be called from any thread.

    Attributes:
        prompt: ids that are continued (the tail, if the prompt was too long).
        sampling: how.
        limit: at most so many new tokens fit.
    """

    def __init__(self, prompt: list[int], sampling: Sampling, limit: int, text: StoppingText):
        self.prompt = prompt
        self.sampling = sampling
        self.limit = limit
        self._text = text
        self._written = 0
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._watchers: list[Callable[[], None]] = []
        self._completion: Optional[Completion] = None
        self._error: Optional[Exception] = None
        if not limit:
            self._end(stopped=False)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._completion is not None or self._error is not None

    def __iter__(self) -> Iterator[Event]:
        """Waits for each event.

        Raises:
            Exception: what made the generation fail.
        """
        seen = 0
        while news := self._events_from(seen):
            seen += len(news)
            yield from news

    def _events_from(self, seen: int) -> list[Event]:
        """Waits for events beyond the first ``seen``; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or len(self._events) > seen)
            news = self.news(seen)
            if not news and self._error is not None:
                raise self._error
            return news

    def news(self, seen: int) -> list[Event]:
        """Events beyond the first ``seen``, without waiting."""
        with self._changed:
            return self._events[seen:]

    def watch(self, notify: Callable[[], None]) -> None:
        """Has ``notify`` called after each change, for readers that must not wait.

        The thread that makes the change calls it: it must return at once and raise nothing.
        """
        with self._changed:
            self._watchers.append(notify)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
            for notify in self._watchers:
                notify()

    def result(self) -> Completion:
        """Waits for the end.

        Raises:
            Exception: what made the generation fail.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.ended)
            if self._error is not None:
                raise self._error
            assert self._completion is not None
            return self._completion

    def cancel(self) -> None:
        """Ends the text where it is; its place goes to the next one. Later, it does nothing."""
        with self._changed:
            if not self.ended:
                self._end(stopped=False, cancelled=True)

    def fail(self, error: Exception) -> None:
        """Ends the generation with an error; for the worker."""
        with self._changed:
            if not self.ended:
                self._error = error
                self._tell()

    def push(self, token: int, scores: Optional[TokenScores] = None) -> None:
        """Adds a token, which may be the last; for the worker. An error ends this text only."""
        try:
            self._push(token, scores)
        except Exception as error:
            self.fail(error)

    def _push(self, token: int, scores: Optional[TokenScores]) -> None:
        is_stop = token == self.sampling.stop_id
        self._written += 1
        settled = self._text.finish() if is_stop else self._text.push(WrittenToken(token, scores))
        with self._changed:
            if self.ended:  # cancelled
                return
            self._show(settled)
            if is_stop or settled.stopped:
                self._end(stopped=True)
            elif self._written >= self.limit:
                settled = self._text.finish()
                self._show(settled)
                self._end(settled.stopped)

    def _show(self, settled: Settled) -> None:
        if settled.text or settled.tokens:
            self._events.append(Event(settled.text, tuple(settled.tokens)))
            self._tell()

    def _end(self, stopped: bool, cancelled: bool = False) -> None:
        tokens = [written for event in self._events for written in event.tokens]
        self._completion = Completion(
            self.prompt,
            [written.token for written in tokens],
            stopped,
            "".join(event.text for event in self._events),
            tuple(written.scores for written in tokens if written.scores is not None),
            cancelled,
        )
        self._tell()
