"""Fields of the requests; those left out, or null, are the model's own settings."""

from __future__ import annotations

import re
from typing import Any, Optional, Union

from pydantic import BaseModel, ConfigDict, Field, field_validator

MOST_STOPS, LONGEST_STOP = 16, 256  # each is looked for at every token
_SURROGATE = re.compile("[\ud800-\udfff]")
_PROMPTS = (
    "must be a text of Unicode characters, a list of token ids, or a list of either, and not an "
    "empty list"
)


class _Fields(BaseModel):
    # Ranges are the engine's to check (serving.requests.Sampling).
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SamplingFields(_Fields):
    """What all requests for a text have."""

    top_p: Optional[float] = Field(None, description="nucleus sampling, 1 for all tokens")
    # In a config, a number below 0 means a part of the vocabulary.
    top_k: Optional[int] = Field(None, ge=0, description="draw among so many tokens, 0 for all")
    seed: Optional[int] = Field(None, description="repeats a text (default: another each time)")
    repetition_penalty: Optional[float] = Field(None, description="1 is off")
    stop: Optional[Union[str, list[str]]] = Field(
        None, description="texts that end the answer and are not part of it"
    )

    @field_validator("stop", mode="before")
    @classmethod
    def _check_stop(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value
        if stops is not None and not (
            isinstance(stops, list)
            and len(stops) <= MOST_STOPS
            and all(_is_text(one) and 0 < len(one) <= LONGEST_STOP for one in stops)
        ):
            raise ValueError(
                f"must be a text of 1 to {LONGEST_STOP} characters, or at most {MOST_STOPS} of them"
            )
        return value

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class StreamOptions(_Fields):
    """How an answer is streamed."""

    include_usage: bool = False
    include_obfuscation: bool = False

    @field_validator("include_obfuscation")
    @classmethod
    def _check_obfuscation(cls, value: bool) -> bool:
        if value:
            raise ValueError("must be false, since this server has none")
        return value


class CompletionFields(SamplingFields):
    """OpenAI's completions."""

    model: Optional[str] = Field(None, description="the one that GET /v1/models names")
    prompt: Any = Field(description="a text, a list of token ids, or a list of either")
    n: int = Field(1, ge=1, description="answers to each prompt")
    max_tokens: Optional[int] = Field(None, description="new tokens of an answer (default: 16)")
    temperature: Optional[float] = Field(None, description="0 takes the most likely token")
    logprobs: Optional[int] = Field(None, description="log-probabilities of so many tokens")
    echo: bool = Field(False, description="begin the answer with the prompt")
    stream: bool = Field(False, description="answer in server-sent events, as it is written")
    stream_options: Optional[StreamOptions] = None
    user: Optional[str] = Field(None, description="is not looked at")
    best_of: Optional[int] = Field(None, description="only as n")
    frequency_penalty: Optional[float] = Field(None, description="only 0")
    presence_penalty: Optional[float] = Field(None, description="only 0")
    logit_bias: Optional[dict[str, float]] = Field(None, description="only empty")
    suffix: Optional[str] = Field(None, description="only empty")

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, value: Any) -> Any:
        prompts = value if _is_list_of(value, (str, list)) else [value]
        if not all(_is_text(one) or _is_list_of(one, int) for one in prompts):
            raise ValueError(_PROMPTS)
        return value

    @field_validator("frequency_penalty", "presence_penalty", "logit_bias", "suffix")
    @classmethod
    def _check_absent(cls, value: Any) -> Any:
        if value:
            raise ValueError("must be left out, since this server does not have it")
        return value

    @property
    def prompts(self) -> list[Union[str, list[int]]]:
        """The prompts, each a text or token ids."""
        return self.prompt if _is_list_of(self.prompt, (str, list)) else [self.prompt]

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


def _is_text(value: Any) -> bool:
    """A string without halves of surrogate pairs, which are no characters."""
    return isinstance(value, str) and not _SURROGATE.search(value)


def _is_list_of(value: Any, kind: Any) -> bool:
    """A list that is not empty; True and False are no numbers."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, kind) and not isinstance(one, bool) for one in value)
    )


class ContextFields(SamplingFields):
    """GPT-J's request."""

    context: str = Field(description="the prompt")
    temp: Optional[float] = Field(None, description="0 takes the most likely token")
    length: Optional[int] = Field(None, description="new tokens of the answer (default: 256)")

    @field_validator("context")
    @classmethod
    def _check_context(cls, value: str) -> str:
        if not _is_text(value):
            raise ValueError("must be a text of Unicode characters")
        return value


class QuestionId(_Fields):
    """Which question's answer is wanted."""

    qid: int
