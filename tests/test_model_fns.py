"""The graphs of the model function, and equal numbers under every layout."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from configs.load import parse_config
from model_fns import ModeKeys, Placement, make_model_fn
from serving.engine import Engine
from serving.requests import Sampling
from tests.support import (
    Forward,
    Trained,
    initial_variables,
    make_config,
    mesh_layout,
    random_batches,
    random_variables,
    train,
    write_checkpoint,
)
from utils.inference_session import InferenceSession

# --- evaluation ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a1(fixtures_dir) -> Path:
    return fixtures_dir / "A1_local_global"


@pytest.fixture(scope="module")
def a1_expected(a1) -> dict[str, np.ndarray]:
    return dict(np.load(a1 / "expected.npz"))


def a1_config(a1: Path, model_path: Path, **keys):
    """The config as the original had it; its records are replaced by arrays."""
    values = json.loads((a1 / "config.json").read_text())
    data = {"datasets": [], "eval_steps": 0, "eos_id": 1, "padding_id": 0}
    return parse_config(values | data | {"model_path": str(model_path)} | keys)


def test_evaluation_spec(a1, a1_expected, tmp_path):
    """Per-row means, and metrics in which a row of weight 0 does not count."""
    config = a1_config(a1, tmp_path)
    model_fn = make_model_fn(config, Placement(mesh_layout("x:1", "batch:x"), ("",)))
    fed = {}

    def build():
        fed["inputs"], fed["labels"] = (tf.compat.v1.placeholder(tf.int32, [4, 20]) for _ in "xy")
        fed["row_weights"] = tf.compat.v1.placeholder(tf.float32, [4])
        features = {"inputs": fed["inputs"], "row_weights": fed["row_weights"]}
        spec = model_fn(features, fed["labels"], ModeKeys.EVAL, {})
        metric_fn, tensors = spec.eval_metrics
        metrics = metric_fn(**tensors)
        updates = {name: update for name, (_, update) in metrics.items()}
        reset = tf.compat.v1.local_variables_initializer()
        return (spec.loss, tensors, updates, reset), spec.evaluation_hooks

    session = InferenceSession(build, ("",))
    session.restore(str(a1 / "model.ckpt-12"))
    assert session.step == 12
    *fetches, reset = session.fetches
    tokens = a1_expected["tokens"]
    weights = np.array([1, 1, 0, 1], np.float32)
    session.run(reset)
    loss, tensors, metrics = session.run(
        fetches,
        {
            fed["inputs"]: tokens[:, :-1],
            fed["labels"]: tokens[:, 1:],
            fed["row_weights"]: weights,
        },
    )
    rows = {
        "loss": a1_expected["loss_per_token"].mean(1),
        "cross_entropy": a1_expected["cross_entropy_per_token"].mean(1),
        "mean_logits": a1_expected["logits"].mean((1, 2)),
    }
    np.testing.assert_allclose(loss, a1_expected["loss"], atol=2e-5)
    assert metrics.keys() == rows.keys()
    for name, expected in rows.items():
        np.testing.assert_allclose(tensors[name], expected, atol=2e-5, err_msg=name)
        kept = expected[weights > 0].mean()
        np.testing.assert_allclose(metrics[name], kept, atol=2e-5, err_msg=name)


# --- initial values --------------------------------------------------------------------------

SIGMAS = 4.5


def test_initial_scales():
    """The two keys that change them; kernels have some hundred elements, so 5 to 15 %."""

    def deviations(**keys):
        initial = initial_variables(make_config(n_layer=3, attention_types=None, **keys))
        return {name: value.std() for name, value in initial.items()}, initial

    plain, values = deviations()
    by_depth, _ = deviations(scale_by_depth=True)
    by_in, _ = deviations(scale_by_in=True)
    for layer in range(3):
        fc, projection = (
            f"gpt2/h{layer}/mlp/conv1d_main/{name}/kernel" for name in ("c_fc", "c_proj")
        )
        count = values[fc].size
        for name, scales in {
            fc: (1, 1, 14**-0.5),
            projection: (1, 3**-0.5, 56**-0.5),
        }.items():
            for got, scale in zip((plain, by_depth, by_in), scales):
                assert abs(got[name] / (0.02 * scale) - 1) < SIGMAS / np.sqrt(2 * count), name
    for name in ("q", "k", "v", "o"):
        assert plain[f"gpt2/h0/attn/{name}"] == by_depth[f"gpt2/h0/attn/{name}"]


def test_initial_values_depend_on_seed_and_name_only():
    two = initial_variables(make_config(seed=1))
    three = initial_variables(make_config(seed=1, n_layer=3, attention_types=None))
    other = initial_variables(make_config(seed=2))
    random = [name for name, value in two.items() if value.std() > 0]
    assert len(random) == 2 + 2 * 6
    for name in random:
        np.testing.assert_array_equal(two[name], three[name], err_msg=name)
        assert not np.array_equal(two[name], other[name]), name
    same_shape = [two[name].ravel() for name in random if "/attn/" in name]
    correlations = np.corrcoef([value / value.std() for value in same_shape])
    assert np.abs(correlations - np.eye(len(same_shape))).max() < SIGMAS / 14


# --- fixture B2: Hugging Face's GPT-Neo ------------------------------------------------------


def from_hugging_face(tensors: dict[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """Variables of our names; Hugging Face's linear weights are [out, in]."""
    variables = {"gpt2/wte": tensors.pop("transformer.wte.weight")}
    variables["gpt2/wpe"] = tensors.pop("transformer.wpe.weight")

    def norm(ours: str, theirs: str) -> None:
        variables[f"gpt2/{ours}/g"] = tensors.pop(f"transformer.{theirs}.weight")
        variables[f"gpt2/{ours}/b"] = tensors.pop(f"transformer.{theirs}.bias")

    def linear(ours: str, theirs: str, bias: str = "") -> None:
        variables[f"gpt2/{ours}"] = tensors.pop(f"transformer.{theirs}.weight").T.copy()
        if bias:
            variables[f"gpt2/{bias}"] = tensors.pop(f"transformer.{theirs}.bias")

    norm("ln_f", "ln_f")
    for i in range(layers):
        norm(f"h{i}/norm_1", f"h.{i}.ln_1")
        norm(f"h{i}/norm_2", f"h.{i}.ln_2")
        for name in "qkv":
            linear(f"h{i}/attn/{name}", f"h.{i}.attn.attention.{name}_proj")
        out_bias = f"h{i}/attn/compute_output_bias/o_b"
        linear(f"h{i}/attn/o", f"h.{i}.attn.attention.out_proj", out_bias)
        for name in ("c_fc", "c_proj"):
            scope = f"h{i}/mlp/conv1d_main/{name}"
            linear(f"{scope}/kernel", f"h.{i}.mlp.{name}", f"{scope}/bias")
    assert not tensors
    return variables


@pytest.fixture(scope="module")
def b2(fixtures_dir, tmp_path_factory):
    """(config, checkpoint, expected arrays)."""
    folder = fixtures_dir / "B2_hf_gpt_neo"
    config = make_config(
        n_layer=4,
        n_head=3,
        n_embd=24,
        n_ctx=32,
        n_vocab=97,
        attention_types=[[["global", "local"], 2]],
        local_attention_radius=6,
        eval_batch_size=2,
    )
    variables = from_hugging_face(load_file(folder / "model.safetensors"), 4)
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("b2"), variables)
    return config, checkpoint, dict(np.load(folder / "expected.npz"))


def test_hugging_face_logits(b2):
    config, checkpoint, expected = b2
    ids = expected["input_ids"]
    window = np.zeros((2, 32), np.int32)
    window[:, : ids.shape[1]] = ids  # what follows cannot be seen
    logits = Forward(config, checkpoint)(window)["logits"][:, : ids.shape[1]]
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-4)


def test_hugging_face_greedy_tokens(b2):
    config, checkpoint, expected = b2
    engine = Engine(config, Placement(mesh_layout("x:1", ""), ("",)), 2)
    engine.load(checkpoint)
    sampling = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=10, stop_id=None)
    prompts = expected["prompt_ids"].tolist()
    got = [row[0].prompt + row[0].continuation for row in engine.generate(prompts, sampling)]
    engine.close()
    assert got == expected["greedy_ids"].tolist()


# --- the same numbers under every layout -----------------------------------------------------

SPLITS = [
    {"mesh_shape": "x:2,y:2", "layout": "batch:x,heads:y,vocab:y"},
    {"mesh_shape": "x:2,y:2", "layout": "batch:x,embd:y"},
    {"mesh_shape": "x:2,y:2", "layout": "batch:x,memory_length:y,embd:y"},
    {"mesh_shape": "x:2,y:2", "layout": "sequence:x,intermediate_expanded:y,embed_sequence:y"},
    {"mesh_shape": "x:2,y:2", "layout": "sequence:x,memory_length:y"},
    {  # as the shipped 13B
        "mesh_shape": "x:2,y:2,z:2",
        "layout": "batch:x,heads:y,intermediate_expanded:y,vocab:y,embd:z,memory_length:z",
    },
]


def train_small(model_path: Path, **keys) -> Trained:
    """Three steps with everything on that a layout could disturb, from weights of some size."""
    config = make_config(
        model_path=str(model_path),
        n_layer=1,
        attention_types=[[["local"], 1]],
        embed_dropout=0.1,
        attn_dropout=0.1,
        res_dropout=0.1,
        weight_decay=0.1,
        gradient_clipping=1.0,
        # Not 1e-8: it would turn rounding of the smallest gradients into whole updates.
        epsilon=1e-3,
        **keys,
    )
    start = random_variables(config, seed=7)
    for name, value in list(start.items()):
        start |= {f"{name}/{slot}": np.zeros_like(value) for slot in ("adam_m", "adam_v")}
    model_path.mkdir(exist_ok=True)
    write_checkpoint(model_path, start)
    return train(config, random_batches(config, 3))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Trained:
    return train_small(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split["layout"])
def test_layout_does_not_change_the_numbers(small, tmp_path, split):
    got = train_small(tmp_path, **split)
    for key in ("loss", "grad_norm", "learning_rate"):
        values, expected = ([step[key] for step in run.metrics] for run in (got, small))
        np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=key)
    assert got.variables.keys() == small.variables.keys()
    for name, value in small.variables.items():
        # Second moments are small numbers: relative to the largest of each variable.
        tolerance = 1e-5 * np.abs(value).max()
        np.testing.assert_allclose(got.variables[name], value, rtol=0, atol=tolerance, err_msg=name)
        assert tolerance > 0, name


def test_clipping_binds_in_the_runs_above(small):
    assert all(step["grad_norm"] > 1.2 for step in small.metrics)


def test_a_seed_repeats_a_run_to_the_bit_and_another_seed_does_not(small, tmp_path):
    """From one checkpoint, so that the dropout alone differs; initial values: see above."""
    again = train_small(tmp_path / "again")
    other = train_small(tmp_path / "other", seed=1)
    assert again.metrics == small.metrics
    for name, value in small.variables.items():
        np.testing.assert_array_equal(again.variables[name], value, err_msg=name)
        if name != "global_step":
            assert not np.array_equal(other.variables[name], value), name
