"""What stands before every request: the key, and the count of what was answered."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from typing import Any, Optional

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.server.errors import CLIENT_GONE, ApiError
from serving.server.metrics import Metrics

OPEN_PATHS = ("/", "/healthz")
"""Without a key; there is nothing of the model in them."""


class Guard:
    """Asks for the key and counts.

    Args:
        app: behind it.
        metrics: that are written.
        key: which ``Authorization: Bearer`` must have; None for no key.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, key: Optional[str]):
        self._app = app
        self._metrics = metrics
        self._key = None if key is None else _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or lets the app answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), CLIENT_GONE

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is None:
                await self._app(scope, receive, noting)
            else:
                await refusal.response()(scope, receive, noting)
        except asyncio.CancelledError:  # nothing is finished any longer; the task ends here
            if status == CLIENT_GONE:
                ending = ApiError(503, "the server must run; got its end. Ask it when it is back.")
                await ending.response()(scope, receive, noting)
        except Exception:
            status = 500  # what will be answered further out
            raise
        finally:
            # A path is whatever a client makes up; a route is one of ours.
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(route, status).inc()
            self._metrics.request_seconds.labels(route).observe(time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> Optional[ApiError]:
        if self._key is None or scope["path"] in OPEN_PATHS:
            return None
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        # Digests have one length, and comparing them takes one time.
        if scheme.lower() == b"bearer" and hmac.compare_digest(_digest(key.strip()), self._key):
            return None
        got = "another one" if given else "none"
        return ApiError(
            401,
            f"Authorization must be Bearer and this server's key; got {got}. Send that header.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _digest(key: Any) -> bytes:
    return hashlib.sha256(key).digest()
