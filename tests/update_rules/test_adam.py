"""Adam's bias correction against numpy, and on meshes; without it see test_optimizers."""

import numpy as np
import pytest

from tests.support import make_config, run_tf
from tests.update_rules.quartic import (
    check_same_steps,
    check_steps,
    expected_steps,
    random_problem,
    take_steps,
)
from update_rules.adam import bias_corrections
from utils.mesh_tensorflow import mtf

EMBD, HEADS = mtf.Dimension("embd", 132), mtf.Dimension("heads", 136)
# One matrix that is large enough for a fused program, and one that is not.
PROBLEM = random_problem(
    {"gpt2/h0/attn/q": [EMBD, HEADS], "gpt2/h0/attn/o": [mtf.Dimension("vocab", 7), EMBD]}
)
KEYS = {
    "adam_bias_correction": True,
    "beta1": 0.8,
    "beta2": 0.95,
    "epsilon": 1e-3,
    "weight_decay": 0.3,
    "gradient_clipping": 1450.0,
}


def expected_updates(config):
    """As optax.scale_by_adam, additive weight decay and the rate: numpy, float64."""

    def adam(name, weight, gradient, slots, rate, step):
        count = step + 1
        mu = slots["/adam_m"] = 0.8 * slots.get("/adam_m", 0.0) + 0.2 * gradient
        nu = slots["/adam_v"] = 0.95 * slots.get("/adam_v", 0.0) + 0.05 * gradient**2
        mu_hat, nu_hat = mu / (1 - 0.8**count), nu / (1 - 0.95**count)
        return weight - rate * (mu_hat / (np.sqrt(nu_hat) + 1e-3) + 0.3 * weight)

    return expected_steps(PROBLEM, config.gradient_clipping, adam)


@pytest.fixture(scope="module")
def whole():
    return take_steps(make_config(**KEYS), PROBLEM)


def test_updates(whole):
    expected = expected_updates(make_config(**KEYS))
    check_steps(whole, expected)
    assert min(expected[1]) < 1450 < max(expected[1])  # clipping binds in some steps


def test_the_correction_makes_a_difference(whole):
    plain = take_steps(make_config(**KEYS | {"adam_bias_correction": False}), PROBLEM)
    name = "gpt2/h0/attn/q"
    moved, without = (run.values[name] - PROBLEM.start[name] for run in (whole, plain))
    assert np.abs(moved - without).max() > 0.01


def test_layout_does_not_change_the_numbers(whole):
    split = {"mesh_shape": "x:2,y:2", "layout": "batch:x,heads:y", "optimizer_shard_axis": "x"}
    got = take_steps(make_config(**KEYS, **split), PROBLEM)
    check_same_steps(got, whole, 1e-6)
    assert got.slices["gpt2/h0/attn/q/adam_m"] == [66, 68]


def test_corrections_keep_their_digits():
    """1 - 0.999^t in float32 would be off by 5e-5 at the first step."""
    config = make_config(adam_bias_correction=True)
    steps = [0, 1, 2, 9, 1000, 300_000]
    got = run_tf(lambda: [bias_corrections(config, np.int32(step)) for step in steps])
    expected = [[1 / (1 - beta ** (step + 1.0)) for beta in (0.9, 0.999)] for step in steps]
    np.testing.assert_allclose(got, expected, rtol=5e-7)


def test_a_moment_without_decay_needs_no_correction():
    config = make_config(adam_bias_correction=True, beta1=0.0)
    first, second = run_tf(lambda: bias_corrections(config, np.int32(3)))
    assert first == 1
    np.testing.assert_allclose(second, 1 / (1 - 0.999**4), rtol=5e-7)
