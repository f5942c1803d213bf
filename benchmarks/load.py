"""Clients that ask a server for texts of mixed lengths, all at once, and what they meet."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One text that came whole.

    Attributes:
        first_seconds: from the request to its first token.
        seconds: from the request to its end.
        prompt_tokens, new_tokens: as the server counted them.
    """

    first_seconds: float
    seconds: float
    prompt_tokens: int
    new_tokens: int


@dataclass
class Met:
    """What all clients met.

    Attributes:
        answers: whole texts.
        refused: requests for which the queue had no room; they were made again.
        failures: what went wrong otherwise.
        seconds: from the first request to the last answer.
    """

    answers: list[Answer] = field(default_factory=list)
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Load:
    """What is asked.

    Attributes:
        port: of a server on this machine.
        clients: that ask at once, each again when it has its answer.
        seconds: in which they begin requests.
        prompt, new: most tokens of a prompt and of a text; short ones are as frequent as long
            ones on a logarithmic scale.
        vocabulary: ids of prompts lie below.
    """

    port: int
    clients: int
    seconds: float
    prompt: int
    new: int
    vocabulary: int


def put(load: Load, watch: Callable[[], None]) -> Met:
    """Puts the load on the server.

    Args:
        load: what is asked.
        watch: called again and again until the last answer.

    Returns:
        What the clients met.
    """
    met = Met()
    began = time.perf_counter()
    threads = [
        threading.Thread(target=_ask_on, args=(load, random.Random(number), met), daemon=True)
        for number in range(load.clients)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        watch()
    met.seconds = time.perf_counter() - began
    return met


def _ask_on(load: Load, draw: random.Random, met: Met) -> None:
    """One client."""
    deadline = time.perf_counter() + load.seconds
    connection = http.client.HTTPConnection("127.0.0.1", load.port, timeout=600)
    with contextlib.closing(connection):
        while time.perf_counter() < deadline:
            body = _body(load, draw)
            try:
                _ask(connection, body, met)
            except (OSError, http.client.HTTPException, RuntimeError) as error:
                met.failures.append(f"{type(error).__name__}: {error}")
                connection.close()


def _body(load: Load, draw: random.Random) -> dict[str, Any]:
    def length(most: int) -> int:
        return round(math.exp(draw.uniform(0, math.log(most))))

    return {
        "prompt": [draw.randrange(load.vocabulary) for _ in range(length(load.prompt))],
        "max_tokens": length(load.new),
        "temperature": 1.0,
        "seed": draw.randrange(2**31),
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _ask(connection: http.client.HTTPConnection, body: dict[str, Any], met: Met) -> None:
    content = json.dumps(body).encode()
    while True:
        began = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", content, headers)
        response = connection.getresponse()
        if response.status != 503:
            break
        met.refused += 1
        response.read()
        time.sleep(float(response.headers["Retry-After"]))
    if response.status != 200:
        raise RuntimeError(f"{response.status} {response.read()!r}")
    first, usage = 0.0, None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        first = first or time.perf_counter()
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            raise RuntimeError(event["error"]["message"])
        usage = event["usage"] or usage
    if usage is None:
        raise RuntimeError("a stream ended before its end")
    seconds = time.perf_counter() - began
    counts = usage["prompt_tokens"], usage["completion_tokens"]
    met.answers.append(Answer(first - began, seconds, *counts))
