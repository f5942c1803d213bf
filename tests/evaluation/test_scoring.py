"""Scores of passages: against numpy, whatever the batch, the length of the graph and the layout."""

import numpy as np
import pytest

from evaluation.scoring import Passage, Scorer, graph_lengths, graph_rows
from model_fns import Placement
from models.losses import IGNORED
from tests.support import (
    Forward,
    cpus,
    initial_variables,
    make_config,
    mesh_layout,
    random_variables,
    write_checkpoint,
)
from utils.devices import place_inference

WINDOW = 130  # graphs of 65 and 130 positions
CONFIG = make_config(
    n_ctx=WINDOW, vocab_padding=3, n_layer=1, attention_types=[[["global"], 1]], eval_batch_size=1
)
TOKENS = CONFIG.token_count


def make_scorer(config, batch_size, checkpoint=None):
    devices = cpus(config.mesh_size) if config.mesh_size > 1 else ()
    fit = place_inference(config, devices, batch_size, "batch_size")
    scorer = Scorer(config, Placement(fit.mesh_layout, fit.devices), batch_size)
    if checkpoint is not None:
        scorer.load(checkpoint)
    return scorer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model"), random_variables(CONFIG, 3), 7)


@pytest.fixture(scope="module")
def passages():
    random = np.random.default_rng(4)
    lengths = [(1, 1), (5, 3), (62, 4), (63, 3), (100, 2), (1, WINDOW), (200, 5), (300, WINDOW - 1)]
    return [
        Passage(*(random.integers(0, TOKENS, length).tolist() for length in pair))
        for pair in lengths * 2
    ]


@pytest.fixture(scope="module")
def scorer(checkpoint):
    return make_scorer(CONFIG, 1, checkpoint)


@pytest.fixture(scope="module")
def scores(scorer, passages):
    assert scorer.step == 7
    return scorer.score(passages)


@pytest.fixture(scope="module")
def forward(checkpoint):
    return Forward(CONFIG, checkpoint)


def test_scores(forward, passages, scores):
    """The softmax of the logits of the last n_ctx tokens, padding of the vocabulary left out."""
    for (context, continuation, _), score in zip(passages, scores):
        ids = np.array([*context, *continuation][-(WINDOW + 1) :])
        fed = np.zeros([1, WINDOW], np.int64)
        fed[0, : len(ids) - 1] = ids[:-1]
        count = len(continuation)
        logits = forward(fed)["logits"][0, len(ids) - 1 - count : len(ids) - 1, :TOKENS]
        logits = logits.astype(np.float64)
        normalizer = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1))
        normalizer += logits.max(-1)
        expected = (logits[np.arange(count), continuation] - normalizer).sum()
        assert abs(score.log_probability - expected) < 1e-4 * max(count, 4) / 4
        assert score.is_greedy == (logits.argmax(-1) == continuation).all()
        assert score.tokens == count


def test_a_greedy_continuation_is_recognised(forward, scorer):
    ids = [5, 9, 2]
    for _ in range(4):
        fed = np.zeros([1, WINDOW], np.int64)
        fed[0, : len(ids)] = ids
        ids.append(int(forward(fed)["logits"][0, len(ids) - 1].argmax()))
    wrong = [*ids[:5], (ids[5] + 1) % TOKENS, ids[6]]
    found = scorer.score([Passage(ids[:3], ids[3:]), Passage(ids[:3], wrong[3:])])
    assert [score.is_greedy for score in found] == [True, False]


@pytest.mark.parametrize(
    ("batch_size", "keys"),
    [(7, {}), (4, {"mesh_shape": "x:2", "layout": "heads:x,vocab:x"})],
    ids=["batch of 7", "two processors"],
)
def test_scores_hang_on_nothing_else(checkpoint, passages, scores, batch_size, keys):
    got = make_scorer(CONFIG.model_copy(update=keys), batch_size, checkpoint).score(passages)
    for one, other in zip(got, scores):
        assert abs(one.log_probability - other.log_probability) < 1e-5 * one.tokens + 1e-5
        assert one[1:] == other[1:]


def test_a_shorter_graph_of_other_layers(tmp_path):
    """Linear and local attention, experts and rotary positions in half of the window."""
    config = make_config(
        n_ctx=WINDOW,
        attention_types=[[["local", "linear"], 1]],
        moe_layers=[1],
        rotary_emb=True,
        rotary_dim=4,
        eval_batch_size=1,
    )
    random = np.random.default_rng(8)
    weights = {
        name: value + random.normal(0, 0.2, value.shape).astype(np.float32)
        for name, value in initial_variables(config).items()
        if name != "global_step"
    }
    checkpoint = write_checkpoint(tmp_path, weights)
    ids = random.integers(0, config.n_vocab, 41).tolist()
    [got] = make_scorer(config, 1, checkpoint).score([Passage(ids[:9], ids[9:])])
    fed = np.zeros([1, WINDOW], np.int64)
    fed[0, :40] = ids[:-1]
    labels = np.full_like(fed, IGNORED)
    labels[0, 8:40] = ids[9:]
    nats = Forward(config, checkpoint)(fed, labels)["cross_entropy"].sum()
    assert abs(got.log_probability + nats) < 1e-3
    assert nats > 32


def test_lengths_of_graphs():
    assert graph_lengths(CONFIG, mesh_layout("x:1", "")) == [65, 130]
    assert graph_lengths(make_config(), mesh_layout("x:1", "")) == [10]
    long = make_config(n_ctx=2048)
    assert graph_lengths(long, mesh_layout("x:1", "")) == [128, 256, 512, 1024, 2048]
    split = mesh_layout("x:2", "sequence:x")
    assert graph_lengths(CONFIG, split) == [130]  # 65 positions cannot be split


def test_rows_of_graphs():
    """Not more than their logits leave room for, and whole numbers for each processor."""
    config = make_config(n_ctx=2048, n_vocab=50257 + 1)
    for mesh, layout, expected in [
        ("x:1", "", {128: 40, 512: 10, 2048: 2}),
        ("x:2", "batch:x", {128: 40, 512: 20, 2048: 4}),
        ("x:2", "vocab:x", {128: 40, 512: 20, 2048: 5}),
    ]:
        split = mesh_layout(mesh, layout)
        assert {x: graph_rows(config, split, x, 40) for x in expected} == expected


@pytest.mark.parametrize(
    ("passage", "words"),
    [
        (Passage([1], [], "item 3 of own"), "the continuation of item 3 of own must have at least"),
        (Passage([1], [2] * 131), "a passage must fit into the window of 130 tokens; got 131"),
        (Passage([1, 19], [2]), r"must lie in \[0, n_vocab - vocab_padding = 19\); got \[19\]"),
        (Passage([1], [-1]), r"got \[-1\]. Use the tokenizer that the model was trained with"),
    ],
)
def test_refusals(scorer, passage, words):
    with pytest.raises(ValueError, match=words):
        scorer.score([Passage([1], [2]), passage])


def test_a_diverged_model(scorer, checkpoint, tmp_path):
    weights = random_variables(CONFIG, 3)
    weights["gpt2/ln_f/b"] *= np.nan
    try:
        scorer.load(write_checkpoint(tmp_path, weights, 9))
        with pytest.raises(ValueError, match="got NaN from the weights of step 9: the model has d"):
            scorer.score([Passage([1], [2])])
    finally:
        scorer.load(checkpoint)


def test_a_masked_model_is_refused():
    config = make_config(mlm_training=True, mlm_mask_id=3)
    with pytest.raises(ValueError, match="mlm_training must be false"):
        make_scorer(config, 1)
