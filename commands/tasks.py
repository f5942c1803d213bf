"""What evaluate.py is told to do: scores of tasks.

Imports that take TensorFlow are in the functions: a refusal answers at once.
"""

from __future__ import annotations

import argparse
import json
import os

from commands.shared import trained_checkpoint
from configs.load import load_config
from utils.early_checks import check_output_file
from utils.run_folder import check_trained
from utils.run_log import set_up_logging


def score_tasks(arguments: argparse.Namespace) -> str:
    """Scores the newest checkpoint of a model; returns tables in Markdown.

    Raises:
        ValueError: flags, config, tasks or checkpoint are unusable.
    """
    config = load_config(arguments.model, arguments.overrides, mesh_is_fitted=True)
    if not config.eval_tasks:
        raise ValueError(
            "tasks must be named; got none. Add --tasks lambada_openai, for example, or "
            "eval_tasks to the config."
        )
    check_output_file(arguments.out)
    check_trained(config)
    set_up_logging(os.path.splitext(os.path.basename(arguments.model))[0], arguments.debug)

    from evaluation.results import tables
    from evaluation.tasks import TaskScores
    from utils.checkpoints import checkpoint_step

    checkpoint = trained_checkpoint(config)
    scores = TaskScores(config, arguments.gpu_ids, arguments.num_fewshot)
    results = scores.score(checkpoint)
    scores.close()
    step = checkpoint_step(checkpoint)
    if arguments.out is not None:
        content = {
            "model": arguments.model,
            "checkpoint": checkpoint,
            "step": step,
            "limit": config.eval_tasks_limit,
            "tasks": {result.task: result.as_json() for result in results},
        }
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2) + "\n")
    model = os.path.basename(config.model_path.rstrip("/"))
    return tables(f"{model}, step {step:,}", results)
