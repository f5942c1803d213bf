"""A loaded model with slots, and the texts in them: continuous batching.

Texts come and go one by one. A prompt is fed alone, in chunks between which the texts in the slots
go on, and put into a free slot; then all slots advance together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from configs.schema import Config
from model_fns import Placement
from models.decoder import cache_dims, prefill_chunks
from models.dimensions import CACHE_BLOCK
from models.slots import CHUNK_ROWS, STEP_ROWS, PromptFeeds, SlotGraph, build_slots
from serving.generation import Generation
from serving.requests import Sampling, TokenScores
from utils.inference_session import InferenceSession
from utils.mesh_tensorflow import mtf

NO_STOP_ID = -1


def settings_of(sampling: Sampling, config: Config) -> dict[str, Any]:
    """The values of a row by the names of ``ROW_SETTINGS``."""
    return {
        "seeds": sampling.seed_of_sample(0),
        "temperature": sampling.temperature,
        "top_k": min(sampling.top_k, config.token_count),
        "top_p": sampling.top_p,
        "entmax": sampling.entmax,
        "repetition_penalty": sampling.repetition_penalty,
    }


class SlotSession:
    """Graphs and session of a model with slots; see ``models.slots``.

    Args:
        config: a checked config.
        placement: mesh and devices.
        count: slots.
    """

    def __init__(self, config: Config, placement: Placement, count: int):
        dims = cache_dims(config, count)
        self.chunks = prefill_chunks(dims)
        self.text_length = dims.memory_length.size
        self._window = config.n_ctx

        def build() -> tuple[Any, Sequence[Any]]:
            tf.compat.v1.train.get_or_create_global_step()
            placeholder = tf.compat.v1.placeholder
            self._text = placeholder(tf.int32, [count, self.text_length], "text")
            self._rows = {n: placeholder(dtype, [count], n) for n, dtype in STEP_ROWS.items()}
            chunks = {
                length: {n: placeholder(tf.int32, [1, length], n) for n in CHUNK_ROWS}
                for length in self.chunks
            }
            scalars = [placeholder(tf.int32, [], name) for name in ("slot", "blocks")]
            self._prompt = PromptFeeds(chunks, *scalars)
            mesh = mtf.Mesh(mtf.Graph(), "mesh")
            layout = placement.mesh_layout
            built = build_slots(mesh, config, layout, self._text, self._rows, self._prompt)
            implementation = layout.placement(list(placement.devices))
            lowering = mtf.Lowering(mesh.graph, {mesh: implementation}, autostack=False)
            return _lowered(built, lowering), [mtf.MtfRestoreHook(lowering)]

        self.session = InferenceSession(build, placement.devices)
        self._run: dict[Any, Callable[..., Any]] = {}

    def _call(self, name: str, feeds: Sequence[tf.Tensor], *values: Any, key: Any = None) -> Any:
        """Runs a graph; what is never run costs no memory and no time."""
        if (name, key) not in self._run:
            fetches = self.session.fetches[name] if key is None else self.session.fetches[name][key]
            self._run[name, key] = self.session.callable(fetches, feeds)
        return self._run[name, key](*values)

    def step(self, text: np.ndarray, rows: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Advances all slots; returns the values of ``Drawn``."""
        feeds = [self._text, *self._rows.values()]
        drawn, _ = self._call("step", feeds, text, *(rows[name] for name in self._rows))
        return drawn

    def begin(self) -> None:
        """Makes the prompt's cache that of an empty text."""
        self._call("begin", [])

    def feed(self, ids: Sequence[int], start: int) -> int:
        """Feeds a chunk of a prompt, from ``start`` on, but for its last token.

        The first step feeds that one, since it needs what comes out.

        Returns:
            Where the next chunk starts; ``start`` if there is nothing left.
        """
        left = len(ids) - 1 - start
        fitting = [length for length, more in self.chunks.items() if left > more]
        if not fitting:
            return start
        length = fitting[0]
        chunk = np.zeros([3, 1, length], np.int32)
        given = ids[start : min(start + length, len(ids) - 1)]
        tokens, positions, counts = chunk
        tokens[0, : len(given)] = given
        # A chunk may reach past the window; no prompt does, so what it writes there is not read.
        positions[0] = np.minimum(np.arange(start, start + length), self._window - 1)
        counts[0, : len(given)] = 1
        self._call("chunks", list(self._prompt.chunks[length].values()), *chunk, key=length)
        return start + length

    def insert(self, slot: int, length: int) -> None:
        """Puts the prompt's cache, which holds ``length`` positions, into a slot."""
        blocks = -(-length // CACHE_BLOCK)
        self._call("insert", [self._prompt.slot, self._prompt.blocks], slot, blocks)


def _lowered(graph: SlotGraph, lowering: Any) -> dict[str, Any]:
    def run_all(operations: Sequence[Any]) -> Any:
        return tf.group([lowering.lowered_operation(operation) for operation in operations])

    drawn = [lowering.export_to_tf_tensor(tensor) for tensor in graph.drawn]
    return {
        "step": [drawn, run_all(graph.step)],
        "chunks": {length: run_all(chunk) for length, chunk in graph.chunks.items()},
        "begin": run_all(graph.begin),
        "insert": run_all(graph.insert),
    }


@dataclass
class _Filling:
    """A prompt that is being fed.

    Attributes:
        generation: whose prompt it is.
        start: positions that have been fed.
    """

    generation: Generation
    start: int


class SlotSchedule:
    """Decides what runs next; for one thread.

    Args:
        config: a checked config.
        placement: mesh and devices.
        count: slots.
    """

    gives_scores = True

    def __init__(self, config: Config, placement: Placement, count: int):
        self._config = config
        self._slots = SlotSession(config, placement, count)
        self._running: list[Optional[Generation]] = [None] * count
        self._filling: Optional[_Filling] = None
        self._fed: Optional[list[int]] = None  # what the prompt's cache holds
        self._text = np.zeros([count, self._slots.text_length], np.int32)
        self._rows = {name: np.zeros(count, t.as_numpy_dtype) for name, t in STEP_ROWS.items()}
        self._rows["repetition_penalty"][:] = 1.0

    @property
    def session(self) -> InferenceSession:
        """Of the model."""
        return self._slots.session

    @property
    def busy(self) -> bool:
        """Whether some text is not at its end."""
        return self._filling is not None or any(self._running)

    def forget(self) -> None:
        """The weights are others now: nothing that was made of the former ones counts."""
        self._fed = None

    def turn(self, take: Callable[[], Optional[Generation]]) -> None:
        """Feeds prompts, as many positions as a large chunk has, and advances all slots.

        Args:
            take: gives the next request that waits, or None.
        """
        for slot, generation in enumerate(self._running):
            if generation is not None and generation.ended:  # cancelled
                self._free(slot)
        self._fill(take)
        if any(self._running):
            self._advance()

    def _fill(self, take: Callable[[], Optional[Generation]]) -> None:
        budget = max(self._slots.chunks)
        while None in self._running:
            if self._filling is None:
                generation = take()
                if generation is None:
                    return
                self._filling = _Filling(generation, 0)
            try:
                while not self._filling.generation.ended:
                    before = self._filling.start
                    if not self._feed(self._filling):
                        self._enter(self._filling.generation)
                        break
                    budget -= self._filling.start - before
                    if budget <= 0:
                        return
            except Exception as error:
                self._fed = None
                self._filling.generation.fail(error)
            self._filling = None

    def _feed(self, filling: _Filling) -> bool:
        """Feeds a chunk; returns whether there was one."""
        ids = filling.generation.prompt
        if self._fed == ids[:-1]:  # another sample of the same prompt
            return False
        if filling.start == 0:
            self._fed = None
            self._slots.begin()
        start = self._slots.feed(ids, filling.start)
        if start > filling.start:
            filling.start = start
            return True
        self._fed = ids[:-1]
        return False

    def _enter(self, generation: Generation) -> None:
        slot, length = self._running.index(None), len(generation.prompt)
        self._slots.insert(slot, length - 1)
        self._text[slot, :length] = generation.prompt
        values = settings_of(generation.sampling, self._config)
        values["scored"] = generation.sampling.logprobs is not None
        for name, value in (values | {"position": length - 1, "active": 1}).items():
            self._rows[name][slot] = value
        self._running[slot] = generation

    def _free(self, slot: int) -> None:
        """An idle slot draws the most likely token, which costs nothing."""
        self._running[slot] = None
        idle = {"active": 0, "scored": False, "temperature": 0.0, "repetition_penalty": 1.0}
        for name, value in idle.items():
            self._rows[name][slot] = value

    def _advance(self) -> None:
        active = self._rows["active"] > 0
        position = self._rows["position"]
        # Blocks are read from the first position to the last: an idle slot adds none.
        position[~active] = position[active].min()
        try:
            drawn = self._slots.step(self._text, self._rows)
        except Exception as error:
            for slot, generation in enumerate(self._running):
                if generation is not None:
                    generation.fail(error)
                    self._free(slot)
            return
        for slot, generation in enumerate(self._running):
            if generation is None:
                continue
            token = int(drawn[0][slot])
            generation.push(token, _scores(drawn, slot, generation.sampling.logprobs))
            if generation.ended:
                self._free(slot)
            else:
                position[slot] += 1
                self._text[slot, position[slot]] = token


def _scores(drawn: Sequence[np.ndarray], slot: int, count: Optional[int]) -> Optional[TokenScores]:
    if count is None:
        return None
    _, own, tokens, values = (part[slot] for part in drawn)
    return TokenScores(float(own), tuple(zip(tokens.tolist(), values.tolist()))[:count])
