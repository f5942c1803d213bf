"""Scores of tasks by name: LAMBADA of a file, and those of lm-evaluation-harness."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from configs.masking_rules import require_causal
from configs.schema import Config
from evaluation.harness import HarnessTasks
from evaluation.lambada import LAMBADA, Lambada
from evaluation.results import TaskResult
from evaluation.scoring import Scorer
from model_fns import Placement
from models.dimensions import WHOLE_IN_GENERATION
from serving.engine import Engine
from serving.samples import tokenizer_of
from utils.devices import place_inference

if TYPE_CHECKING:
    from evaluation.harness_model import HarnessModel

LOGGER = logging.getLogger(__name__)


class TaskScores:
    """The tasks of ``eval_tasks`` and a model, whose graphs are built when a task needs them.

    Args:
        config: a checked config of a causal model.
        devices: named by the user; empty for the CPU.
        num_fewshot: solved examples before each item; None for what a task says.

    Raises:
        ValueError: a task is unknown, or its data cannot be read.
    """

    def __init__(
        self,
        config: Config,
        devices: Sequence[str],
        num_fewshot: Optional[int] = None,
    ):
        require_causal(config)
        self._config = config
        scoring = place_inference(config, devices, config.eval_batch_size, "eval_batch_size")
        generation = place_inference(
            config, devices, config.predict_batch_size, "predict_batch_size", WHOLE_IN_GENERATION
        )
        for notice in dict.fromkeys(scoring.notices + generation.notices):
            LOGGER.warning(notice)
        self._fits = scoring, generation
        self._tokenizer = tokenizer_of(config)
        self._checkpoint: Optional[str] = None
        self._loaded: dict[Any, str] = {}
        names = list(dict.fromkeys(config.eval_tasks))
        self._lambada: Optional[Lambada] = None
        if LAMBADA in names:
            names.remove(LAMBADA)
            self._lambada = Lambada(config, self._tokenizer)
            if self._lambada.name in names:
                raise ValueError(
                    f"eval_tasks must name each task once; got {LAMBADA}, which is "
                    f"{self._lambada.name} of lambada_tokens_path, and that as well. Remove one."
                )
        self._harness: Optional[HarnessTasks] = None
        if names:
            self._harness = HarnessTasks(
                names, config.eval_tasks_path, num_fewshot, config.eval_tasks_limit
            )

    def score(self, checkpoint: str) -> list[TaskResult]:
        """Scores the weights of a checkpoint.

        Raises:
            ValueError: it does not fit the model, has diverged, or an item cannot be scored.
        """
        self._checkpoint = checkpoint
        results = []
        if self._lambada is not None:
            results.append(self._lambada.score(self._scorer()))
        if self._harness is not None:
            results += self._harness.score(self._model)
        return results

    @functools.cached_property
    def _model(self) -> HarnessModel:
        from evaluation.harness_model import HarnessModel

        return HarnessModel(self._config, self._tokenizer, self._scorer, self._engine)

    def _scorer(self) -> Scorer:
        return self._with_weights(self._made_scorer)

    def _engine(self) -> Engine:
        return self._with_weights(self._made_engine)

    @functools.cached_property
    def _made_scorer(self) -> Scorer:
        fit = self._fits[0]
        placement = Placement(fit.mesh_layout, fit.devices)
        return Scorer(self._config, placement, self._config.eval_batch_size)

    @functools.cached_property
    def _made_engine(self) -> Engine:
        fit = self._fits[1]
        placement = Placement(fit.mesh_layout, fit.devices)
        rows = self._config.predict_batch_size
        return Engine(self._config, placement, rows, self._tokenizer)

    def _with_weights(self, made: Any) -> Any:
        assert self._checkpoint is not None
        if self._loaded.get(made) != self._checkpoint:
            made.load(self._checkpoint)
            self._loaded[made] = self._checkpoint
        return made

    def close(self) -> None:
        """Frees the weights."""
        for made in self._loaded:
            made.close()
