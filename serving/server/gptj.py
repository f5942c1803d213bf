"""The requests of GPT-J's two servers, for programs that were written for them."""

from __future__ import annotations

import itertools
import time
from typing import Any, NamedTuple, Union

from fastapi import APIRouter, Request

from serving.generation import Generation
from serving.requests import Completion
from serving.server.bodies import read_fields
from serving.server.completions import body_of
from serving.server.errors import ApiError, ClientGone, failed, overloaded
from serving.server.fields import ContextFields, QuestionId
from serving.server.service import Service, Submitted
from serving.server.texts import Texts

ROUTER = APIRouter()
_NAMES = {"temperature": "temp", "max_new_tokens": "length", "prompt": "context"}
_USUAL_LENGTH = 256


async def _submit(service: Service, fields: ContextFields) -> Submitted:
    length = service.default_length(_USUAL_LENGTH) if fields.length is None else fields.length
    settings = {"temperature": fields.temp, "max_new_tokens": length}
    return await service.submit([fields.context], fields, settings, _NAMES)


async def _completion(service: Service, generation: Generation, request: Request) -> Completion:
    try:
        async with Texts([generation], request, service.limits.seconds) as texts:
            [completion] = await texts.completions()
    except ClientGone:
        raise
    except Exception as error:
        raise failed(error) from error
    service.metrics.completion_tokens.inc(len(completion.continuation))
    return completion


@ROUTER.post("/complete", openapi_extra=body_of(ContextFields))
async def complete(request: Request) -> Any:
    """Continues a prompt; the answer has no prompt."""
    service: Service = request.app.state.service
    fields = await read_fields(request, ContextFields, service.limits.body_bytes)
    submitted = await _submit(service, fields)
    completion = await _completion(service, submitted.generations[0], request)
    answer: dict[str, Union[str, list[str]]] = {"completion": completion.text}
    return answer | ({"warnings": submitted.warnings} if submitted.warnings else {})


class _Question(NamedTuple):
    context: str
    generation: Generation
    began: float


class Questions:
    """Texts that are written before their readers come for them.

    Args:
        most: that are kept; of those that are written, the oldest gives way.
    """

    def __init__(self, most: int):
        self._most = most
        self._numbers = itertools.count(1)
        self._kept: dict[int, _Question] = {}

    def make_room(self) -> None:
        """Raises ``ApiError`` if all that are kept are still being written."""
        if len(self._kept) >= self._most:
            written = [qid for qid, one in self._kept.items() if one.generation.ended]
            if not written:
                raise overloaded(
                    f"questions must be at most {self._most}; got as many that are not answered. "
                    "Ask again later."
                )
            del self._kept[written[0]]

    def keep(self, context: str, generation: Generation) -> int:
        """Returns the number of a question."""
        qid = next(self._numbers)
        self._kept[qid] = _Question(context, generation, time.perf_counter())
        return qid

    def take(self, qid: int) -> _Question:
        """The question of a number, once."""
        if qid not in self._kept:
            raise ApiError(
                404,
                f"qid must be of a question whose answer has not been fetched; got {qid}. Ask "
                "again with POST /model/predict.",
                "qid",
            )
        return self._kept.pop(qid)


@ROUTER.post("/model/predict", openapi_extra=body_of(ContextFields))
async def predict(request: Request) -> Any:
    """Begins to continue a prompt; ``/model/get_prediction`` has the answer."""
    service: Service = request.app.state.service
    questions: Questions = request.app.state.questions
    fields = await read_fields(request, ContextFields, service.limits.body_bytes)
    questions.make_room()
    submitted = await _submit(service, fields)
    return {"qid": questions.keep(fields.context, submitted.generations[0])}


@ROUTER.post("/model/get_prediction", openapi_extra=body_of(QuestionId))
async def get_prediction(request: Request) -> Any:
    """Waits for the answer to a question, and forgets it."""
    service: Service = request.app.state.service
    questions: Questions = request.app.state.questions
    fields = await read_fields(request, QuestionId, service.limits.body_bytes)
    question = questions.take(fields.qid)
    completion = await _completion(service, question.generation, request)
    return {
        "context": question.context,
        "completion": completion.text,
        "time": time.perf_counter() - question.began,
    }
