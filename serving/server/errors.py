"""What a client is told when its request cannot be answered."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Optional

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

LOGGER = logging.getLogger(__name__)
CLIENT_GONE = 499
"""Status of a request whose client has gone; it is counted, nobody reads it."""
RETRY_SECONDS = 1


class ClientGone(Exception):
    """The client has closed its connection."""


class ApiError(Exception):
    """A request that is answered by an error.

    Args:
        status: of HTTP.
        message: *subject must be rule; got value. Remedy.*
        param: field of the request that is wrong.
        code: for programs, such as ``model_not_found``.
        headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: Optional[str] = None,
        code: Optional[str] = None,
        headers: Optional[Mapping[str, str]] = None,
    ):
        super().__init__(message)
        self.status = status
        self._param = param
        self._code = code
        self._headers = headers

    def body(self) -> dict[str, Any]:
        """The error as OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {"message": str(self), "type": kind, "param": self._param, "code": self._code}
        }

    def response(self) -> Response:
        """The whole answer."""
        return JSONResponse(self.body(), self.status, self._headers)


def overloaded(message: str) -> ApiError:
    """A request that may be made again later."""
    return ApiError(503, message, code="overloaded", headers={"Retry-After": str(RETRY_SECONDS)})


def refused(error: ValueError, names: Mapping[str, str]) -> ApiError:
    """What a client is told when the engine does not take its request.

    Args:
        error: its message begins with the name of a setting.
        names: what the client calls the engine's settings, where it is something else.
    """
    name, _, rest = str(error).partition(" ")
    return ApiError(400, f"{names.get(name, name)} {rest}", names.get(name, name))


def failed(error: Exception) -> ApiError:
    """What a client is told when its request was taken; what is not its own is logged."""
    if isinstance(error, ApiError):
        return error
    LOGGER.error("a request failed", exc_info=error)
    return ApiError(500, f"the server failed: {type(error).__name__}. Its log says more.")


def add_handlers(app: FastAPI) -> None:
    """Makes every error of ``app`` an ``ApiError``'s response."""

    async def own(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response()

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path, status = request.url.path, error.status_code
        allowed = (error.headers or {}).get("Allow", "another one")
        messages = {
            404: f"path must be one of this server's; got {path}. See /openapi.json.",
            405: f"method of {path} must be {allowed}; got {request.method}. Use that one.",
        }
        message = messages.get(status, str(error.detail))
        return ApiError(status, message, headers=error.headers).response()

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)

    async def other(request: Request, error: Exception) -> Response:
        return failed(error).response()

    app.add_exception_handler(ApiError, own)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(ClientGone, gone)
    app.add_exception_handler(Exception, other)
