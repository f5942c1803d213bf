"""A graph that scores given texts: log-probability of each token, and whether it is the likeliest.

Texts differ in length, and attention pays for the length of the graph: there is one graph for each
of a few lengths, over one set of weights. Which of them a text takes depends on that text alone, so
its score does not depend on what else is in the batch.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from configs.architecture_rules import token_range
from configs.masking_rules import require_causal
from configs.schema import Config
from model_fns import Placement
from models.dimensions import Dimensions
from models.gpt import GPT
from models.kernels.cross_entropy import log_normalizer_and_target, most_likely
from models.losses import IGNORED
from utils.inference_session import InferenceSession
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

LOGGER = logging.getLogger(__name__)
SHORTEST_LENGTH, MOST_LENGTHS = 64, 5
SECONDS_BETWEEN_NOTICES = 30
LOGITS_BYTES = 1 << 30
"""Of the float32 logits of a graph on one processor: longer graphs have fewer rows."""


class Passage(NamedTuple):
    """What is scored.

    Attributes:
        context: token ids, at least one.
        continuation: token ids that follow it, at least one; they are scored.
        name: what it is called in an error.
    """

    context: Sequence[int]
    continuation: Sequence[int]
    name: str = "a passage"


class Score(NamedTuple):
    """Of the continuation of a passage.

    Attributes:
        log_probability: of all of its tokens, in nats.
        is_greedy: whether each of them is the likeliest one.
        tokens: how many there are.
    """

    log_probability: float
    is_greedy: bool
    tokens: int


def graph_lengths(config: Config, mesh_layout: MeshLayout) -> list[int]:
    """Lengths of the graphs, ascending: n_ctx and up to four halvings that the layout can split."""
    lengths = [config.n_ctx]
    while len(lengths) < MOST_LENGTHS and lengths[0] // 2 >= SHORTEST_LENGTH:
        length = lengths[0] // 2
        dims = Dimensions.from_config(config, 1).with_window(length)
        if any(length % mesh_layout.slices(dim) for dim in (dims.sequence, dims.memory_length)):
            break
        lengths.insert(0, length)
    return lengths


def graph_rows(config: Config, mesh_layout: MeshLayout, length: int, batch_size: int) -> int:
    """Passages that a graph scores at once: at most ``batch_size``, and what memory allows."""
    dims = Dimensions.from_config(config, batch_size)
    pieces = mesh_layout.slices(dims.batch)
    row_bytes = 4 * length * config.n_vocab // mesh_layout.slices(dims.vocab)
    return pieces * max(1, min(batch_size // pieces, LOGITS_BYTES // row_bytes))


class Scorer:
    """A loaded model that scores passages.

    Args:
        config: a checked config of a causal model.
        placement: mesh and devices.
        batch_size: passages that are scored at once, at most.

    Raises:
        ValueError: the model is a masked one.
    """

    def __init__(self, config: Config, placement: Placement, batch_size: int):
        require_causal(config)
        self._config = config
        self._lengths = graph_lengths(config, placement.mesh_layout)
        self._feeds: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}

        def build() -> tuple[Any, Sequence[Any]]:
            tf.compat.v1.train.get_or_create_global_step()
            mesh = mtf.Mesh(mtf.Graph(), "mesh")
            layout = placement.mesh_layout
            scores = {}
            for length in self._lengths:
                shape = [graph_rows(config, layout, length, batch_size), length]
                self._feeds[length] = (
                    tf.compat.v1.placeholder(tf.int32, shape, f"inputs_{length}"),
                    tf.compat.v1.placeholder(tf.int32, shape, f"labels_{length}"),
                )
                scores[length] = _token_scores(mesh, config, layout, *self._feeds[length])
            implementation = layout.placement(list(placement.devices))
            lowering = mtf.Lowering(mesh.graph, {mesh: implementation}, autostack=False)
            export = lowering.export_to_tf_tensor
            fetches = {length: [export(x) for x in pair] for length, pair in scores.items()}
            return fetches, [mtf.MtfRestoreHook(lowering)]

        self._session = InferenceSession(build, placement.devices)

    @property
    def step(self) -> int:
        """Updates behind the loaded weights."""
        return self._session.step

    def load(self, checkpoint: str) -> None:
        """Loads the weights of ``checkpoint``.

        Raises:
            ValueError: it does not fit the model.
        """
        self._session.restore(checkpoint)

    def close(self) -> None:
        """Frees the weights."""
        self._session.close()

    def score(self, passages: Sequence[Passage]) -> list[Score]:
        """Scores the continuation of each passage.

        A context that the window has no room for is cut on the left; the continuation is whole.

        Raises:
            ValueError: an id is out of range, a continuation is empty or longer than the window,
                or a score is no number.
        """
        for passage in passages:
            self._check(passage)
        scores: dict[int, Score] = {}
        told = time.monotonic()
        for length, numbers in self._batches(passages):
            fetches, feeds = self._session.fetches[length], self._feeds[length]
            inputs = np.zeros(feeds[0].shape.as_list(), np.int32)
            labels = np.full_like(inputs, IGNORED)
            for row, number in enumerate(numbers):
                context, continuation, _ = passages[number]
                ids = [*context, *continuation][-(self._config.n_ctx + 1) :]
                inputs[row, : len(ids) - 1] = ids[:-1]
                labels[row, len(ids) - 1 - len(continuation) : len(ids) - 1] = continuation
            found = self._session.run(fetches, dict(zip(feeds, (inputs, labels))))
            for row, number in enumerate(numbers):
                counts = labels[row] != IGNORED
                scores[number] = self._summed(*(values[row][counts] for values in found))
            if time.monotonic() > told + SECONDS_BETWEEN_NOTICES:
                LOGGER.info("scored %s of %s texts", f"{len(scores):,}", f"{len(passages):,}")
                told = time.monotonic()
        return [scores[number] for number in range(len(passages))]

    def _check(self, passage: Passage) -> None:
        context, continuation, name = passage
        assert context
        if not continuation:
            raise ValueError(
                f"the continuation of {name} must have at least one token; got none. Mend the item."
            )
        if len(continuation) > self._config.n_ctx:
            raise ValueError(
                f"the continuation of {name} must fit into the window of {self._config.n_ctx} "
                f"tokens; got {len(continuation)}. Leave the item out, or score a model with a "
                "longer window."
            )
        limit = self._config.token_count
        wrong = [token for token in (*context, *continuation) if not 0 <= token < limit]
        if wrong:
            raise ValueError(
                f"token ids of {name} must lie in {token_range(self._config)}; got {wrong[:3]}. "
                "Use the tokenizer that the model was trained with."
            )

    def _batches(self, passages: Sequence[Passage]) -> Iterator[tuple[int, list[int]]]:
        """(length of the graph, numbers of the passages), the longest first."""
        members: dict[int, list[int]] = {length: [] for length in reversed(self._lengths)}
        for number, (context, continuation, _) in enumerate(passages):
            fed = min(len(context) + len(continuation) - 1, self._config.n_ctx)
            members[min(length for length in self._lengths if length >= fed)].append(number)
        for length, numbers in members.items():
            rows = self._feeds[length][0].shape.as_list()[0]
            for first in range(0, len(numbers), rows):
                yield length, numbers[first : first + rows]

    def _summed(self, log_probabilities: np.ndarray, greedy: np.ndarray) -> Score:
        total = float(log_probabilities.sum(dtype=np.float64))
        if math.isnan(total):
            raise ValueError(
                f"scores must be numbers; got NaN from the weights of step {self.step}: the model "
                "has diverged. Score an earlier checkpoint, or train again with a lower lr."
            )
        return Score(total, bool(greedy.all()), len(greedy))


def _token_scores(
    mesh: mtf.Mesh, config: Config, mesh_layout: MeshLayout, inputs: tf.Tensor, labels: tf.Tensor
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Builds one graph; inputs and labels are [batch, sequence] int32.

    Returns:
        (log-probability of each label in nats, float32; whether it is the likeliest token, bool),
        each [batch, sequence]; without meaning where the label is IGNORED.
    """
    batch_size, length = inputs.shape.as_list()
    dims = Dimensions.from_config(config, batch_size).with_window(length)
    rows = mtf.Shape([dims.batch, dims.sequence])
    model = GPT(mesh, config, dims, mesh_layout)
    logits = model.window_logits(mtf.import_tf_tensor(mesh, inputs, rows))
    targets = mtf.import_tf_tensor(mesh, labels, rows)
    slices = mesh_layout.slices(dims.vocab)
    log_normalizer, logit = log_normalizer_and_target(logits, targets, dims.vocab, slices)
    greedy = mtf.equal(most_likely(logits, dims.vocab, slices), targets)
    return logit - log_normalizer, greedy
