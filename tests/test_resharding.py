"""A run moves to another mesh at a checkpoint and goes on, with all its state.

The state is all that a run can have: Adam's moments, split beside the layout where there is an
axis for it, the annealed rate, the averages of the gradient noise scale.
"""

import numpy as np
import pytest

from tests.support import (
    copy_checkpoint,
    large_weights,
    make_config,
    random_batches,
    read_checkpoint,
    train,
)

MOVED_AT, STEPS, WINDOW = 2, 4, 12
TRAINING = {
    "n_layer": 1,
    "attention_types": None,
    "n_embd": 12,
    "n_ctx": WINDOW,
    "train_batch_size": 8,
    "res_dropout": 0.1,
    "weight_decay": 0.1,
    "gradient_clipping": 0.5,
    "epsilon": 1e-3,
    "warmup_steps": 1,
    "anneal_steps": 3,
    "end_lr": 0.001,
    "adam_bias_correction": True,
    "noise_scale_alpha": 0.3,
}


def keys(batch_pieces, **mesh):
    """Two microbatches on every mesh."""
    return TRAINING | {"tokens_per_mb_per_replica": 4 // batch_pieces * WINDOW} | mesh


FIRST = keys(
    4,
    mesh_shape="x:4,y:2",
    layout="batch:x,heads:y,vocab:y,intermediate_expanded:y",
    optimizer_shard_axis="x",
)
OTHERS = {
    "x:1": keys(1, mesh_shape="x:1"),
    "x:2": keys(2, mesh_shape="x:2", optimizer_shard_axis="x"),
}
BATCHES = random_batches(make_config(**OTHERS["x:1"]), STEPS)


class Run:
    """A run that was never interrupted, and its checkpoint on the way."""

    def __init__(self, folder, mesh):
        config = make_config(**mesh, model_path=str(folder))
        self.whole = train(config, BATCHES, large_weights, steps_per_checkpoint=MOVED_AT)
        self.checkpoint = str(folder / f"model.ckpt-{MOVED_AT}")

    def go_on(self, mesh, folder):
        copy_checkpoint(self.checkpoint, folder)
        return train(make_config(**mesh, model_path=str(folder)), BATCHES[MOVED_AT:])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("first"), FIRST)


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("two"), OTHERS["x:2"])


def test_in_the_same_order_of_sums_it_goes_on_to_the_bit(run_of_two, tmp_path):
    """Names of mesh axes, and axes that split nothing, do not matter."""
    mesh = OTHERS["x:2"] | {"mesh_shape": "z:1,y:2", "layout": "heads:z,batch:y"}
    got = run_of_two.go_on(mesh | {"optimizer_shard_axis": "y"}, tmp_path)
    for step, expected in zip(got.metrics, run_of_two.whole.metrics[MOVED_AT:]):
        np.testing.assert_equal(step, expected)
    assert got.variables.keys() == run_of_two.whole.variables.keys()
    for name, value in run_of_two.whole.variables.items():
        np.testing.assert_array_equal(got.variables[name], value, err_msg=name)


@pytest.mark.parametrize("mesh", OTHERS)
def test_on_another_mesh_it_goes_on_with_the_same_numbers(run, tmp_path, mesh):
    got = run.go_on(OTHERS[mesh], tmp_path)
    assert len(got.metrics) == STEPS - MOVED_AT
    for step, expected in zip(got.metrics, run.whole.metrics[MOVED_AT:]):
        assert step.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(step[key], value, rtol=1e-5, err_msg=key)
    assert got.variables.keys() == run.whole.variables.keys()
    for name, value in run.whole.variables.items():
        atol = 1e-6 * np.abs(value).max()
        np.testing.assert_allclose(got.variables[name], value, rtol=0, atol=atol, err_msg=name)


def test_what_is_compared_would_show_a_lost_state(run):
    """Every kind of state is there when the run moves, and changes after it."""
    moved, ended = read_checkpoint(run.checkpoint), run.whole.variables
    for suffix in ["/q", "/q/adam_m", "/q/adam_v", "noise_scale/gradient", "noise_scale/weight"]:
        [name] = [name for name in ended if name.endswith(suffix)]
        assert np.abs(moved[name]).max() > 0
        assert np.abs(ended[name] - moved[name]).max() > 1e-3 * np.abs(moved[name]).max(), name
    rates = [step["learning_rate"] for step in run.whole.metrics]
    assert rates[0] == 0
    assert rates[1] > rates[2] > rates[3] > 0
    assert np.isfinite(run.whole.metrics[-1]["noise_scale"])
