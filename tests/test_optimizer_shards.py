"""Optimizer slots that are split over a mesh axis: the same numbers in less memory."""

import math
import re

import numpy as np
import pytest
import tensorflow as tf

from inspection.dry_run import dry_run_text
from inspection.measure import measure
from model_fns import build_training_graph
from tests.support import (
    cpus,
    make_config,
    random_batches,
    random_variables,
    train,
    write_checkpoint,
)
from tests.update_rules.quartic import check_same_steps, random_problem, take_steps
from utils.garbage import no_garbage_collection
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

EMBD, HEADS = mtf.Dimension("embd", 132), mtf.Dimension("heads", 136)
PROBLEM = random_problem(
    {
        "whole": [EMBD, HEADS],
        "odd": [mtf.Dimension("vocab", 7), mtf.Dimension("intermediate_expanded", 9)],
        "half_odd": [mtf.Dimension("vocab", 7), EMBD],
        "vector": [HEADS],
    }
)
OPTIMIZERS = {
    "adam": {"weight_decay": 0.3, "epsilon": 1e-3},
    "adafactor": {"weight_decay": 0.3, "opt_name": "adafactor", "ada_epsilon1": 1e-8},
}
MESHES = {
    "x:4": ({"mesh_shape": "x:4", "layout": "batch:x"}, 1, 4),
    "x:2,y:2": ({"mesh_shape": "x:2,y:2", "layout": "batch:x,embd:y"}, 2, 2),
    # A rule for an axis of one processor splits nothing.
    "x:2,y:1": ({"mesh_shape": "x:2,y:1", "layout": "batch:x,embd:y"}, 1, 2),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mesh", MESHES)
def test_numbers_and_slices_of_five_updates(optimizer, mesh):
    """Clipping binds, so that the norm of split gradients matters too."""
    keys, embd_pieces, pieces = MESHES[mesh]
    keys = keys | OPTIMIZERS[optimizer] | {"train_batch_size": 4, "gradient_clipping": 1450.0}
    expected = take_steps(make_config(**keys), PROBLEM)
    assert min(expected.norms) < 1450 < max(expected.norms)
    got = take_steps(make_config(**keys, optimizer_shard_axis="x"), PROBLEM)
    check_same_steps(got, expected, 1e-6)

    embd = 132 // embd_pieces
    half_odd = [7, embd] if embd_pieces > 1 else [7, 132 // pieces]
    for run, slots in (
        (expected, {"whole": [embd, 136], "half_odd": [7, embd]}),
        (got, {"whole": [embd, 136 // pieces], "half_odd": half_odd}),
    ):
        shapes = {"whole": [embd, 136], "half_odd": [7, embd], "odd": [7, 9], "vector": [136]}
        assert {name: run.slices[name] for name in shapes} == shapes
        suffixes = {"adam": ["/adam_m", "/adam_v"], "adafactor": ["_slot_m"]}[optimizer]
        for name, shape in (shapes | slots).items():
            for suffix in suffixes:
                assert run.slices[name + suffix] == shape, name


MODEL = {
    "n_layer": 1,
    "attention_types": None,
    "weight_decay": 0.1,
    "gradient_clipping": 0.5,
    "epsilon": 1e-3,
    "mesh_shape": "x:2",
    "layout": "batch:x",
}


def test_a_run_may_switch_it_on_and_off(tmp_path):
    """Checkpoints hold whole slots of the usual names, whoever wrote them."""
    batches = random_batches(make_config(**MODEL), 5)
    values = random_variables(make_config(**MODEL), seed=7)
    for variable, value in list(values.items()):
        values |= {f"{variable}/{slot}": np.zeros_like(value) for slot in ("adam_m", "adam_v")}

    def start(name):
        (tmp_path / name).mkdir()
        write_checkpoint(tmp_path / name, values)
        return MODEL | {"model_path": str(tmp_path / name)}

    plain = train(make_config(**start("plain")), batches)
    keys = start("switched")
    begun = train(make_config(**keys, optimizer_shard_axis="x"), batches[:3])
    ended = train(make_config(**keys), batches[3:])
    assert min(step["grad_norm"] for step in plain.metrics) > 0.6
    for key in ("loss", "grad_norm"):
        got = [step[key] for step in begun.metrics + ended.metrics]
        np.testing.assert_allclose(got, [step[key] for step in plain.metrics], rtol=1e-6)
    assert ended.variables.keys() == plain.variables.keys()
    for name, value in plain.variables.items():
        atol = 3e-6 * np.abs(value).max()
        got = ended.variables[name]
        np.testing.assert_allclose(got, value, rtol=0, atol=atol, err_msg=name)


def test_the_dry_run_predicts_the_slices():
    """And prints them."""
    keys = {"mesh_shape": "x:2,y:2", "layout": "batch:x,embd:y", "optimizer_shard_axis": "x"}
    sizes = {"n_embd": 256, "n_vocab": 131, "opt_name": "adafactor", "epsilon": 1e-8}
    config = make_config(**MODEL | keys | sizes)
    layout = MeshLayout.from_config(config)
    with no_garbage_collection(), tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        ids = [config.train_batch_size, config.n_ctx]
        inputs, labels = (tf.compat.v1.placeholder(tf.int32, ids) for _ in range(2))
        step = tf.compat.v1.placeholder(tf.int32, [])
        build_training_graph(mesh, config, layout, inputs, labels, step)
        lowering = mtf.Lowering(graph, {mesh: layout.placement(list(cpus(4)))}, autostack=False)
        slices = {
            variable.name: lowering.variables[variable].laid_out_tensor.slice_shape
            for variable in graph.all_variables
        }
    run = measure(config)
    predicted = {variable.name: variable.slice_size for variable in run.variables}
    assert predicted == {name: math.prod(shape) for name, shape in slices.items()}
    assert slices["gpt2/h0/attn/q"] == [128, 256]
    assert slices["gpt2/h0/attn/q_slot_m"] == [128, 128]
    assert slices["gpt2/wte_slot_m"] == [131, 128]  # its rows do not divide
    text = dry_run_text(run)
    assert re.search(r"gpt2/h0/attn/q slot_m +x1 +embd:y 256 x optimizer_shard:x 256 ", text)
    assert re.search(r"optimizer slots +\S+ kB  slot_vr, slot_vc, slot_m, slot_v$", text, re.M)
    assert "Optimizer slots: 14 of 41, with 95.0% of all elements, are split over x" in text
