"""What is done with a trained model: evaluation, generation, export.

Imports that take TensorFlow are in the functions: a refusal answers at once.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Optional

from commands.shared import (
    DEFAULT_RUN_ID,
    placement_of,
    prompt_of,
    terminal_of,
    trained_checkpoint,
)
from configs.schema import Config

if TYPE_CHECKING:
    from serving.engine import Engine
    from serving.requests import Sampling

_SAMPLES = "the number of samples"
_READY = "> "  # for the next prompt


def evaluate(config: Config, arguments: argparse.Namespace) -> str:
    """Scores the newest checkpoint on eval_path; returns one JSON line."""
    from utils.early_checks import check_evaluation_files
    from utils.run_folder import check_trained

    check_trained(config)
    check_evaluation_files(config)

    from evaluation.dataset_loss import DatasetLoss, append_scores
    from utils.devices import place_inference

    checkpoint = trained_checkpoint(config)
    rows, tpu = config.eval_batch_size, arguments.tpu
    fit = place_inference(config, arguments.gpu_ids, rows, "eval_batch_size", tpu=tpu)
    scores = DatasetLoss(config, placement_of(fit), config.eval_steps).evaluate(checkpoint)
    append_scores(config, arguments.sacred_id or DEFAULT_RUN_ID, scores)
    return json.dumps(scores)


def predict(config: Config, arguments: argparse.Namespace) -> Generator[str, None, None]:
    """Continues a prompt, or one after another as they are typed.

    Returns:
        What is to be shown, piece by piece as it is written; nothing if ``--out`` takes it.
    """
    from configs.masking_rules import require_causal
    from utils.early_checks import check_output_file
    from utils.run_folder import check_trained

    require_causal(config)
    check_output_file(arguments.out)
    check_trained(config)
    terminal = terminal_of(arguments)
    prompt = "" if terminal else prompt_of(arguments)

    from models.dimensions import WHOLE_IN_GENERATION
    from serving.engine import Engine
    from serving.prompts import typed_prompts
    from serving.samples import tokenizer_of
    from utils.devices import place_inference

    tokenizer = tokenizer_of(config)
    checkpoint = trained_checkpoint(config)
    samples = arguments.num_samples or config.predict_batch_size
    sampling = _sampling_of(config, arguments)
    fit = place_inference(
        config, arguments.gpu_ids, samples, _SAMPLES, WHOLE_IN_GENERATION, arguments.tpu
    )
    engine = Engine(config, placement_of(fit), samples, tokenizer)
    try:
        engine.load(checkpoint)
        if terminal is None:
            yield from _answer(engine, prompt, sampling, samples, arguments.out)
            return
        yield _READY
        for typed in typed_prompts(terminal):
            if typed is not None:
                try:
                    yield from _answer(engine, typed, sampling, samples, with_prompt=False)
                except KeyboardInterrupt:  # ends this text; at the next prompt, the session
                    yield "\n"
            yield _READY
    finally:
        engine.close()


def _sampling_of(config: Config, arguments: argparse.Namespace) -> Sampling:
    from serving.requests import Sampling

    names = ("temperature", "top_k", "top_p", "seed", "max_new_tokens", "repetition_penalty")
    return Sampling.from_config(
        config,
        entmax=arguments.entmax_sampling,
        stop=tuple(arguments.stop) if arguments.stop else None,
        **{name: getattr(arguments, name) for name in names},
    )


def _answer(
    engine: Engine,
    prompt: str,
    sampling: Sampling,
    samples: int,
    out: Optional[str] = None,
    with_prompt: bool = True,
) -> Iterator[str]:
    """A single sample as it is written, several when all are there; none if ``out`` takes them."""
    from serving.samples import format_samples, sample_texts, stream_sample

    if out is None and samples == 1:
        yield from stream_sample(engine, prompt, sampling, with_prompt)
        yield "\n"
        return
    text = format_samples(sample_texts(engine, prompt, sampling, samples))
    if out is None:
        yield text
        return
    with open(out, "w", encoding="utf-8") as file:
        file.write(text)


def export(config: Config, arguments: argparse.Namespace) -> str:
    """Writes the newest checkpoint as a SavedModel; returns its folder."""
    from utils.early_checks import check_output_folder
    from utils.run_folder import check_trained

    check_trained(config)
    check_output_folder(arguments.out, os.path.join(config.model_path, "export"))

    from serving.export import export_model

    return export_model(config, trained_checkpoint(config), arguments.out)
