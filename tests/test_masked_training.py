"""A masked model: it sees both sides, learns to fill gaps, and is scored on the gaps alone."""

import math

import numpy as np
import pytest

from data.masking import NOT_PREDICTED
from data.record_writer import RecordWriter
from evaluation.dataset_loss import DatasetLoss
from inputs import evaluation_input, open_sources, training_input
from model_fns import Placement
from serving.engine import Engine
from tests.support import (
    Forward,
    Trained,
    make_config,
    mesh_layout,
    random_variables,
    train,
    write_checkpoint,
)
from tests.test_masked_inputs import rows_of

MASK, N_CTX, N_VOCAB, RECORDS = 2, 10, 22, 11


def config_of(folder, **keys):
    entry = [str(folder / "train_*"), str(folder / "eval_*"), 1, "chunks", 1.0]
    standard = {"datasets": [entry], "model_path": str(folder), "n_ctx": N_CTX}
    standard |= {"n_vocab": N_VOCAB, "eos_id": 1, "padding_id": 0, "mlm_mask_prob": 0.25}
    return make_config(**(standard | {"mlm_training": True, "mlm_mask_id": MASK} | keys))


def write(folder, name, records):
    with RecordWriter(str(folder), name, files_per=100_000) as writer:
        for record in records:
            writer.write(record.tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Random records, of which the third is padding; and a checkpoint."""
    folder = tmp_path_factory.mktemp("masked")
    records = np.random.default_rng(2).integers(3, N_VOCAB, (RECORDS, N_CTX + 1))
    records[2] = 0
    write(folder, "eval", records)
    write_checkpoint(folder, random_variables(config_of(folder), seed=8), step=13)
    return folder


@pytest.mark.parametrize("causal", [True, False])
def test_tokens_that_follow_are_seen(folder, causal):
    """Layer 0 is global, layer 1 local; the causal model has the same weights."""
    config = make_config() if causal else config_of(folder, eval_batch_size=6)
    forward = Forward(config, f"{folder}/model.ckpt-13")
    window = np.random.default_rng(3).integers(3, N_VOCAB, (6, N_CTX))
    changed = window.copy()
    changed[:, -1] = (window[:, -1] + 1) % N_VOCAB
    moved = np.abs(forward(changed)["logits"] - forward(window)["logits"]).max((0, 2))
    assert (moved[:-1] > 1e-3).all() != causal
    assert (moved[:-1] == 0).all() == causal
    assert moved[-1] > 1e-3


def test_scores_are_means_over_the_hidden_tokens(folder):
    config = config_of(folder, eval_batch_size=4, z_loss=0.01)
    loss = DatasetLoss(config, Placement(mesh_layout("x:1", ""), ("",)), 0)
    scores = loss.evaluate(f"{folder}/model.ckpt-13")
    assert loss.evaluate(f"{folder}/model.ckpt-13") == scores
    loss.close()

    whole = config_of(folder, eval_batch_size=RECORDS)
    input_fn = evaluation_input(whole, open_sources(whole, training=False), 0)
    inputs, labels, _ = rows_of(input_fn, 1)
    chosen = labels != NOT_PREDICTED
    assert not chosen[2].any()  # a row without hidden tokens is among them
    assert len(set(chosen.sum(1))) > 2  # and rows have different numbers of them
    logits = Forward(whole, f"{folder}/model.ckpt-13")(inputs)["logits"].astype(np.float64)
    log_z = np.log(np.exp(logits).sum(-1))[chosen]
    cross_entropy = (
        log_z - np.take_along_axis(logits, np.maximum(labels, 0)[..., None], -1)[..., 0][chosen]
    )
    expected = {
        "loss": cross_entropy.mean() + 0.01 * (log_z**2).mean(),
        "mean_logits": logits[chosen].mean(),
        "perplexity": math.exp(cross_entropy.mean()),
        "global_step": 13,
        "cross_entropy": cross_entropy.mean(),
        "tokens": chosen.sum(),
        "bytes": 0,
    }
    assert scores == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_an_evaluation_in_which_nothing_is_hidden_is_refused(tmp_path, folder):
    config = config_of(tmp_path)
    padding = np.zeros((config.eval_batch_size, N_CTX + 1), np.int64)
    write(tmp_path, "eval", [*padding, *(padding + 1)])
    loss = DatasetLoss(config, Placement(mesh_layout("x:1", ""), ("",)), max_batches=1)
    with pytest.raises(ValueError, match="evaluation must predict at least one token; got none"):
        loss.evaluate(f"{folder}/model.ckpt-13")
    loss.close()


def test_a_masked_model_writes_no_text(folder):
    with pytest.raises(ValueError, match="mlm_training must be false to generate text; got true"):
        Engine(config_of(folder), Placement(mesh_layout("x:1", ""), ("",)), 1)


# ---- training ----------------------------------------------------------------------------------


def batches_of(config, steps):
    sources = open_sources(config, training=True)
    inputs, labels, _ = rows_of(training_input(config, sources, 0), steps)
    shape = (steps, config.train_batch_size, config.n_ctx)
    return list(zip(inputs.reshape(shape), labels.reshape(shape)))


def test_a_masked_model_learns_to_copy_from_the_right(tmp_path):
    """A record repeats one token; its first one is hidden, so all that tells it follows."""
    tokens = np.random.default_rng(4).integers(3, N_VOCAB, (600, 1))
    write(tmp_path, "train", np.tile(tokens, N_CTX + 1))
    config = config_of(
        tmp_path,
        attention_types=[[["global"], 2]],
        train_batch_size=60,
        train_steps=60,
        lr=0.01,
        gradient_clipping=1.0,
    )
    batches = batches_of(config, config.train_steps)
    for inputs, labels in batches:
        inputs[:, 1:] = np.where(labels < 0, inputs, labels)[:, 1:]
        labels[:, 1:] = NOT_PREDICTED
    losses = [step["loss"] for step in train(config, batches).metrics]
    assert losses[0] > 2.9  # log 22 = 3.09
    assert np.mean(losses[-10:]) < 0.5


def train_small(model_path, folder, **keys) -> Trained:
    """Three steps: the second has few hidden tokens, the third none."""
    config = config_of(
        folder, model_path=str(model_path), n_layer=1, attention_types=[[["local"], 1]],
        epsilon=1e-3, **keys,
    )  # fmt: skip
    start = random_variables(config, seed=7)
    for name, value in list(start.items()):
        start |= {f"{name}/{slot}": np.zeros_like(value) for slot in ("adam_m", "adam_v")}
    model_path.mkdir(exist_ok=True)
    write_checkpoint(model_path, start)
    random = np.random.default_rng(5)
    shape = (3, config.train_batch_size, N_CTX)
    inputs = random.integers(0, N_VOCAB, shape)
    labels = np.where(random.random(shape) < 0.3, inputs, NOT_PREDICTED)
    labels[1, 1:] = labels[2] = NOT_PREDICTED
    return train(config, list(zip(inputs, labels)))


@pytest.fixture(scope="module")
def small(tmp_path_factory, folder) -> Trained:
    return train_small(tmp_path_factory.mktemp("small"), folder)


def test_a_batch_without_hidden_tokens_has_no_loss_and_no_gradient(small):
    assert small.metrics[0]["loss"] > 1 and small.metrics[0]["labels"] > 0
    assert small.metrics[2]["labels"] == 0
    assert (small.metrics[2]["loss"], small.metrics[2]["grad_norm"]) == (0, 0)
    assert all(np.isfinite(value).all() for value in small.variables.values())


def test_splits_do_not_change_the_numbers(small, tmp_path, folder):
    """Nor do microbatches, each of which counts by its hidden tokens."""
    split = {"mesh_shape": "x:2,y:2", "layout": "batch:x,heads:y,vocab:y"}
    got = train_small(tmp_path, folder, tokens_per_mb_per_replica=N_CTX, **split)
    for key in ("loss", "grad_norm"):
        values, expected = ([step[key] for step in run.metrics] for run in (got, small))
        np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=key)
    for name, value in small.variables.items():
        tolerance = 1e-5 * np.abs(value).max()
        np.testing.assert_allclose(got.variables[name], value, rtol=0, atol=tolerance, err_msg=name)
