"""What is done with a trained model: evaluation, generation, export.

Imports that take TensorFlow are in the functions: a refusal answers at once.
"""

from __future__ import annotations

import argparse
import json
import os

from commands.shared import DEFAULT_RUN_ID, placement_of, prompt_of, trained_checkpoint
from configs.schema import Config

_SAMPLES = "the number of samples"


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


def predict(config: Config, arguments: argparse.Namespace) -> str:
    """Continues a prompt; returns the samples, or "" when they went to ``--out``."""
    from configs.masking_rules import require_causal
    from utils.early_checks import check_output_file
    from utils.run_folder import check_trained

    require_causal(config)
    check_output_file(arguments.out)
    check_trained(config)
    prompt = prompt_of(arguments)

    from models.dimensions import WHOLE_IN_GENERATION
    from serving.engine import Engine
    from serving.requests import Sampling
    from serving.samples import format_samples, sample_texts, tokenizer_of
    from utils.devices import place_inference

    tokenizer = tokenizer_of(config)
    checkpoint = trained_checkpoint(config)
    samples = arguments.num_samples or config.predict_batch_size
    fit = place_inference(
        config, arguments.gpu_ids, samples, _SAMPLES, WHOLE_IN_GENERATION, arguments.tpu
    )
    sampling = Sampling.from_config(
        config,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        max_new_tokens=arguments.max_new_tokens,
        entmax=arguments.entmax_sampling,
    )
    engine = Engine(config, placement_of(fit), samples)
    engine.load(checkpoint)
    text = format_samples(sample_texts(engine, tokenizer, prompt, sampling, samples))
    if arguments.out is None:
        return text
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.write(text)
    return ""


def export(config: Config, arguments: argparse.Namespace) -> str:
    """Writes the newest checkpoint as a SavedModel; returns its folder."""
    from utils.early_checks import check_output_folder
    from utils.run_folder import check_trained

    check_trained(config)
    check_output_folder(arguments.out, os.path.join(config.model_path, "export"))

    from serving.export import export_model

    return export_model(config, trained_checkpoint(config), arguments.out)
