"""Texts that are being written, for the event loop of a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Union

from fastapi import Request

from serving.generation import Generation
from serving.requests import Completion, Event
from serving.server.errors import ApiError, ClientGone


class Texts:
    """The texts of one request. They are cancelled when its client goes or its time is over.

    A context: at its end, nothing of it is written any longer.

    Args:
        generations: what is written.
        request: whose body has been read.
        seconds: that it may take.
    """

    def __init__(self, generations: Sequence[Generation], request: Request, seconds: float):
        self._generations = generations
        self._request = request
        self._seconds = seconds
        self._changed = asyncio.Event()
        self._is_late = False

    async def __aenter__(self) -> Texts:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._expire)
        self._listener = loop.create_task(_listen(self._request))
        self._listener.add_done_callback(lambda task: None if task.cancelled() else self._stop())

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before the text
                loop.call_soon_threadsafe(self._changed.set)

        for generation in self._generations:
            generation.watch(tell)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._timer.cancel()
        self._listener.cancel()
        self._stop()

    def _expire(self) -> None:
        self._is_late = True
        self._stop()

    def _stop(self) -> None:
        for generation in self._generations:
            generation.cancel()
        self._changed.set()

    def _check(self) -> None:
        if self._is_late:
            raise ApiError(
                504,
                f"an answer must be written within {self._seconds:g} s; got a part of it. Ask for "
                "fewer tokens, or stream it.",
                code="timeout",
            )
        if self._listener.done():
            raise ClientGone

    async def pieces(self) -> AsyncIterator[tuple[int, Union[Event, Completion]]]:
        """The number of a text and what there is new of it; its completion comes last.

        Raises:
            ClientGone: the client has gone.
            ApiError: the time is over.
            Exception: what made a text fail.
        """
        seen = [0] * len(self._generations)
        running = set(range(len(seen)))
        while running:
            self._changed.clear()
            for number in sorted(running):
                generation = self._generations[number]
                ended = generation.ended  # asked first: nothing comes behind it
                for event in generation.news(seen[number]):
                    seen[number] += 1
                    yield number, event
                if ended:
                    completion = generation.result()
                    if completion.cancelled:
                        self._check()
                    running.remove(number)
                    yield number, completion
            if running:
                await self._changed.wait()

    async def completions(self) -> list[Completion]:
        """All texts when the last one has ended; raises as ``pieces`` does."""
        found = {}
        async for number, piece in self.pieces():
            if isinstance(piece, Completion):
                found[number] = piece
        return [found[number] for number in sorted(found)]


async def _listen(request: Request) -> None:
    """Waits until the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
