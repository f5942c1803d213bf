"""The engine that generates text; ``--predict``, checkpoint samples and servers stand on it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Optional, Union

from configs.masking_rules import require_causal
from configs.schema import Config
from data.tokenizers import Tokenizer
from model_fns import Placement
from serving.batches import BatchSchedule
from serving.generation import Generation
from serving.requests import Completion, QueueFull, Request, Sampling, fit_prompt
from serving.slots import SlotSchedule
from serving.text_stream import StoppingText

LOGGER = logging.getLogger(__name__)
MOST_WAITING = 64


class Engine:
    """A loaded model that continues prompts, for any number of threads at once.

    A text is the same whatever else is written beside it. A thread of the engine's own runs the
    model as long as there is something to write.

    Args:
        config: a checked config.
        placement: mesh and devices.
        batch_size: texts that are written at once.
        tokenizer: of the model; without one, answers are token ids only, and there are no stop
            strings.
        most_waiting: requests that may wait for their turn.

    Attributes:
        config, tokenizer, most_waiting: as given.

    Raises:
        ValueError: the model is a masked one.
    """

    def __init__(
        self,
        config: Config,
        placement: Placement,
        batch_size: int,
        tokenizer: Optional[Tokenizer] = None,
        most_waiting: int = MOST_WAITING,
    ):
        require_causal(config)
        self.config = config
        self.tokenizer = tokenizer
        self.most_waiting = most_waiting
        compiled = placement.mesh_layout.compiled
        self._schedule: Union[SlotSchedule, BatchSchedule] = (
            BatchSchedule(config, placement, batch_size)
            if compiled
            else SlotSchedule(config, placement, batch_size)
        )
        self._changed = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._taken: list[Generation] = []  # by the worker, from those that waited
        self._works = False
        self._pauses = 0  # how many want nothing new to begin
        self._closed = False

    @property
    def step(self) -> int:
        """Updates behind the loaded weights."""
        return self._schedule.session.step

    def load(self, checkpoint: str) -> None:
        """Loads the weights of ``checkpoint``, after what is being written; what waits goes on.

        Raises:
            ValueError: it does not fit the model.
        """
        with self._changed:
            self._pause()
            try:
                self._schedule.session.restore(checkpoint)
                self._schedule.forget()
            finally:
                self._pauses -= 1
                self._work()

    def close(self, finishes: bool = False) -> None:
        """Frees the weights.

        Args:
            finishes: whether what has been submitted is written to its end; otherwise it is
                cancelled. Nothing new is accepted.
        """
        with self._changed:
            self._closed = True
            if finishes:
                self._changed.wait_for(lambda: not self._works and not self._waiting)
            for generation in (*self._taken, *self._waiting):
                generation.cancel()
            self._pause()
            self._schedule.session.close()

    @property
    def gives_scores(self) -> bool:
        """Whether log-probabilities can be asked for."""
        return self._schedule.gives_scores

    def counts(self) -> tuple[int, int]:
        """How many texts are being written and how many wait."""
        with self._changed:
            running, waiting = (
                sum(not generation.ended for generation in group)
                for group in (self._taken, self._waiting)
            )
        return running, waiting

    def submit(self, request: Request) -> Generation:
        """Begins to answer a request.

        Raises:
            ValueError: the request cannot be answered; see ``fit_prompt``.
            QueueFull: too many wait already.
            RuntimeError: the engine is closed.
        """
        [generation] = self.submit_all([request])
        return generation

    def submit_all(self, requests: Sequence[Request]) -> list[Generation]:
        """Begins to answer requests, all of them or none; raises as ``submit`` does."""
        made = [one for each in requests for one in self._made(each.prompt, each.sampling, 1)]
        with self._changed:
            if not self._has_room(len(made)):
                raise QueueFull(
                    f"the engine's queue must have room; got {len(self._waiting)} of "
                    f"{self.most_waiting} places taken, {len(made)} wanted. Ask again later."
                )
            for generation in made:
                self._enqueue(generation)
        return made

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, samples: int = 1
    ) -> list[list[Completion]]:
        """Continues every prompt ``samples`` times, and waits for all of them.

        Args:
            prompts: token ids.
            sampling: settings of all prompts.
            samples: texts per prompt; each has its own seed.

        Returns:
            For each prompt its completions.

        Raises:
            ValueError: see ``submit``.
        """
        rows = [self._made(ids, sampling, samples) for ids in prompts]
        everything = [generation for row in rows for generation in row]
        try:
            with self._changed:
                for generation in everything:
                    self._changed.wait_for(self._has_room)
                    self._enqueue(generation)
            return [[generation.result() for generation in row] for row in rows]
        except BaseException:
            for generation in everything:
                generation.cancel()
            raise

    def _made(self, ids: Sequence[int], sampling: Sampling, samples: int) -> list[Generation]:
        """The samples of a prompt, yet to be written."""
        if sampling.stop and self.tokenizer is None:
            raise ValueError(
                f"stop must be left out where the engine has no tokenizer; got {sampling.stop}. "
                "Give the engine one, or use stop_id."
            )
        if sampling.logprobs is not None and not self.gives_scores:
            raise ValueError(
                f"logprobs must be left out on a TPU; got {sampling.logprobs}. Run on another "
                "device."
            )
        fitted = fit_prompt(ids, self.config, sampling.max_new_tokens)
        limit = self.config.n_ctx - len(fitted)
        if sampling.max_new_tokens is not None:
            limit = min(limit, sampling.max_new_tokens)
        made = []
        for number in range(samples):
            # An empty prompt is continued from an end of text that nobody wrote.
            text = StoppingText(self.tokenizer, fitted if ids else [], sampling.stop)
            made.append(Generation(fitted, sampling.of_sample(number), limit, text))
        return made

    def _has_room(self, count: int = 1) -> bool:
        if self._closed:
            raise RuntimeError("the engine must be open to take requests; got a closed one.")
        if len(self._waiting) + count > self.most_waiting:
            self._waiting = deque(x for x in self._waiting if not x.ended)
        return len(self._waiting) + count <= self.most_waiting

    def _enqueue(self, generation: Generation) -> None:
        self._waiting.append(generation)
        self._work()

    def _take(self) -> Optional[Generation]:
        """The next one that waits, for the worker."""
        with self._changed:
            while self._waiting and not self._pauses:
                generation = self._waiting.popleft()
                self._changed.notify_all()
                if not generation.ended:
                    self._taken = [*(x for x in self._taken if not x.ended), generation]
                    return generation
        return None

    def _pause(self) -> None:
        """Waits until nothing is written; nothing new begins until ``_pauses`` is lowered."""
        self._pauses += 1
        self._changed.wait_for(lambda: not self._works)

    def _work(self) -> None:
        """Starts the worker if there is something to do and none is there."""
        self._changed.notify_all()
        if self._waiting and not self._works and not self._pauses:
            self._works = True
            threading.Thread(target=self._write, name="engine", daemon=True).start()

    def _write(self) -> None:
        """The worker: goes on as long as there is something to write."""
        while True:
            with self._changed:
                if not self._schedule.busy and (self._pauses or not self._waiting):
                    self._works = False
                    self._changed.notify_all()
                    return
            try:
                self._schedule.turn(self._take)
            except Exception as error:  # whoever waits for an answer must hear of it
                LOGGER.exception("the engine failed")
                for generation in self._taken:
                    generation.fail(error)
