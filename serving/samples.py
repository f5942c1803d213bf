"""Samples of one prompt as text."""

from __future__ import annotations

import os

import tensorflow as tf

from configs.schema import Config
from data.tokenizers import Tokenizer, load_tokenizer
from serving.engine import Engine
from serving.requests import Sampling

SEPARATOR = "=" * 20


def tokenizer_of(config: Config) -> Tokenizer:
    """The tokenizer of the config's dataset, GPT-2's when it names none.

    Raises:
        ValueError: it cannot be loaded.
    """
    dataset = config.dataset
    if dataset is None:
        return load_tokenizer()
    return load_tokenizer(dataset.tokenizer_path, dataset.tokenizer_is_pretrained)


def sample_texts(
    engine: Engine, tokenizer: Tokenizer, prompt: str, sampling: Sampling, samples: int
) -> list[str]:
    """Continues ``prompt`` ``samples`` times.

    Returns:
        Texts; each begins with the prompt unless the config's remove_partial_sequences is set.
    """
    ids = tokenizer.encode(prompt)
    [completions] = engine.generate([ids], sampling, samples)
    texts = []
    for completion in completions:
        # An empty prompt is continued from an end of text that nobody wrote.
        if engine.config.remove_partial_sequences or not ids:
            texts.append(tokenizer.decode(completion.continuation))
        else:
            texts.append(tokenizer.decode(completion.prompt + completion.continuation))
    return texts


def format_samples(texts: list[str]) -> str:
    """One text as it is; several under numbered headings."""
    if len(texts) == 1:
        return texts[0] + "\n"
    return "".join(
        f"{SEPARATOR} sample {number} {SEPARATOR}\n{text}\n"
        for number, text in enumerate(texts, start=1)
    )


def write_predictions(config: Config, run_id: str, step: int, texts: list[str]) -> str:
    """Writes ``model_path/predictions_<run_id>_<step>.txt`` and returns its path."""
    path = os.path.join(config.model_path, f"predictions_{run_id}_{step}.txt")
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(format_samples(texts))
    return path
