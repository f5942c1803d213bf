"""Training and evaluation with the entmax loss."""

import numpy as np
import pytest

from model_fns import Placement
from serving.engine import Engine
from serving.requests import Sampling
from tests.models.test_entmax import bisected, reference_loss
from tests.support import (
    Forward,
    Trained,
    make_config,
    mesh_layout,
    random_batches,
    random_variables,
    train,
    write_checkpoint,
)


def train_small(model_path, steps, **keys) -> Trained:
    config = make_config(
        model_path=str(model_path),
        entmax_loss=True,
        n_layer=1,
        attention_types=[[["global"], 1]],
        epsilon=1e-3,
        gradient_clipping=1.0,
        **keys,
    )
    start = random_variables(config, seed=7)
    for name, value in list(start.items()):
        start |= {f"{name}/{slot}": np.zeros_like(value) for slot in ("adam_m", "adam_v")}
    model_path.mkdir(exist_ok=True)
    write_checkpoint(model_path, start)
    return train(config, random_batches(config, 1) * steps)


def test_the_loss_falls_from_targets_without_probability(tmp_path):
    config = make_config(n_layer=1, attention_types=[[["global"], 1]], entmax_loss=True)
    start = write_checkpoint(tmp_path, random_variables(config, seed=7))
    inputs, labels = random_batches(config, 1)[0]
    got = Forward(config, start)(inputs, labels)
    expected = reference_loss(got["logits"], labels)
    np.testing.assert_allclose(got["total"], expected, rtol=0, atol=1e-5)
    chances = np.take_along_axis(bisected(got["logits"]), labels[..., None], -1)
    assert (chances == 0).any()  # -log of them would be infinite
    losses = [step["loss"] for step in train_small(tmp_path / "run", 60).metrics]
    np.testing.assert_allclose(losses[0], expected.mean(), rtol=1e-5)
    assert losses[-1] < losses[0] / 3
    assert np.isfinite(losses).all()


def test_cross_entropy_stays_that_of_the_softmax(tmp_path):
    keys = {"n_layer": 1, "attention_types": [[["global"], 1]], "z_loss": 0.0}
    config = make_config(**keys)
    checkpoint = write_checkpoint(tmp_path, random_variables(config, seed=7))
    inputs, labels = random_batches(config, 1)[0]
    entmax = Forward(make_config(**keys, entmax_loss=True), checkpoint)(inputs, labels)
    softmax = Forward(config, checkpoint)(inputs, labels)
    np.testing.assert_array_equal(entmax["cross_entropy"], softmax["total"])
    assert np.abs(entmax["total"] - softmax["total"]).max() > 0.1


def test_layout_does_not_change_the_numbers(tmp_path):
    split = {"mesh_shape": "x:2,y:2", "layout": "batch:x,heads:y,vocab:y"}
    got, whole = train_small(tmp_path / "split", 3, **split), train_small(tmp_path / "whole", 3)
    for key in ("loss", "grad_norm"):
        values, expected = ([step[key] for step in run.metrics] for run in (got, whole))
        np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=key)
    for name, value in whole.variables.items():
        tolerance = 1e-5 * np.abs(value).max()
        np.testing.assert_allclose(got.variables[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("split", [("x:1", ""), ("x:2", "vocab:x")], ids=str)
def test_entmax_sampling_draws_no_token_of_probability_0(tmp_path, split):
    """One new token of many samples, against the probabilities of the same prompt."""
    config = make_config(predict_batch_size=50)
    checkpoint = write_checkpoint(tmp_path, random_variables(config, seed=7))
    windows = np.random.default_rng(1).integers(0, config.n_vocab, (6, config.n_ctx))
    logits = Forward(config, checkpoint)(windows)["logits"].astype(np.float64)
    # The place at which softmax gives most to tokens that entmax leaves out.
    softmax = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    left_out = np.where(bisected(logits) == 0, softmax, 0).sum(-1)[:, :-1]
    row, position = np.unravel_index(left_out.argmax(), left_out.shape)
    prompt, probabilities = windows[row, : position + 1].tolist(), bisected(logits[row, position])
    assert left_out.max() > 0.01
    devices = tuple(f"device:CPU:{number}" for number in range(2)) if split[1] else ("",)
    engine = Engine(config, Placement(mesh_layout(*split), devices), 50)
    engine.load(checkpoint)
    drawn = {}
    for entmax in (True, False):
        sampling = Sampling(1.0, 0, 1.0, seed=1, max_new_tokens=1, stop_id=None, entmax=entmax)
        [texts] = engine.generate([prompt], sampling, samples=1000)
        counts = np.bincount([text.continuation[0] for text in texts], minlength=config.n_vocab)
        drawn[entmax] = counts / 1000
    engine.close()
    assert drawn[True][probabilities == 0].sum() == 0
    assert np.abs(drawn[True] - probabilities).max() < 4.5 * np.sqrt(0.25 / 1000)
    assert drawn[False][probabilities == 0].sum() > 0
