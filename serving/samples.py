"""Samples of one prompt as text."""

from __future__ import annotations

import os
from collections.abc import Iterator

import tensorflow as tf

from configs.schema import Config
from data.tokenizers import Tokenizer, load_tokenizer
from serving.engine import Engine
from serving.requests import Request, Sampling

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


def _prompt_text(engine: Engine, prompt: str, ids: list[int]) -> str:
    """What a sample begins with: the prompt as far as the window has it, or nothing."""
    assert engine.tokenizer is not None
    # An empty prompt is continued from an end of text that nobody wrote.
    is_shown = prompt and not engine.config.remove_partial_sequences
    return engine.tokenizer.decode(ids) if is_shown else ""


def sample_texts(engine: Engine, prompt: str, sampling: Sampling, samples: int) -> list[str]:
    """Continues ``prompt`` ``samples`` times.

    Args:
        engine: with a tokenizer.
        prompt: any text.
        sampling: how it is continued.
        samples: texts, each with its own seed.

    Returns:
        Texts; each begins with the prompt unless the config's remove_partial_sequences is set.
    """
    assert engine.tokenizer is not None
    [completions] = engine.generate([engine.tokenizer.encode(prompt)], sampling, samples)
    return [_prompt_text(engine, prompt, one.prompt) + one.text for one in completions]


def stream_sample(
    engine: Engine, prompt: str, sampling: Sampling, with_prompt: bool = True
) -> Iterator[str]:
    """The first of ``sample_texts`` in pieces, as it is written; ``with_prompt`` or without."""
    assert engine.tokenizer is not None
    generation = engine.submit(Request(engine.tokenizer.encode(prompt), sampling))
    try:
        if with_prompt:
            yield _prompt_text(engine, prompt, generation.prompt)
        for event in generation:
            yield event.text
    finally:  # nobody reads on
        generation.cancel()


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
