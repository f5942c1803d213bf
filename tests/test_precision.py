"""Activations in bfloat16: training follows float32 for long, and for long texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from configs.schema import Config
from model_fns import ModeKeys, Placement, make_model_fn
from tests.support import (
    Batch,
    Forward,
    Trained,
    cpus,
    is_slot,
    large_weights,
    make_config,
    mesh_layout,
    random_batches,
    train,
)

PRECISIONS = ("bfloat16", "float32")


def metric(runs: list[Trained], key: str) -> list[np.ndarray]:
    return [np.array([step[key] for step in run.metrics]) for run in runs]


# --- 200 steps -------------------------------------------------------------------------------

STEPS = 200
# Settings under which float32 is no chaos itself: with a rate of 0.01, no warm-up and 6 windows
# per batch, weights that differ by 2^-20 at the start have losses that differ by 10 % soon.
STABLE = {
    "train_steps": STEPS,
    "train_batch_size": 24,
    "n_embd": 28,
    "lr": 0.003,
    "warmup_steps": 40,
    "beta2": 0.95,
    "gradient_clipping": 1.0,
    "weight_decay": 0.01,
}
MODELS: dict[str, dict[str, Any]] = {
    "adam": {},
    "adafactor": {
        "attention_types": [[["linear", "global"], 1]],
        "rotary_emb": True,
        "mlp_glu": True,
        "activation_function": "silu",
        "scalenorm": True,
        "opt_name": "adafactor",
        "lr": 0.02,
    },
    "experts": {"moe_layers": [1], "moe_params": {"moe_num_experts": 4, "moe_hidden_size": 20}},
}


def chain_batches(config: Config, count: int) -> list[Batch]:
    """Windows of a Markov chain in which few tokens follow each: there is much to learn."""
    random = np.random.default_rng(4)
    chances = random.dirichlet(np.full(config.n_vocab, 0.1), config.n_vocab).cumsum(1)
    tokens = np.empty((config.n_ctx + 1, count * config.train_batch_size), np.int64)
    tokens[0] = random.integers(0, config.n_vocab, tokens.shape[1])
    for position in range(config.n_ctx):
        draws = random.random((tokens.shape[1], 1))
        following = (chances[tokens[position]] < draws).sum(1)
        tokens[position + 1] = np.minimum(following, config.n_vocab - 1)
    windows = tokens.T.reshape(count, config.train_batch_size, config.n_ctx + 1)
    return [(window[:, :-1], window[:, 1:]) for window in windows]


@pytest.mark.parametrize("model", MODELS)
def test_200_steps_follow_float32(model, tmp_path):
    runs = []
    for precision in PRECISIONS:
        keys = STABLE | MODELS[model] | {"precision": precision}
        config = make_config(model_path=str(tmp_path / precision), **keys)
        runs.append(train(config, chain_batches(config, STEPS)))
    got, expected = metric(runs, "loss")
    assert expected[-20:].mean() < 2.0 < 3.0 < expected[0]
    assert 0 < np.abs(got / expected - 1).max() < 0.02
    norms, wanted = (value.reshape(-1, 10).mean(1) for value in metric(runs, "grad_norm"))
    np.testing.assert_allclose(norms, wanted, rtol=0.05)
    # What the checkpoint holds does not say in which precision it was made.
    for left, right in zip(*(sorted(run.variables.items()) for run in runs)):
        assert (left[0], left[1].shape, left[1].dtype) == (right[0], right[1].shape, right[1].dtype)
    assert {value.dtype.name for value in runs[0].variables.values()} == {"float32", "int64"}


def test_weights_and_slots_are_float32_and_products_are_not():
    """The weights and slots that are saved, and their slices on the processors."""
    keys = {"precision": "bfloat16", "mesh_shape": "x:2", "layout": "embd:x"}
    config = make_config(**STABLE | keys)
    with tf.Graph().as_default() as graph:
        tokens = tf.zeros([config.train_batch_size, config.n_ctx], tf.int32)
        placement = Placement(mesh_layout("x:2", "embd:x"), cpus(2))
        make_model_fn(config, placement)({"inputs": tokens}, tokens, ModeKeys.TRAIN, {})
        operations = graph.get_operations()
        saved = [item for item in tf.compat.v1.global_variables() if item.op.name != "global_step"]
    assert sum(is_slot(item.op.name) for item in saved) == len(saved) * 2 // 3
    variables = [op for op in operations if op.type == "VariableV2" and op.name != "global_step"]
    assert len(variables) == 3 * len(saved)  # a whole and two slices
    assert {op.outputs[0].dtype.base_dtype for op in variables} == {tf.float32}
    assert {op.outputs[0].dtype for op in operations if "MatMul" in op.type} == {tf.bfloat16}


# --- long texts ------------------------------------------------------------------------------

LENGTH = 2048
LONG: dict[str, dict[str, Any]] = {
    "learned": {"local_attention_radius": 256},
    "rotary": {
        "attention_types": [[["linear", "global"], 1]],
        "rotary_emb": True,
        "n_embd": 32,
    },
}


@pytest.mark.parametrize("model", LONG)
def test_2048_tokens_are_finite_and_close_to_float32(model, tmp_path):
    """Positions, masks and sums over many keys do not lose what float32 keeps."""
    keys = LONG[model] | {"n_ctx": LENGTH, "train_batch_size": 1, "eval_batch_size": 1}
    runs, scores = [], []
    for precision in PRECISIONS:
        folder = str(tmp_path / precision)
        config = make_config(model_path=folder, precision=precision, **keys)
        [(inputs, labels)] = random_batches(config, 1)
        runs.append(train(config, [(inputs, labels)], large_weights))
        forward = Forward(config, f"{folder}/model.ckpt-0")
        scores.append(forward(inputs, labels))
        assert all(np.isfinite(value).all() for value in scores[-1].values())
        assert all(np.isfinite(value).all() for value in runs[-1].variables.values())
    for key in ("loss", "grad_norm"):
        np.testing.assert_allclose(*metric(runs, key), rtol=0.01, err_msg=key)
    np.testing.assert_allclose(*(run["total"].mean() for run in scores), rtol=0.003)
    got, expected = (run["logits"][0] for run in scores)
    # As close at the end as at the start.
    errors = (got - expected).reshape(8, -1).std(1) / expected.std()
    assert errors.min() > 0
    assert errors.max() < 0.03, errors
