"""From the fields of a request to texts that are being written."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from serving.engine import Engine
from serving.generation import Generation
from serving.requests import Request, Sampling
from serving.server.errors import ApiError, overloaded, refused
from serving.server.fields import SamplingFields
from serving.server.metrics import Metrics


@dataclass(frozen=True)
class Limits:
    """What a request may take.

    Attributes:
        body_bytes: of its body.
        seconds: until its answer is there.
    """

    body_bytes: int
    seconds: float


@dataclass(frozen=True)
class Submitted:
    """Texts of one request.

    Attributes:
        prompts: their ids as they were given.
        generations: ``n`` for each prompt, one prompt after another.
    """

    prompts: list[list[int]]
    generations: list[Generation]

    @property
    def warnings(self) -> list[str]:
        """One for each prompt of which only the end is used."""
        per_prompt = len(self.generations) // len(self.prompts)
        used = [len(one.prompt) for one in self.generations[::per_prompt]]
        return [
            f"prompt {number} has {len(ids)} tokens; its last {count} are used"
            for number, (ids, count) in enumerate(zip(self.prompts, used), 1)
            if len(ids) > count
        ]


class Service:
    """An engine, its name and its limits.

    Args:
        engine: loaded, with a tokenizer.
        name: of the model.
        limits: of each request.
    """

    def __init__(self, engine: Engine, name: str, limits: Limits):
        assert engine.tokenizer is not None
        self.engine = engine
        self.tokenizer = engine.tokenizer
        self.name = name
        self.limits = limits
        self.metrics = Metrics(engine.counts)
        self.started = int(time.time())

    def default_length(self, usual: int) -> int:
        """How many new tokens are written if nobody says so: ``usual``, or half of the window."""
        return min(usual, max(self.engine.config.n_ctx // 2, 1))

    async def submit(
        self,
        prompts: Sequence[Union[str, list[int]]],
        fields: SamplingFields,
        settings: Mapping[str, Any],
        names: Mapping[str, str],
        n: int = 1,
    ) -> Submitted:
        """Begins to write.

        Args:
            prompts: texts or token ids.
            fields: of the request.
            settings: those of ``Sampling`` that this kind of request calls something else.
            names: what it calls them.
            n: texts for each prompt.

        Raises:
            ApiError: the request cannot be answered.
        """
        most = self.engine.most_waiting
        if n * len(prompts) > most:
            raise ApiError(
                400,
                f"n times the number of prompts must be at most {most}; got {n} x {len(prompts)}. "
                "Send several requests.",
                "n",
            )
        try:
            sampling = Sampling.from_config(
                self.engine.config,
                top_p=fields.top_p,
                top_k=fields.top_k,
                seed=secrets.randbelow(2**31) if fields.seed is None else fields.seed,
                repetition_penalty=fields.repetition_penalty,
                stop=fields.stops,
                **settings,
            )
            # Tokenizing a long text takes a while, in which others are served.
            ids = await asyncio.to_thread(self._encoded, prompts)
            requests = [Request(one, sampling.of_sample(k)) for one in ids for k in range(n)]
            generations = self.engine.submit_all(requests)
        except RuntimeError as error:
            raise overloaded(str(error)) from error
        except ValueError as error:
            raise refused(error, names) from error
        self.metrics.prompt_tokens.inc(sum(len(one.prompt) for one in generations[::n]))
        return Submitted(ids, generations)

    def _encoded(self, prompts: Sequence[Union[str, list[int]]]) -> list[list[int]]:
        return [
            self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]
