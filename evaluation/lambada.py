"""LAMBADA built in, as in GPT-Neo: the last word of each text, from ``lambada_tokens_path``.

Two variants are published, and their scores differ by several points: OpenAI's keeps capital
letters and punctuation as they are written; the standard one is in lower case, and split into
words. A result says which it is of.
"""

from __future__ import annotations

import json
import math

import numpy as np

from configs.schema import Config
from data.tokenizers import Tokenizer
from evaluation.pairs import encode_pair
from evaluation.results import TaskResult
from evaluation.scoring import Passage, Scorer
from utils.files import exists, read_bytes

LAMBADA = "lambada"


def read_lambada(path: str, tokenizer: Tokenizer) -> list[str]:
    """The texts of a file.

    Args:
        path: JSON lines with a ``text`` each, as OpenAI publishes them, or one JSON list of lists
            of token ids, as GPT-Neo writes it.
        tokenizer: that made the ids.

    Raises:
        ValueError: the file is missing, or no such file.
    """
    if not exists(path):
        raise ValueError(
            f"lambada_tokens_path must be a file; got {path}, which does not exist. Download "
            "OpenAI's lambada_test.jsonl (its data set on the hub is EleutherAI/lambada_openai), "
            "and name it."
        )
    try:
        content = read_bytes(path).decode()
        if content.lstrip().startswith("["):
            texts = [tokenizer.decode(ids) for ids in json.loads(content)]
        else:
            texts = [json.loads(line)["text"] for line in content.splitlines() if line.strip()]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            "lambada_tokens_path must be JSON lines with a text each, or a JSON list of lists of "
            f"token ids; got {path} ({type(error).__name__}: {error}). Download it again."
        ) from error
    wrong = [text for text in texts if not isinstance(text, str) or " " not in text.strip()]
    if wrong or not texts:
        got = f"{wrong[0]!r:.80}" if wrong else "none"
        raise ValueError(
            f"texts of lambada_tokens_path must have at least two words; got {got} in {path}. "
            "Download it again."
        )
    return texts


def variant_of(texts: list[str]) -> str:
    """``openai`` if there are capital letters, else ``standard``."""
    return "openai" if any(text != text.lower() for text in texts) else "standard"


class Lambada:
    """The texts of ``lambada_tokens_path``, ready to be scored.

    Args:
        config: a checked config that has one.
        tokenizer: of the model.

    Attributes:
        name: of the task that it is, which tells the variant.

    Raises:
        ValueError: see ``read_lambada``.
    """

    def __init__(self, config: Config, tokenizer: Tokenizer):
        path = config.lambada_tokens_path
        assert path is not None
        texts = read_lambada(path, tokenizer)
        self.name = f"lambada_{variant_of(texts)}"
        self._passages = []
        for number, text in enumerate(texts[: config.eval_tasks_limit]):
            context, _, word = text.rpartition(" ")
            pair = encode_pair(tokenizer, config.eos_id, context, f" {word}")
            self._passages.append(Passage(*pair, f"text {number} of {path}"))

    def score(self, scorer: Scorer) -> TaskResult:
        """Scores a model: accuracy is the share of last words of which every token is greedy.

        Raises:
            ValueError: see ``Scorer.score``.
        """
        scores = scorer.score(self._passages)
        nats = -np.array([score.log_probability for score in scores])
        right = np.array([score.is_greedy for score in scores], np.float64)
        tokens = sum(score.tokens for score in scores)
        count = len(scores)
        errors = {}
        if count > 1:
            errors["acc"] = float(right.std(ddof=1) / math.sqrt(count))
        return TaskResult(
            self.name,
            {
                "acc": float(right.mean()),
                "perplexity": _perplexity(float(nats.mean())),
                "token_perplexity": _perplexity(float(nats.sum()) / tokens),
            },
            errors,
            items=count,
            shots=0,
            version=None,
        )


def _perplexity(nats: float) -> float:
    return math.exp(min(nats, 700.0))
