"""What is asked of the engine, and what it answers."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Optional

from configs.architecture_rules import token_range
from configs.schema import Config
from models.decoder import TOP_TOKENS

LOGGER = logging.getLogger(__name__)


class QueueFull(RuntimeError):
    """Too many requests wait; a later one may find room."""


@dataclass(frozen=True)
class Sampling:
    """How a text is continued, and what is told about it.

    Penalty, temperature, top_k and top_p are applied in this order, as in transformers.

    Attributes:
        temperature: divisor of the logits; 0 takes the most likely token.
        top_k: tokens that may be drawn, the most likely ones; 0 for all.
        top_p: total probability of the tokens that may be drawn; 1 for all.
        seed: repeats a text.
        max_new_tokens: at most so many; None fills the window.
        stop_id: token that ends a text; None for none.
        entmax: whether tokens are drawn from entmax probabilities in place of softmax ones.
        repetition_penalty: makes tokens that the text already has less likely; 1 is off. See
            ``kernels.sampling.penalized``.
        stop: strings that end a text and are not part of it; they may span several tokens.
        logprobs: log-probabilities of each token and of so many most likely ones, by the model's
            own distribution (temperature 1, nothing left out, no penalty); None for none.

    Raises:
        ValueError: a setting is out of its range.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_new_tokens: Optional[int]
    stop_id: Optional[int]
    entmax: bool = False
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    logprobs: Optional[int] = None

    def __post_init__(self) -> None:
        # NaN passes no comparison; models compute in float32, whose range ends at 3.4e38.
        rules = {
            "temperature": (0 <= self.temperature <= 3e38, "from 0 to 3e38"),
            "top_k": (self.top_k >= 0, "at least 0"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "repetition_penalty": (1e-37 <= self.repetition_penalty <= 3e38, "from 1e-37 to 3e38"),
            "max_new_tokens": (self.max_new_tokens is None or self.max_new_tokens > 0, "above 0"),
            "logprobs": (
                self.logprobs is None or 0 <= self.logprobs <= TOP_TOKENS,
                f"from 0 to {TOP_TOKENS}",
            ),
            "stop": (all(self.stop), "strings of at least one character"),
        }
        for name, (fits, words) in rules.items():
            if not fits:
                value = getattr(self, name)
                raise ValueError(f"{name} must be {words}; got {value!r}. Change or leave it out.")

    @classmethod
    def from_config(cls, config: Config, **given: Any) -> Sampling:
        """The config's settings, replaced by those of ``given`` that are not None."""
        settings: dict[str, Any] = {
            "temperature": config.temperature,
            "top_k": config.top_k or 0,
            "top_p": config.top_p,
            "seed": config.seed,
            "max_new_tokens": config.predict_max_steps,
            "stop_id": config.eos_id,
            "repetition_penalty": config.repetition_penalty,
        }
        settings.update((name, value) for name, value in given.items() if value is not None)
        if settings["top_k"] < 0:  # GPT-Neo's -2: a tenth of the vocabulary
            settings["top_k"] = config.token_count // 10
        return cls(**settings)

    def seed_of_sample(self, number: int) -> int:
        """Seed of the sample ``number`` of a prompt; the first has the seed itself."""
        if number == 0:
            return self.seed % 2**31
        return zlib.crc32(f"{self.seed},{number}".encode()) % 2**31

    def of_sample(self, number: int) -> Sampling:
        """The settings of the sample ``number`` of a prompt."""
        return replace(self, seed=self.seed_of_sample(number))


@dataclass(frozen=True)
class Request:
    """One text to be continued.

    Attributes:
        prompt: token ids.
        sampling: how.
    """

    prompt: Sequence[int]
    sampling: Sampling


class TokenScores(NamedTuple):
    """Log-probabilities (natural logarithms) at one place of a text.

    Attributes:
        log_probability: of the token that was drawn.
        top: the most likely tokens, each with its log-probability, best first.
    """

    log_probability: float
    top: tuple[tuple[int, float], ...]


class WrittenToken(NamedTuple):
    """A new token; ``scores`` is None unless they were asked for."""

    token: int
    scores: Optional[TokenScores]


class Event(NamedTuple):
    """What has become certain of a text: no stop string will take it back.

    Attributes:
        text: that follows the text so far.
        tokens: whose text is now shown to the end. A part of a character is no text, and text
            that may be the beginning of a stop string waits: either may be empty.
    """

    text: str
    tokens: tuple[WrittenToken, ...]


@dataclass(frozen=True)
class Completion:
    """One generated text.

    Attributes:
        prompt: ids that were continued (the tail, if the prompt was too long).
        continuation: new ids, without the stop token, and without those of which a stop string
            left nothing.
        stopped: whether the stop token or a stop string ended it.
        text: of the continuation; empty if the engine has no tokenizer.
        scores: of each token of the continuation; empty unless they were asked for.
        cancelled: whether it was ended before its time.
    """

    prompt: list[int]
    continuation: list[int]
    stopped: bool
    text: str = ""
    scores: tuple[TokenScores, ...] = ()
    cancelled: bool = False


def fit_prompt(ids: Sequence[int], config: Config, max_new_tokens: Optional[int]) -> list[int]:
    """The part of a prompt that the window has room for.

    Args:
        ids: of the prompt; an empty one becomes the end-of-text token, which starts a document.
        config: n_ctx, n_vocab, eos_id.
        max_new_tokens: room to leave; None leaves half of the window to a prompt that fills it.

    Returns:
        The ids, or their tail.

    Raises:
        ValueError: an id is out of range, or the new tokens alone fill the window.
    """
    kept = [int(token) for token in ids] or [config.eos_id]
    wrong = [token for token in kept if not 0 <= token < config.token_count]
    if wrong:
        raise ValueError(
            f"prompt ids must lie in {token_range(config)}; got {wrong[:3]}. Use the "
            "tokenizer that the model was trained with."
        )
    if max_new_tokens is not None and max_new_tokens >= config.n_ctx:
        raise ValueError(
            f"max_new_tokens must be below n_ctx = {config.n_ctx}, to leave room for a prompt; "
            f"got {max_new_tokens}. Lower it."
        )
    if max_new_tokens is not None:
        room = config.n_ctx - max_new_tokens
    else:
        room = config.n_ctx - 1 if len(kept) < config.n_ctx else max(config.n_ctx // 2, 1)
    if len(kept) > room:
        LOGGER.warning(
            "prompt of %d tokens is longer than the %d that the window of %d leaves; its last "
            "%d are used",
            len(kept),
            room,
            config.n_ctx,
            room,
        )
    return kept[-room:]
