"""``/v1``: the part of OpenAI's interface that a language model without dialogue has."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any, Optional

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from configs.errors import shown
from models.decoder import TOP_TOKENS
from serving.requests import Completion
from serving.server.answers import AnswerFormat, LogProbs, choice, finish_reason, usage
from serving.server.bodies import read_fields
from serving.server.errors import ApiError, ClientGone, failed
from serving.server.fields import CompletionFields
from serving.server.service import Service, Submitted
from serving.server.texts import Texts

ROUTER = APIRouter(prefix="/v1")
_NAMES = {"max_new_tokens": "max_tokens"}  # the engine's name -> the field's
_USUAL_LENGTH = 16  # OpenAI's


def body_of(model: type) -> dict[str, Any]:
    """The description of a body that ``read_fields`` reads."""
    content = {"application/json": {"schema": model.model_json_schema()}}  # type: ignore[attr-defined]
    return {"requestBody": {"required": True, "content": content}}


@ROUTER.get("/models")
async def list_models(request: Request) -> Any:
    """The model that is served."""
    return {"object": "list", "data": [_model(request.app.state.service)]}


@ROUTER.get("/models/{name:path}")
async def show_model(name: str, request: Request) -> Any:
    """The model that is served, by its name."""
    service: Service = request.app.state.service
    _check_model(service, name)
    return _model(service)


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.name,
        "object": "model",
        "created": service.started,
        "owned_by": "local",
        "max_model_len": service.engine.config.n_ctx,
        "max_logprobs": TOP_TOKENS if service.engine.gives_scores else None,
        "step": service.engine.step,
    }


def _check_model(service: Service, name: Optional[str]) -> None:
    if name is not None and name != service.name:
        raise ApiError(
            404,
            f"model must be {shown(service.name)}; got {shown(name)}. Change or leave it out.",
            "model",
            code="model_not_found",
        )


def _check(fields: CompletionFields) -> None:
    """Rules between fields."""
    if fields.best_of not in (None, fields.n):
        raise ApiError(
            400,
            f"best_of must be n = {fields.n}, since this server returns all that it writes; got "
            f"{fields.best_of}. Leave it out.",
            "best_of",
        )
    if fields.echo and fields.logprobs is not None:
        raise ApiError(
            400,
            f"logprobs must be left out with echo, since those of a prompt are not computed; got "
            f"{fields.logprobs}. Leave one of them out.",
            "logprobs",
        )
    if fields.stream_options is not None and not fields.stream:
        raise ApiError(
            400,
            "stream_options must come with stream; got them alone. Leave them out.",
            "stream_options",
        )


@ROUTER.post("/completions", openapi_extra=body_of(CompletionFields))
async def complete(request: Request) -> Response:
    """Continues prompts, as OpenAI's completions do."""
    service: Service = request.app.state.service
    fields = await read_fields(request, CompletionFields, service.limits.body_bytes)
    _check_model(service, fields.model)
    _check(fields)
    settings = {
        "temperature": fields.temperature,
        "max_new_tokens": service.default_length(_USUAL_LENGTH)
        if fields.max_tokens is None
        else fields.max_tokens,
        "logprobs": fields.logprobs,
    }
    began = time.perf_counter()
    submitted = await service.submit(fields.prompts, fields, settings, _NAMES, fields.n)
    answer = _Answer(service, fields, submitted, began)
    texts = Texts(submitted.generations, request, service.limits.seconds)
    if fields.stream:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        events = answer.events(texts)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)
    return JSONResponse(await answer.whole(texts))


class _Answer:
    def __init__(
        self, service: Service, fields: CompletionFields, submitted: Submitted, began: float
    ):
        self._service = service
        self._fields = fields
        self._submitted = submitted
        self._format = AnswerFormat(service.name, submitted.warnings)
        self._began: Optional[float] = began
        self._heads = [self._head(number) for number in range(len(submitted.generations))]
        self._scores = [self._log_probs(number) for number in range(len(submitted.generations))]

    def _head(self, number: int) -> str:
        """What stands in front of a text: with ``echo`` its prompt, as far as it is used."""
        if not self._fields.echo:
            return ""
        given = self._fields.prompts[number // self._fields.n]
        used = self._submitted.generations[number].prompt
        whole = self._submitted.prompts[number // self._fields.n]
        if isinstance(given, str) and len(used) >= len(whole):
            return given
        return self._service.tokenizer.decode(used)

    def _log_probs(self, number: int) -> Optional[LogProbs]:
        if self._fields.logprobs is None:
            return None
        prompt = self._submitted.generations[number].prompt
        head = len(self._heads[number])
        return LogProbs(self._service.tokenizer, prompt, head, self._fields.logprobs)

    def _count(self, completion: Completion) -> None:
        self._service.metrics.completion_tokens.inc(len(completion.continuation))

    def _note_first(self) -> None:
        if self._began is not None:
            seconds = time.perf_counter() - self._began
            self._service.metrics.first_token_seconds.observe(seconds)
            self._began = None

    async def whole(self, texts: Texts) -> dict[str, Any]:
        """The answer at once."""
        parts: list[list[Any]] = [[] for _ in self._heads]
        completions: dict[int, Completion] = {}
        try:
            async with texts:
                async for number, piece in texts.pieces():
                    if isinstance(piece, Completion):
                        completions[number] = piece
                        self._count(piece)
                    else:
                        self._note_first()
                        parts[number] += piece.tokens
        except ClientGone:
            raise
        except Exception as error:
            raise failed(error) from error
        ordered = [completions[number] for number in range(len(parts))]
        choices = []
        for number, completion in enumerate(ordered):
            scores = self._scores[number]
            logprobs = None if scores is None else scores.take(parts[number])
            text = self._heads[number] + completion.text
            choices.append(choice(number, text, logprobs, finish_reason(completion)))
        return self._format.body(choices, usage=usage(ordered, self._fields.n))

    async def events(self, texts: Texts) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        unknown = {"usage": None} if self._fields.includes_usage else {}
        completions: dict[int, Completion] = {}
        try:
            async with texts:
                for number, head in enumerate(self._heads):
                    if head:
                        yield _event(self._format.body([choice(number, head, None)], **unknown))
                async for number, piece in texts.pieces():
                    scores = self._scores[number]
                    if isinstance(piece, Completion):
                        completions[number] = piece
                        self._count(piece)
                        last = choice(number, "", None, finish_reason(piece))
                        yield _event(self._format.body([last], **unknown))
                        continue
                    self._note_first()
                    logprobs = None if scores is None else scores.take(piece.tokens)
                    part = choice(number, piece.text, logprobs)
                    yield _event(self._format.body([part], **unknown))
            if self._fields.includes_usage:
                ordered = [completions[number] for number in sorted(completions)]
                yield _event(self._format.body([], usage=usage(ordered, self._fields.n)))
        except ClientGone:
            return
        except Exception as error:  # the status has been sent
            yield _event(failed(error).body())
            return
        yield "data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
