"""Loss, perplexity and bits per byte on held-out records."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from configs.schema import Config
from data.masking import NOT_PREDICTED
from data.tokenizers import load_tokenizer, token_byte_lengths
from inputs import evaluation_input, open_sources
from model_fns import ModeKeys, Placement, inference_graph
from utils.inference_session import InferenceSession

LOGGER = logging.getLogger(__name__)


def byte_lengths(config: Config) -> Optional[np.ndarray]:
    """UTF-8 bytes that each token id stands for, [n_vocab] int64.

    None without a tokenizer; and for a masked model, which does not predict the whole text, so
    that its losses do not add up to the text's information.
    """
    if not config.causal:
        LOGGER.info("bits per byte is left out: a masked model predicts parts of the text")
        return None
    if config.dataset is None:
        LOGGER.warning("bits per byte is left out: the dataset names no tokenizer")
        return None
    dataset = config.dataset
    try:
        tokenizer = load_tokenizer(dataset.tokenizer_path, dataset.tokenizer_is_pretrained)
    except ValueError as error:
        LOGGER.warning("bits per byte is left out: %s", error)
        return None
    lengths = np.zeros(max(config.n_vocab, tokenizer.size), np.int64)
    lengths[: tokenizer.size] = token_byte_lengths(tokenizer)
    return lengths


class DatasetLoss:
    """Evaluation on the records of ``eval_path``, with a graph that is built once.

    Args:
        config: a checked config.
        placement: mesh and devices.
        max_batches: of one evaluation; 0 for all records.

    Raises:
        ValueError: there is no evaluation data, or it does not fit the config.
    """

    def __init__(self, config: Config, placement: Placement, max_batches: int):
        self._config = config
        self._byte_lengths = byte_lengths(config)
        input_fn = evaluation_input(config, open_sources(config, training=False), max_batches)

        def build() -> tuple[Any, Sequence[Any]]:
            iterator = tf.compat.v1.data.make_initializable_iterator(input_fn({}))
            self._rewind = iterator.initializer
            features, labels = iterator.get_next()
            return inference_graph(config, placement, ModeKeys.EVAL, features, labels)

        self._session = InferenceSession(build, placement.devices, placement.tpu)

    def close(self) -> None:
        """Frees the weights."""
        self._session.close()

    def evaluate(self, checkpoint: str) -> dict[str, float]:
        """Scores one checkpoint.

        Returns:
            GPT-Neo's keys: ``loss`` (what is trained on, mean per token: cross entropy and z-loss
            in nats, or the entmax loss), ``perplexity`` (exp of the mean cross entropy per token),
            ``bits per byte`` (total cross entropy in bits over the UTF-8 bytes of the predicted
            tokens; absent without a tokenizer and for a masked model), ``mean_logits`` and
            ``global_step``; and ``cross_entropy``, ``tokens``, ``bytes``.

            Tokens are those that are predicted: all but the first of a window and those that a
            ``loss_mask`` takes out, or the chosen ones of a masked model. Cross entropy and
            perplexity are those of the softmax of the logits, with ``entmax_loss`` too; see
            models/losses.py.

        Raises:
            ValueError: no token is predicted.
        """
        self._session.restore(checkpoint)
        self._session.run(self._rewind)
        totals = {"loss": 0.0, "cross_entropy": 0.0, "mean_logits": 0.0}
        tokens, bytes_predicted = 0.0, 0
        while True:
            try:
                batch = self._session.run(self._session.fetches)
            except tf.errors.OutOfRangeError:
                break
            weights = batch["row_tokens"].astype(np.float64)
            tokens += weights.sum()
            for name in totals:
                totals[name] += float((batch[name].astype(np.float64) * weights).sum())
            if self._byte_lengths is not None:
                labels = batch["labels"][weights > 0]
                predicted = labels[labels != NOT_PREDICTED]
                bytes_predicted += int(self._byte_lengths[predicted].sum())
        if not tokens:
            raise ValueError(
                "evaluation must predict at least one token; got none. Add evaluation data whose "
                "loss_mask is not 0 everywhere, or raise mlm_mask_prob."
            )
        means = {name: total / tokens for name, total in totals.items()}
        return self._summary(means, int(tokens), bytes_predicted)

    def _summary(self, means: dict[str, float], tokens: int, bytes_: int) -> dict[str, float]:
        bits = means["cross_entropy"] * tokens / math.log(2)
        scores: dict[str, float] = {"bits per byte": bits / bytes_} if bytes_ else {}
        return scores | {
            "loss": means["loss"],
            "mean_logits": means["mean_logits"],
            "perplexity": math.exp(min(means["cross_entropy"], 700.0)),
            "global_step": self._session.step,
            "cross_entropy": means["cross_entropy"],
            "tokens": tokens,
            "bytes": bytes_,
        }


def append_scores(config: Config, run_id: str, scores: dict[str, float]) -> str:
    """Appends one JSON line to ``model_path/eval_<run_id>.jsonl`` and returns its path."""
    path = os.path.join(config.model_path, f"eval_{run_id}.jsonl")
    with tf.io.gfile.GFile(path, "a") as file:
        file.write(json.dumps(scores) + "\n")
    return path
