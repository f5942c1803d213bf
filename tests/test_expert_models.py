"""Whole models with mixture-of-experts layers: checkpoints, training, generation, dry run."""

import numpy as np
import pytest
import tensorflow as tf

from inspection.measure import measure
from inspection.processor_view import ProcessorView
from model_fns import Placement, build_training_graph
from models.kernels.operation import KernelOperation
from serving.engine import Engine
from serving.requests import Sampling
from tests.support import (
    Forward,
    cpus,
    initial_variables,
    make_config,
    mesh_layout,
    random_batches,
    random_variables,
    train,
    write_checkpoint,
)
from utils.garbage import no_garbage_collection
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

EXPERTS, HIDDEN = 4, 18
SIZES = {"moe_num_experts": EXPERTS, "moe_hidden_size": HIDDEN, "moe_min_expert_capacity": 2}


def expert_config(**keys):
    """One layer of experts; with the defaults of the other keys, tokens are left out."""
    params = SIZES | keys.pop("moe_params", {})
    plain = {"n_layer": 1, "attention_types": None, "moe_layers": [0], "moe_params": params}
    return make_config(**(plain | keys))


# --- checkpoints -----------------------------------------------------------------------------


def test_variables_have_the_names_shapes_and_scales_of_mesh_tensorflow_s_layer():
    """Sizes of their own, and no feed-forward layer beside them; other layers keep theirs."""
    config = make_config(n_layer=2, moe_layers=[1], moe_params=SIZES | {"moe_hidden_size": 200})
    variables = initial_variables(config)
    mine = {
        "gpt2/h1/top_2_gating/kernel": (14, 4),
        "gpt2/h1/wi/kernel": (4, 14, 200),
        "gpt2/h1/wo/kernel": (4, 200, 14),
    }
    for name, shape in mine.items():
        assert variables[name].shape == shape
        # Normal values without those past two deviations keep 0.8796 of it.
        inputs = shape[-2]
        assert np.abs(variables[name]).max() < 2 * inputs**-0.5
        deviation = 0.8796 * inputs**-0.5
        count = variables[name].size
        assert abs(variables[name].std() / deviation - 1) < 4.5 / np.sqrt(2 * count), name
    assert {name for name in variables if name.startswith("gpt2/h1/mlp")} == set()
    assert "gpt2/h0/mlp/conv1d_main/c_fc/kernel" in variables
    assert not np.array_equal(variables["gpt2/h1/wi/kernel"][0], variables["gpt2/h1/wi/kernel"][1])


def test_defaults_are_gpt_neo_s():
    shapes = measure(make_config(moe_layers=[0])).variables
    sizes = {variable.name: dict(variable.dims) for variable in shapes}
    width = {"embd": 14}
    assert sizes["gpt2/h0/top_2_gating/kernel"] == width | {"experts_unsplit": 16}
    hidden = {"experts": 16, "intermediate_expanded": 4096}
    assert sizes["gpt2/h0/wi/kernel"] == sizes["gpt2/h0/wo/kernel"] == width | hidden


def test_layers_may_share_their_experts():
    config = make_config(moe_layers=[0, 1], moe_params=SIZES, share_parameters=True)
    names = [name for name in initial_variables(config) if name.endswith("wi/kernel")]
    assert names == ["gpt2//wi/kernel"]


# --- training --------------------------------------------------------------------------------


def train_noisily(model_path, **keys):
    """Three steps with all noise on."""
    config = expert_config(
        model_path=str(model_path),
        moe_params={"moe_dropout_rate": 0.2, "moe_loss_coef": 0.3},
        embed_dropout=0.1,
        res_dropout=0.1,
        # Not 1e-8: it would turn rounding of the smallest gradients into whole updates.
        epsilon=1e-3,
        **keys,
    )
    return train(config, random_batches(config, 3))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    return train_noisily(tmp_path_factory.mktemp("noisy"))


@pytest.mark.parametrize(
    "keys",
    [
        {"tokens_per_mb_per_replica": 20},
        {"recompute_grad": True},
        {"mesh_shape": "x:2,y:2", "layout": "batch:x,experts:y,heads:y,vocab:y"},
        {
            "mesh_shape": "x:2",
            "layout": "batch:x,experts:x",
            "recompute_grad": True,
            "tokens_per_mb_per_replica": 10,
        },
    ],
    ids=["microbatches", "recomputed", "split", "all of it"],
)
def test_how_it_is_computed_does_not_change_the_numbers(noisy, tmp_path, keys):
    got = train_noisily(tmp_path, **keys)
    for key in ("loss", "grad_norm"):
        values, expected = ([step[key] for step in run.metrics] for run in (got, noisy))
        np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=key)
    for name, value in noisy.variables.items():
        tolerance = 1e-5 * np.abs(value).max()
        np.testing.assert_allclose(got.variables[name], value, rtol=0, atol=tolerance, err_msg=name)


def test_bfloat16_trains_alike(noisy, tmp_path):
    got = train_noisily(tmp_path, precision="bfloat16")
    losses, expected = ([step["loss"] for step in run.metrics] for run in (got, noisy))
    np.testing.assert_allclose(losses, expected, rtol=0.01)
    assert all(value.dtype == np.float32 for name, value in got.variables.items() if "/" in name)


def imbalance(variables, tokens) -> float:
    """The load-balance loss of a model without attention: 1 when all experts are used alike."""
    x = variables["gpt2/wte"][tokens] + variables["gpt2/wpe"]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = x * variables["gpt2/h0/norm_2/g"] + variables["gpt2/h0/norm_2/b"]
    exponentials = np.exp(x @ variables["gpt2/h0/top_2_gating/kernel"])
    probabilities = exponentials / exponentials.sum(-1, keepdims=True)
    first = probabilities.argmax(-1)[..., np.newaxis] == np.arange(EXPERTS)
    return float((first.mean(1) * probabilities.mean(1)).mean() * EXPERTS**2)


def test_the_load_balance_loss_falls_in_training(tmp_path):
    """From gates that favour one expert; without its weight in the loss it stays high."""
    tokens = np.random.default_rng(3).integers(0, 22, (6, 11))
    batch = tokens[:, :-1], tokens[:, 1:]
    after = []
    for coefficient in (0.0, 1.0):
        path = tmp_path / str(coefficient)
        path.mkdir()
        config = expert_config(
            model_path=str(path),
            attention_types=[[["none"], 1]],
            moe_params={"moe_loss_coef": coefficient},
            lr=0.02,
            train_steps=40,
        )
        start = initial_variables(config)
        # What all tokens have in common leads to the last expert.
        start["gpt2/h0/norm_2/b"][0] = 2.0
        start["gpt2/h0/top_2_gating/kernel"][0, EXPERTS - 1] = 1.5
        before = imbalance(start, batch[0])
        slots = {
            f"{name}/{slot}": np.zeros_like(value)
            for name, value in start.items()
            for slot in ("adam_m", "adam_v")
        }
        write_checkpoint(path, start | slots)
        after.append(imbalance(train(config, [batch] * 40).variables, batch[0]))
    assert before > 3
    assert after[0] > 2
    assert after[1] < 1.5


# --- generation ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    config = generating_config()
    variables = random_variables(config, seed=2)
    variables = {name: value for name, value in variables.items() if "/mlp/" not in name}
    # Without a leaning towards one token, and with strong positions, so that greedy texts vary.
    variables["gpt2/wpe"] *= 4.0
    variables["gpt2/wte"] -= variables["gpt2/wte"].mean(0)
    variables["gpt2/ln_f/b"][:] = 0.0
    random = np.random.default_rng(6)
    for name, shape in {
        "top_2_gating": (14, EXPERTS),
        "wi": (EXPERTS, 14, HIDDEN),
        "wo": (EXPERTS, HIDDEN, 14),
    }.items():
        variables[f"gpt2/h0/{name}/kernel"] = random.normal(0, 0.5, shape).astype(np.float32)
    return write_checkpoint(tmp_path_factory.mktemp("experts"), variables)


def generating_config(**keys):
    return expert_config(n_ctx=24, eval_batch_size=2, **keys)


@pytest.fixture(scope="module")
def forward(checkpoint) -> Forward:
    return Forward(generating_config(), checkpoint)


@pytest.mark.parametrize(
    ("mesh_shape", "layout"), [("x:1", ""), ("x:2", "batch:x,experts:x"), ("x:2", "experts:x")]
)
def test_cached_equals_uncached(checkpoint, forward, mesh_shape, layout):
    """Rows at different positions: each is continued as it is by the whole window alone."""
    split = mesh_layout(mesh_shape, layout)
    config = generating_config(mesh_shape=mesh_shape, layout=layout)
    devices = cpus(split.size) if split.size > 1 else ("",)
    with no_garbage_collection():
        engine = Engine(config, Placement(split, devices), 2)
    engine.load(checkpoint)
    prompts = [[3, 1, 4], [2, 7, 1, 8, 2, 8, 1, 8, 5]]
    greedy = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=12, stop_id=None)
    got = [row[0].continuation for row in engine.generate(prompts, greedy)]
    engine.close()
    for ids, continuation in zip(prompts, got):
        window = np.zeros((2, 24), np.int32)
        window[:, : len(ids)] = ids
        for position in range(len(ids), len(ids) + 12):
            window[0, position] = forward(window)["logits"][0, position - 1].argmax()
            window[1, position] = 21 - window[0, position]  # another text beside it
        assert continuation == window[0, len(ids) : len(ids) + 12].tolist()
        assert len(set(continuation)) > 3


def test_a_score_does_not_depend_on_the_batch(forward):
    random = np.random.default_rng(1)
    window = random.integers(0, 22, (2, 24)).astype(np.int32)
    other = window.copy()
    other[1] = window[0, 0]  # all alike: in training most of these would be left out
    got = [forward(tokens)["logits"][0] for tokens in (window, other)]
    np.testing.assert_allclose(*got, rtol=1e-6, atol=1e-6)


# --- dry run ---------------------------------------------------------------------------------


def test_the_dry_run_counts_parameters_and_arithmetic():
    dense = measure(make_config())
    config = make_config(moe_layers=[1], moe_params=SIZES | {"moe_min_expert_capacity": 3})
    run = measure(config)
    width, capacity = 14, 3
    feed_forward = 2 * 4 * width**2 + 5 * width
    experts = width * EXPERTS + 2 * EXPERTS * width * HIDDEN
    assert run.parameters - dense.parameters == experts - feed_forward
    tokens = config.train_batch_size * config.n_ctx
    slots = config.train_batch_size * EXPERTS * capacity
    gained = 2 * (tokens * width * EXPERTS + slots * 2 * width * HIDDEN)
    lost = 2 * tokens * 8 * width**2
    assert run.flops.forward - dense.flops.forward == gained - lost
    split = measure(
        make_config(
            moe_layers=[1],
            moe_params=SIZES | {"moe_min_expert_capacity": 3},
            mesh_shape="x:2",
            layout="batch:x,experts:x",
        )
    )
    assert split.flops.forward == run.flops.forward
    assert split.flops.per_processor * 2 == pytest.approx(
        run.flops.forward + run.flops.backward, rel=1e-6
    )
    parts = {variable.name: variable.slice_size for variable in split.weights}
    assert parts["gpt2/h1/wi/kernel"] == EXPERTS // 2 * width * HIDDEN
    assert split.memory.activations < run.memory.activations


def test_kernels_do_the_products_that_they_declare():
    config = expert_config()
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        ids = tf.zeros([config.train_batch_size, config.n_ctx], tf.int32)
        layout = MeshLayout.from_config(config)
        build_training_graph(mesh, config, layout, ids, ids, tf.constant(0))
        view = ProcessorView(graph, layout)
        kernels = [op for op in graph.operations if isinstance(op, KernelOperation)]
        for kernel in kernels:
            counted = sum(node.flops for node in view.trace(kernel).nodes)
            assert counted == 2 * kernel.multiply_adds, kernel.name
