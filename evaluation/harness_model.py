"""The model as lm-evaluation-harness asks for it: likelihoods and continuations of texts.

Importing this imports the harness; see ``evaluation/harness.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from configs.schema import Config
from data.tokenizers import Tokenizer
from evaluation.pairs import encode_pair
from evaluation.scoring import Passage, Score, Scorer
from serving.engine import Engine
from serving.requests import Sampling

LOGGER = logging.getLogger(__name__)
MOST_NEW_TOKENS = 256  # of a task that does not say; the harness's number

_LENGTH_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_KNOWN_KEYS = {"until", "do_sample", "temperature", "top_k", "top_p", "num_beams", *_LENGTH_KEYS}


class HarnessModel(LM):
    """Answers the harness's three kinds of requests; models are loaded when one needs them.

    Args:
        config: a checked config of a causal model.
        tokenizer: of the model.
        scorer: makes and loads what scores.
        engine: makes and loads what generates.
    """

    def __init__(
        self,
        config: Config,
        tokenizer: Tokenizer,
        scorer: Callable[[], Scorer],
        engine: Callable[[], Engine],
    ):
        super().__init__()
        self._config = config
        self._tokenizer = tokenizer
        self._scorer = scorer
        self._engine = engine

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        """Scores a continuation after a context.

        Args:
            requests: their arguments are (context, continuation).

        Returns:
            For each (log-probability of the continuation in nats, whether it is what greedy
            decoding gives).

        Raises:
            ValueError: see ``Scorer.score``.
        """
        passages = [
            Passage(
                *encode_pair(self._tokenizer, self._config.eos_id, *request.args), _name(request)
            )
            for request in requests
        ]
        scores = self._scores(passages)
        return [(score.log_probability, score.is_greedy) for score in scores]

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """Scores whole texts, in windows that each predict what the one before has not.

        Args:
            requests: their arguments are (text,).

        Returns:
            The log-probability of each text in nats; 0 for an empty one.

        Raises:
            ValueError: see ``Scorer.score``.
        """
        passages, owners = [], []
        for number, request in enumerate(requests):
            [text] = request.args
            windows = get_rolling_token_windows(
                self._tokenizer.encode(text), self._config.eos_id, self._config.n_ctx, context_len=1
            )
            for context, continuation in map(make_disjoint_window, windows):
                passages.append(Passage(context, continuation, _name(request)))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, score in zip(owners, self._scores(passages)):
            totals[owner] += score.log_probability
        return totals

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """Continues a context until one of the task's strings, or the end of text, comes.

        Args:
            requests: their arguments are (context, settings of the generation).

        Returns:
            The continuations, without what ended them.

        Raises:
            ValueError: a setting is unknown or out of its range.
        """
        groups: dict[Sampling, list[int]] = {}
        for number, request in enumerate(requests):
            sampling = self._sampling(request.args[1], _name(request))
            groups.setdefault(sampling, []).append(number)
        texts = [""] * len(requests)
        for sampling, numbers in groups.items():
            prompts = [self._tokenizer.encode(requests[number].args[0]) for number in numbers]
            for number, [completion] in zip(numbers, self._engine().generate(prompts, sampling)):
                texts[number] = completion.text
        return texts

    def _scores(self, passages: Sequence[Passage]) -> list[Score]:
        return self._scorer().score(passages) if passages else []

    def _sampling(self, settings: Mapping[str, Any], name: str) -> Sampling:
        unknown = sorted(settings.keys() - _KNOWN_KEYS)
        if unknown or settings.get("num_beams", 1) != 1:
            raise ValueError(
                f"generation_kwargs of {name} must be among {', '.join(sorted(_KNOWN_KEYS))}, with "
                f"num_beams 1; got {dict(settings)}. Change the task."
            )
        until = settings.get("until") or ()
        given = [settings[key] for key in _LENGTH_KEYS if settings.get(key) is not None]
        sampled = bool(settings.get("do_sample", False))
        return Sampling(
            temperature=float(settings.get("temperature", 1.0)) if sampled else 0.0,
            top_k=int(settings.get("top_k") or 0) if sampled else 0,
            top_p=float(settings.get("top_p") or 1.0) if sampled else 1.0,
            seed=self._config.seed,
            max_new_tokens=self._new_tokens(int(given[0]) if given else MOST_NEW_TOKENS, name),
            stop_id=self._config.eos_id,
            stop=tuple(text for text in ([until] if isinstance(until, str) else until) if text),
        )

    def _new_tokens(self, wanted: int, name: str) -> int:
        """As many as are wanted; half of the window if they would leave no room for a prompt."""
        window = self._config.n_ctx
        if wanted < window:
            return wanted
        LOGGER.warning(
            "%s: %d new tokens leave no room for a prompt in the window of %d; %d are written",
            name,
            wanted,
            window,
            window // 2,
        )
        return window // 2


def _name(request: Instance) -> str:
    """What an item is called in an error."""
    return f"item {request.doc_id} of task {request.task_name}"
