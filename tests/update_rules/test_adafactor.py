"""Adafactor against numpy, against Mesh TensorFlow's own, and under layouts."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.support import make_config, run_tf
from tests.update_rules.quartic import (
    RATES,
    check_same_steps,
    check_steps,
    expected_steps,
    random_problem,
    take_steps,
)
from update_rules.adafactor import factored_dims, second_moment_decay
from utils.mesh_tensorflow import mtf

ROWS, COLUMNS = mtf.Dimension("vocab", 132), mtf.Dimension("embd", 130)
FEW, EXPERTS = mtf.Dimension("intermediate_expanded", 6), mtf.Dimension("experts", 3)
# Two of them are factored, one is on either side of the limit, one starts so small that
# ada_epsilon2 holds.
DIMS = {
    "gpt2/wte": [ROWS, COLUMNS],
    "gpt2/h0/moe/kernel": [COLUMNS, EXPERTS, ROWS],
    "gpt2/h0/mlp/kernel": [COLUMNS, FEW],
    "gpt2/h0/mlp/bias": [FEW],
    "gpt2/ln_f/g": [COLUMNS],
}
PROBLEM = random_problem(DIMS)
PROBLEM.start["gpt2/ln_f/g"] *= 1e-5
KEYS = {"opt_name": "adafactor", "ada_epsilon1": 1e-8, "gradient_clipping": 2830.0}


def expected_updates(config):
    """Algorithm 4 (no factors) and 5 (factors) of the paper in numpy, float64."""

    def rms(x):
        return np.sqrt(np.mean(x**2))

    def adafactor(name, weight, gradient, slots, rate, step):
        decay = config.ada_decay_rate
        if decay is None:
            decay = 1 - (step + 1) ** -0.8

        def mix(suffix, new):
            slots[suffix] = decay * slots.get(suffix, 0.0) + (1 - decay) * new
            return slots[suffix]

        square = gradient**2 + config.ada_epsilon1
        first, second = np.argsort([-size for size in weight.shape], kind="stable")[:2].tolist() + (
            [0] if weight.ndim < 2 else []
        )
        if weight.ndim > 1 and weight.shape[second] >= 128:
            vr, vc = mix("_slot_vr", square.mean(first)), mix("_slot_vc", square.mean(second))
            axis = second - (first < second)
            vr = vr / vr.mean(axis, keepdims=True)
            scaled = gradient / np.sqrt(np.expand_dims(vr, first) * np.expand_dims(vc, second))
        else:
            scaled = gradient / np.sqrt(mix("_slot_v", square))
        step_size = rate * max(rms(weight), config.ada_epsilon2)
        update = step_size * scaled / max(1.0, rms(scaled))
        if config.beta1:
            old = slots.get("_slot_m", 0.0)
            update = slots["_slot_m"] = config.beta1 * old + (1 - config.beta1) * update
        if "bias" not in name:
            update = update + rate * config.weight_decay * weight
        return weight - update

    return expected_steps(PROBLEM, config.gradient_clipping, adafactor)


OPTIONS = {
    "plain": {"beta1": 0.0, "gradient_clipping": None},
    "momentum": {"beta1": 0.9},
    "fixed decay": {"beta1": 0.9, "ada_decay_rate": 0.3, "weight_decay": 0.2},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_updates(option):
    config = make_config(**(KEYS | OPTIONS[option]))
    check_steps(take_steps(config, PROBLEM), expected_updates(config))


def test_what_the_updates_above_see():
    """Clipping binds at times, and slots are those of Mesh TensorFlow."""
    config = make_config(**KEYS, beta1=0.9)
    values, norms = expected_updates(config)
    assert min(norms) < 2830 < max(norms)
    slots = {name.rpartition("_slot")[::2] for name in values if "_slot" in name}
    factored = {"gpt2/wte", "gpt2/h0/moe/kernel"}
    assert slots == {
        (name, suffix)
        for name in DIMS
        for suffix in ("_m", *(("_vr", "_vc") if name in factored else ("_v",)))
    }
    assert values["gpt2/h0/moe/kernel_slot_vr"].shape == (130, 3)
    assert values["gpt2/h0/moe/kernel_slot_vc"].shape == (3, 132)


SPLITS = [
    {"mesh_shape": "x:2,y:2", "layout": "vocab:x,embd:y"},
    {"mesh_shape": "x:2,y:2", "layout": "embd:y,intermediate_expanded:x"},
]


@functools.cache
def take_split_steps(**split):
    return take_steps(make_config(**KEYS, beta1=0.9, weight_decay=0.2, **split), PROBLEM)


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split["layout"])
def test_layout_does_not_change_the_numbers(split):
    check_same_steps(take_split_steps(**split), take_split_steps(), 1e-6)


def test_as_mesh_tensorflow_s_own_optimizer():
    """On one processor, with a fixed rate and decay, from the same start."""
    rate, decay = RATES[0], 0.3
    config = make_config(**KEYS | {"gradient_clipping": None, "ada_decay_rate": decay})
    got = take_steps(config, PROBLEM, rates=[rate] * 3)
    own = mtf.optimize.AdafactorOptimizer(
        learning_rate=rate, decay_rate=decay, beta1=config.beta1, epsilon1=1e-8
    )
    expected = take_steps(
        config,
        PROBLEM,
        rates=[rate] * 3,
        apply=lambda variables, gradients: own.apply_grads(gradients, variables),
    )
    assert got.values.keys() == expected.values.keys()
    for name, value in expected.values.items():
        np.testing.assert_allclose(got.values[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


def test_decay_follows_the_global_step():
    config = make_config(opt_name="adafactor")
    steps = [0, 1, 9, 99_999]
    got = run_tf(lambda: [second_moment_decay(config, tf.constant(step)) for step in steps])
    np.testing.assert_allclose(got, [0, 0.4256508, 0.8415107, 0.9999], rtol=1e-6)
    config = make_config(opt_name="adafactor", ada_decay_rate=0.25)
    assert run_tf(lambda: second_moment_decay(config, tf.constant(7))) == 0.25


@pytest.mark.parametrize(
    ("sizes", "factored"),
    [
        ([128], None),
        ([127, 500], None),
        ([128, 128], (0, 1)),
        ([128, 500], (1, 0)),
        ([200, 3, 300], (2, 0)),
    ],
)
def test_which_dims_are_factored(sizes, factored):
    shape = mtf.Shape([mtf.Dimension(f"d{axis}", size) for axis, size in enumerate(sizes)])
    got = factored_dims(shape)
    assert (got and tuple(shape.dims.index(dim) for dim in got)) == factored
