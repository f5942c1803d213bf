"""Checkpoints and numbers of the original GPT-Neo: its runs are repeated update by update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from configs.load import parse_config
from configs.schema import Config
from tests.support import (
    Forward,
    Trained,
    copy_checkpoint,
    initial_variables,
    read_checkpoint,
    train,
)

SPLIT = {"mesh_shape": "x:2,y:2", "layout": "batch:x,embd:y"}
# GPT-Neo's Adafactor ignored the schedule, and took weight_decay for its decay rate.
ADAFACTOR = {"lr_decay": None, "warmup_steps": 0, "weight_decay": 0.0, "ada_decay_rate": 0.1}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("A1_local_global", {}),
    "local, split": ("A1_local_global", SPLIT),
    "rotary": ("A2_rotary_untied", {}),
    "rotary, split": ("A2_rotary_untied", {"mesh_shape": "x:3", "layout": "heads:x"}),
    "adafactor": ("A6_microbatch_adafactor", ADAFACTOR),
    "adafactor, split": ("A6_microbatch_adafactor", ADAFACTOR | SPLIT),
}


class Run(NamedTuple):
    """What the original did, and what is done here.

    Attributes:
        folder: the fixture.
        expected: its arrays.
        got: the same training run here.
        keys: of the config, beside those of the original.
    """

    folder: Path
    expected: dict[str, np.ndarray]
    got: Trained
    keys: dict[str, Any]


def original_config(folder: Path, model_path: Path, **keys: Any) -> Config:
    """The config as the original had it; its records are replaced by arrays."""
    values = json.loads((folder / "config.json").read_text())
    data = {"datasets": [], "eval_steps": 0, "eos_id": 1, "padding_id": 0}
    return parse_config(values | data | {"model_path": str(model_path)} | keys)


@pytest.fixture(scope="module", params=RUNS)
def run(request, fixtures_dir, tmp_path_factory) -> Run:
    name, keys = RUNS[request.param]
    folder, model_path = fixtures_dir / name, tmp_path_factory.mktemp("run")
    expected = dict(np.load(folder / "expected.npz"))
    copy_checkpoint(str(folder / "model.ckpt-0"), model_path)
    batches = list(zip(expected["train_inputs"], expected["train_labels"]))
    config = original_config(folder, model_path, **keys)
    return Run(folder, expected, train(config, batches), keys)


@pytest.fixture(scope="module", params=sorted({name for name, _ in RUNS.values()}))
def folder(request, fixtures_dir) -> Path:
    return fixtures_dir / request.param


def test_training_losses_and_rates(run):
    log = json.loads((run.folder / "train_log.json").read_text())
    assert [step["step"] for step in run.got.metrics] == [step["step"] for step in log]
    losses = [step["loss"] for step in run.got.metrics]
    np.testing.assert_allclose(losses, [step["loss"] for step in log], rtol=0, atol=2e-5)
    if "lr_decay" not in run.keys:  # else the original logged a schedule that it did not follow
        rates = [step["learning_rate"] for step in run.got.metrics]
        np.testing.assert_allclose(rates, [step["lr"] for step in log], rtol=0, atol=1e-7)


def test_weights_after_training(run):
    start = read_checkpoint(str(run.folder / "model.ckpt-0"))
    expected = read_checkpoint(str(run.folder / "model.ckpt-12"))
    assert run.got.variables["global_step"] == expected["global_step"] == 12
    for name, value in expected.items():
        # Adam's step is large where gradients are rounding errors, which differ by processor.
        tolerance = 3e-5 * max(1.0, np.abs(value).max())
        np.testing.assert_allclose(
            run.got.variables[name], value, rtol=0, atol=tolerance, err_msg=name
        )
    moved = expected["gpt2/h0/attn/q"] - start["gpt2/h0/attn/q"]
    assert np.abs(moved).max() > 1e-2  # the tolerance is far below what training did


def test_variables(run):
    """Names, shapes and types, nothing less and nothing more: its checkpoints are ours."""
    listed = json.loads((run.folder / "variables.json").read_text())
    expected = {name: (item["shape"], item["dtype"]) for name, item in listed.items()}
    variables = run.got.variables
    got = {name: (list(value.shape), value.dtype.name) for name, value in variables.items()}
    assert got == expected


def test_logits_and_losses(folder, tmp_path):
    expected = dict(np.load(folder / "expected.npz"))
    tokens = expected["tokens"]
    keys = ADAFACTOR if "adafactor" in folder.name else {}
    forward = Forward(original_config(folder, tmp_path, **keys), str(folder / "model.ckpt-12"))
    got = forward(tokens[:, :-1], tokens[:, 1:])
    np.testing.assert_allclose(got["logits"], expected["logits"], rtol=0, atol=1e-4)
    for name, key in (("total", "loss_per_token"), ("cross_entropy", "cross_entropy_per_token")):
        np.testing.assert_allclose(got[name], expected[key], rtol=0, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(got["total"].mean(), expected["loss"], rtol=0, atol=2e-5)

    # The same graph on other weights.
    forward.load(str(folder / "model.ckpt-0"))
    got = forward(tokens[:, :-1], tokens[:, 1:])
    np.testing.assert_allclose(got["logits"], expected["logits_step0"], rtol=0, atol=1e-4)


SIGMAS = 4.5


def test_initial_values_are_distributed_as_the_original_s(folder, tmp_path):
    """Each side is one draw, so both have their sampling error."""
    keys = ADAFACTOR if "adafactor" in folder.name else {}
    initial = initial_variables(original_config(folder, tmp_path, **keys))
    stats = json.loads((folder / "init_stats.json").read_text())
    assert initial.keys() == stats.keys()
    for name, expected in stats.items():
        value = initial[name]
        if expected["std"] == 0.0:
            assert (value == expected["mean"]).all(), name
            continue
        count = value.size
        assert abs(value.std() / expected["std"] - 1) < SIGMAS / np.sqrt(count), name
        error = SIGMAS * expected["std"] * np.sqrt(2 / count)
        assert abs(value.mean() - expected["mean"]) < error, name
