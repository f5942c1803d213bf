"""The engine that generates text; ``--predict``, checkpoint samples and servers stand on it."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from configs.masking_rules import require_causal
from configs.schema import Config
from model_fns import ModeKeys, Placement, inference_graph
from models.sampling import FEATURES
from utils.inference_session import InferenceSession

LOGGER = logging.getLogger(__name__)
NO_STOP_ID = -1


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: divisor of the logits; 0 takes the most likely token.
        top_k: tokens that may be drawn, the most likely ones; 0 for all.
        top_p: total probability of the tokens that may be drawn; 1 for all.
        seed: repeats a text.
        max_new_tokens: at most so many; None fills the window.
        stop_id: token that ends a text; None for none.
        entmax: whether tokens are drawn from entmax probabilities in place of softmax ones.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_new_tokens: Optional[int]
    stop_id: Optional[int]
    entmax: bool = False

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
        }
        settings.update((name, value) for name, value in given.items() if value is not None)
        if settings["top_k"] < 0:  # GPT-Neo's -2: a tenth of the vocabulary
            settings["top_k"] = config.n_vocab // 10
        return cls(**settings)

    def seed_of_sample(self, number: int) -> int:
        """Seed of the sample ``number`` of a prompt; the first has the seed itself."""
        if number == 0:
            return self.seed % 2**31
        return zlib.crc32(f"{self.seed},{number}".encode()) % 2**31


@dataclass(frozen=True)
class Completion:
    """One generated text as token ids.

    Attributes:
        prompt: ids that were continued (the tail, if the prompt was too long).
        continuation: new ids, without the stop token.
        stopped: whether the stop token ended it.
    """

    prompt: list[int]
    continuation: list[int]
    stopped: bool


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
    wrong = [token for token in kept if not 0 <= token < config.n_vocab]
    if wrong:
        raise ValueError(
            f"prompt ids must lie in [0, n_vocab = {config.n_vocab}); got {wrong[:3]}. Use the "
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


class Engine:
    """A loaded model that continues prompts.

    Args:
        config: a checked config.
        placement: mesh and devices.
        batch_size: rows that are generated together.

    Raises:
        ValueError: the model is a masked one.
    """

    def __init__(self, config: Config, placement: Placement, batch_size: int):
        require_causal(config)
        self.config = config
        self.batch_size = batch_size

        def build() -> tuple[Any, Sequence[Any]]:
            self._inputs = {
                name: tf.compat.v1.placeholder(
                    dtype, [batch_size, config.n_ctx] if name == "tokens" else [batch_size], name
                )
                for name, dtype in FEATURES.items()
            }
            return inference_graph(config, placement, ModeKeys.PREDICT, self._inputs)

        self._session = InferenceSession(build, placement.devices, placement.tpu)

    @property
    def step(self) -> int:
        """Updates behind the loaded weights."""
        return self._session.step

    def load(self, checkpoint: str) -> None:
        """Loads the weights of ``checkpoint``."""
        self._session.restore(checkpoint)

    def close(self) -> None:
        """Frees the weights."""
        self._session.close()

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, samples: int = 1
    ) -> list[list[Completion]]:
        """Continues every prompt ``samples`` times.

        Args:
            prompts: token ids.
            sampling: settings of all prompts.
            samples: texts per prompt; each has its own seed.

        Returns:
            For each prompt its completions; each is the same whatever else is generated.

        Raises:
            ValueError: see ``fit_prompt``.
        """
        fitted = [fit_prompt(ids, self.config, sampling.max_new_tokens) for ids in prompts]
        rows = [(ids, number) for ids in fitted for number in range(samples)]
        completions: list[Completion] = []
        for first in range(0, len(rows), self.batch_size):
            completions += self._generate_batch(rows[first : first + self.batch_size], sampling)
        return [completions[i : i + samples] for i in range(0, len(completions), samples)]

    def _generate_batch(
        self, rows: Sequence[tuple[list[int], int]], sampling: Sampling
    ) -> list[Completion]:
        stop_id = NO_STOP_ID if sampling.stop_id is None else sampling.stop_id
        features = {
            name: np.zeros(tensor.shape.as_list(), tensor.dtype.as_numpy_dtype)
            for name, tensor in self._inputs.items()
        }
        # Rows beyond those asked for hold one token and end at once.
        features["lengths"][:] = features["ends"][:] = 1
        features["stop_ids"][:] = stop_id
        features["temperature"][:] = sampling.temperature
        features["top_k"][:] = min(sampling.top_k, self.config.n_vocab)
        features["top_p"][:] = sampling.top_p
        features["entmax"][:] = sampling.entmax
        for row, (ids, number) in enumerate(rows):
            room = self.config.n_ctx - len(ids)
            new = room if sampling.max_new_tokens is None else min(sampling.max_new_tokens, room)
            features["tokens"][row, : len(ids)] = ids
            features["lengths"][row] = len(ids)
            features["ends"][row] = len(ids) + new
            features["seeds"][row] = sampling.seed_of_sample(number)
        feed = {self._inputs[name]: value for name, value in features.items()}
        result = self._session.run(self._session.fetches, feed)
        completions = []
        for row, (ids, _) in enumerate(rows):
            written = result["tokens"][row, len(ids) : result["lengths"][row]].tolist()
            stopped = bool(written) and written[-1] == stop_id
            completions.append(Completion(ids, written[:-1] if stopped else written, stopped))
        return completions
