"""A loaded model that writes a batch of texts in one run: dynamic batching.

For programs that XLA compiles as a whole (TPUs): texts begin and end together, and are told when
all of them are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from configs.schema import Config
from model_fns import ModeKeys, Placement, inference_graph
from models.sampling import FEATURES
from serving.generation import Generation
from serving.slots import NO_STOP_ID, settings_of
from utils.inference_session import InferenceSession


class BatchSchedule:
    """Runs what waits, a batch at a time; for one thread. Arguments as ``SlotSchedule``."""

    gives_scores = False
    busy = False  # between two turns

    def __init__(self, config: Config, placement: Placement, count: int):
        self._config = config
        self._count = count

        def build() -> tuple[Any, Sequence[Any]]:
            self._inputs = {
                name: tf.compat.v1.placeholder(
                    dtype, [count, config.n_ctx] if name == "tokens" else [count], name
                )
                for name, dtype in FEATURES.items()
            }
            return inference_graph(config, placement, ModeKeys.PREDICT, self._inputs)

        self.session = InferenceSession(build, placement.devices, placement.tpu)

    def forget(self) -> None:
        """Nothing stays between two runs."""

    def turn(self, take: Callable[[], Optional[Generation]]) -> None:
        """Writes the texts of the next batch; see ``SlotSchedule.turn``."""
        batch: list[Generation] = []
        while len(batch) < self._count and (generation := take()) is not None:
            batch.append(generation)
        if not batch:
            return
        try:
            written = self._run(batch)
        except Exception as error:
            for generation in batch:
                generation.fail(error)
            return
        for generation, tokens in zip(batch, written):
            for token in tokens:
                if not generation.ended:
                    generation.push(token)

    def _run(self, batch: Sequence[Generation]) -> list[list[int]]:
        """New tokens of each text, a stop token included."""
        features = {
            name: np.zeros(tensor.shape.as_list(), tensor.dtype.as_numpy_dtype)
            for name, tensor in self._inputs.items()
        }
        # Rows beyond those asked for hold one token and end at once.
        features["lengths"][:] = features["ends"][:] = 1
        features["repetition_penalty"][:] = 1.0
        for row, generation in enumerate(batch):
            sampling, ids = generation.sampling, generation.prompt
            stop_id = NO_STOP_ID if sampling.stop_id is None else sampling.stop_id
            places = {"lengths": len(ids), "ends": len(ids) + generation.limit}
            values = settings_of(sampling, self._config) | places | {"stop_ids": stop_id}
            for name, value in values.items():
                features[name][row] = value
            features["tokens"][row, : len(ids)] = ids
        feed = {self._inputs[name]: value for name, value in features.items()}
        result = self.session.run(self.session.fetches, feed)
        return [
            result["tokens"][row, len(generation.prompt) : result["lengths"][row]].tolist()
            for row, generation in enumerate(batch)
        ]
