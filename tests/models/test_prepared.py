"""Weights that generation keeps in the form of its products."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from model_fns import ModeKeys, Placement, inference_graph
from models.sampling import FEATURES
from serving.engine import Engine
from serving.requests import Sampling
from tests.support import (
    cpus,
    make_config,
    mesh_layout,
    random_variables,
    write_checkpoint,
)
from utils.garbage import no_garbage_collection
from utils.inference_session import RELEASED

GREEDY = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=6, stop_id=None)
PROMPTS = [[3, 7, 2], [5, 1, 9, 4]]
MESHES = [("x:1", "batch:x"), ("x:2,y:2", "heads:x,embd:y"), ("x:2", "intermediate_expanded:x")]


def engine_on(mesh_shape: str, layout: str, precision: str) -> Engine:
    config = make_config(n_embd=12, mesh_shape=mesh_shape, layout=layout, precision=precision)
    devices = cpus(config.mesh_size) if config.mesh_size > 1 else ("",)
    with no_garbage_collection():
        return Engine(config, Placement(mesh_layout(mesh_shape, layout), devices), len(PROMPTS))


def texts(engine: Engine) -> list[list[int]]:
    return [row[0].continuation for row in engine.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES)
def test_another_checkpoint_takes_the_place_of_the_first(mesh_shape, layout, tmp_path):
    """Though nothing is left of the first one's variables that could be overwritten."""
    engine = engine_on(mesh_shape, layout, "float32")
    found = []
    for seed in (1, 2, 1):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        variables = random_variables(engine.config, seed=seed)
        engine.load(write_checkpoint(folder, {k: v * 4 for k, v in variables.items()}))
        found.append(texts(engine))
    engine.close()
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_matrix_is_in_memory_once_and_rounded(precision, tmp_path):
    engine = engine_on("x:1", "batch:x", precision)
    variables = random_variables(engine.config, seed=1)
    engine.load(write_checkpoint(tmp_path, variables))
    session = engine._schedule.session
    released = session.graph.get_collection(RELEASED)
    kept = {x.op.name: x for x in session.graph.get_collection("local_variables")}
    names = {variable.op.name for variable in released}
    assert {n for n in variables if n.endswith(("/q", "/k", "/v", "/o", "/kernel"))} == names
    assert not any(session.run(variable).size for variable in released)
    q, k, v = (variables[f"gpt2/h0/attn/{name}"] for name in "qkv")
    joined = session.run(kept[f"gpt2/h0/attn/q/prepared_{precision}_0"])
    expected = np.stack([q.T, k.T, v.T])
    if precision == "bfloat16":
        expected = expected.astype(tf.bfloat16.as_numpy_dtype)
    np.testing.assert_array_equal(joined, expected)
    engine.close()


def test_a_program_that_xla_compiles_reads_variables():
    config = make_config(n_embd=12, mesh_shape="x:1", layout="batch:x")
    placement = Placement(replace(mesh_layout("x:1", "batch:x"), compiled=True), ("",))
    with tf.Graph().as_default() as graph:
        inputs = {
            name: tf.zeros([1, config.n_ctx] if name == "tokens" else [1], dtype)
            for name, dtype in FEATURES.items()
        }
        inference_graph(config, placement, ModeKeys.PREDICT, inputs)
        assert not graph.get_collection(RELEASED)
