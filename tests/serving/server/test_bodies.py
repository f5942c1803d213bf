"""Bodies that take too long to arrive, without a server."""

import asyncio

import pytest
from starlette.requests import Request

from serving.server import bodies
from serving.server.errors import ApiError
from serving.server.fields import CompletionFields

SCOPE = {"type": "http", "headers": [(b"content-type", b"application/json")]}


@pytest.mark.parametrize("pause", [0.01, 60])
def test_a_body_that_comes_too_slowly(monkeypatch, pause):
    """Byte by byte, or not at all."""
    monkeypatch.setattr(bodies, "UPLOAD_SECONDS", 0.2)

    async def receive():
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": b" ", "more_body": True}

    reading = bodies.read_fields(Request(SCOPE, receive), CompletionFields, 1000)
    with pytest.raises(ApiError, match=r"body must arrive within 0\.2 s; got a part") as caught:
        asyncio.run(reading)
    assert caught.value.status == 408
