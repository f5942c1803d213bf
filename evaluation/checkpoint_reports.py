"""Evaluation and samples at every checkpoint of a training run."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from typing import Any

from configs.schema import Config
from evaluation.dataset_loss import DatasetLoss, append_scores
from evaluation.tasks import TaskScores
from model_fns import Placement
from models.dimensions import WHOLE_IN_GENERATION
from serving.engine import Engine
from serving.requests import Sampling
from serving.samples import sample_texts, tokenizer_of, write_predictions
from utils.checkpoints import checkpoint_step
from utils.devices import Fit, place_inference

LOGGER = logging.getLogger(__name__)


def _placement(fit: Fit) -> Placement:
    for notice in fit.notices:
        LOGGER.warning(notice)
    return Placement(fit.mesh_layout, fit.devices)


class CheckpointReports:
    """What ``eval_steps``, ``eval_tasks`` and ``predict_steps`` ask for.

    Training pauses while a report is made; its own graph and session stay as they are. The
    graphs of evaluation and generation are built once, and data are opened here, so that a mistake
    in the data, the tasks or the prompt shows before training begins.

    Args:
        config: a checked config.
        devices: named by the user; empty for the CPU.
        run_id: part of the result files' names.
        prompt: continued at every checkpoint.
    """

    def __init__(self, config: Config, devices: Sequence[str], run_id: str, prompt: str):
        self._config = config
        self._run_id = run_id
        self._prompt = prompt
        self._reports: list[Any] = []
        if config.eval_steps:
            fit = place_inference(config, devices, config.eval_batch_size, "eval_batch_size")
            self._evaluation = DatasetLoss(config, _placement(fit), config.eval_steps)
            self._reports.append(self._evaluate)
        if config.eval_tasks:
            self._tasks = TaskScores(config, devices)
            self._reports.append(self._score_tasks)
        if config.predict_steps:
            batch_size = config.predict_batch_size
            fit = place_inference(
                config, devices, batch_size, "predict_batch_size", WHOLE_IN_GENERATION
            )
            tokenizer = tokenizer_of(config)
            self._engine = Engine(config, _placement(fit), batch_size, tokenizer)
            self._reports.append(self._sample)

    def report(self, checkpoint: str) -> None:
        """Evaluates and samples from ``checkpoint``."""
        for report in self._reports:
            report(checkpoint)

    def _evaluate(self, checkpoint: str) -> None:
        scores = self._evaluation.evaluate(checkpoint)
        append_scores(self._config, self._run_id, scores)
        LOGGER.info("evaluation %s", json.dumps(scores))

    def _score_tasks(self, checkpoint: str) -> None:
        scores = {
            f"{result.task}/{metric}": value
            for result in self._tasks.score(checkpoint)
            for metric, value in result.scores.items()
        }
        scores["global_step"] = checkpoint_step(checkpoint)
        append_scores(self._config, self._run_id, scores)
        LOGGER.info("tasks %s", json.dumps(scores))

    def _sample(self, checkpoint: str) -> None:
        self._engine.load(checkpoint)
        samples = self._config.predict_steps * self._config.predict_batch_size
        sampling = Sampling.from_config(self._config)
        texts = sample_texts(self._engine, self._prompt, sampling, samples)
        path = write_predictions(self._config, self._run_id, self._engine.step, texts)
        LOGGER.info("samples in %s", os.path.relpath(path) if os.path.exists(path) else path)
