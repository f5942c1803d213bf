"""The body of a request as checked fields."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from configs.errors import closest, shown
from configs.json_values import parse_json
from configs.messages import key_name
from serving.server.errors import ApiError, ClientGone

Fields = TypeVar("Fields", bound=BaseModel)
UPLOAD_SECONDS = 20.0
"""In which a body must have arrived, however slow its client."""
_READ_BEYOND = 8
"""Bodies of up to so many times the limit are read to their end, and dropped: many clients look
for an answer only when all is sent."""


async def read_fields(request: Request, model: type[Fields], most_bytes: int) -> Fields:
    """Reads and checks the body.

    Args:
        request: whose body has not been read.
        model: of the fields.
        most_bytes: that a body may have.

    Raises:
        ApiError: it is too large, too slow, no JSON, or has a wrong field.
        ClientGone: before the end of it.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Another one could be sent by a page of any site, through the browser of somebody here.
        raise ApiError(
            415,
            f"Content-Type must be application/json; got {shown(kind or None)}. Send that header.",
        )
    try:
        body = await asyncio.wait_for(_read(request, most_bytes), UPLOAD_SECONDS)
    except asyncio.TimeoutError:
        raise ApiError(
            408, f"body must arrive within {UPLOAD_SECONDS:g} s; got a part of it. Send it again."
        ) from None
    except ClientDisconnect:
        raise ClientGone from None
    return parse_fields(body, model)


async def _read(request: Request, most_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else 0
    body = bytearray()
    if size <= _READ_BEYOND * most_bytes:
        size = 0
        async for piece in request.stream():
            size += len(piece)
            if size <= most_bytes:
                body += piece
            elif size > _READ_BEYOND * most_bytes:
                break
    if size > most_bytes:
        raise ApiError(
            413,
            f"body must be at most {most_bytes:,} bytes; got {size:,}. Shorten the prompt.",
            headers={"Connection": "close"},
        )
    return bytes(body)


def parse_fields(body: bytes, model: type[Fields]) -> Fields:
    """Checks a body.

    Raises:
        ApiError: as ``read_fields``.
    """
    try:
        values, repeated = parse_json(body.decode("utf-8"))
    except ValueError as error:  # those of Unicode and JSON among them
        raise ApiError(
            400, f"body must be JSON in UTF-8: {str(error).rstrip('.')}. Mend it."
        ) from None
    if not isinstance(values, dict):
        raise ApiError(400, f"body must be a JSON object; got {shown(values)}. Send fields.")
    if repeated:
        raise ApiError(400, "; ".join(repeated), repeated[0].partition(":")[0])
    try:
        return model.model_validate(values)
    except ValidationError as error:
        items = error.errors(include_url=False)
        message = " ".join(_sentence(item, model) for item in items[:5])
        raise ApiError(400, message, key_name(items[0]["loc"])) from None


def _sentence(item: Any, model: type[BaseModel]) -> str:
    name, kind = key_name(item["loc"]), item["type"]
    if kind == "missing":
        return f"{name} must be given; got none. Add it."
    if kind == "extra_forbidden":
        near = closest(name, model.model_fields) if len(item["loc"]) == 1 else None
        remedy = f"Did you mean {near}?" if near else "Remove it."
        return f"{name} must be a field of this request; got {shown(item['input'])}. {remedy}"
    if kind == "value_error":
        rule = str(item["ctx"]["error"])
    else:
        rule = item["msg"].replace("Input should be", "must be")
    return f"{name} {rule}; got {shown(item['input'])}. Change or leave it out."
