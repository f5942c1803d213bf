"""Learning rates against plain Python, Adam against numpy, and updates that wait for their step."""

import math

import numpy as np
import pytest
import tensorflow as tf

from model_fns import ModeKeys, Placement, make_model_fn
from optimizers import build_updates, decays, learning_rate
from tests.support import cpus, make_config, mesh_layout, random_batches, run_tf, train
from utils.devices import session_config
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

# --- learning rate --------------------------------------------------------------------------


def plain_rate(step, lr, shape, end, warmup):
    fraction = min(step / end, 1.0)
    height = {
        None: 1.0,
        "linear": 1.0 - 0.9 * fraction,
        "cosine": 0.1 + 0.9 * (1 + math.cos(math.pi * fraction)) / 2,
    }[shape]
    return lr * height * (min(step / warmup, 1.0) if warmup else 1.0)


SCHEDULES = [
    {"lr_decay": None, "warmup_steps": 0},
    {"lr_decay": None, "warmup_steps": 7},
    {"lr_decay": "cosine", "warmup_steps": 0},
    {"lr_decay": "cosine", "warmup_steps": 7},
    {"lr_decay": "linear", "warmup_steps": 3},
    {"lr_decay": "linear", "warmup_steps": 0, "lr_decay_end": 11},
    {"lr_decay": "cosine", "warmup_steps": 11, "lr_decay_end": 11},
    {"lr_decay": "cosine", "warmup_steps": 3, "lr_decay_end": 50},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_learning_rate(schedule):
    config = make_config(train_steps=20, lr=0.04, **schedule)
    steps = [0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 19, 20, 21, 500]
    rates = run_tf(lambda: [learning_rate(config, tf.constant(step)) for step in steps])
    end = schedule.get("lr_decay_end", 20)
    expected = [
        plain_rate(step, 0.04, schedule["lr_decay"], end, schedule["warmup_steps"])
        for step in steps
    ]
    np.testing.assert_allclose(rates, expected, rtol=2e-6, atol=1e-9)


def test_decay_ends_at_a_tenth_and_the_first_update_of_a_warm_up_is_0():
    config = make_config(train_steps=20, lr=0.04, lr_decay="cosine", warmup_steps=3)
    first, last, later = run_tf(
        lambda: [learning_rate(config, tf.constant(step)) for step in (0, 20, 1000)]
    )
    assert first == 0
    np.testing.assert_allclose([last, later], 0.004, rtol=1e-6)


# --- Adam, decay, clipping ------------------------------------------------------------------

ROWS, COLUMNS = mtf.Dimension("vocab", 6), mtf.Dimension("embd", 4)
DIMS = {
    "gpt2/wte": [ROWS, COLUMNS],
    "gpt2/wpe": [ROWS, COLUMNS],
    "gpt2/h0/attn/q": [ROWS, COLUMNS],
    "gpt2/h0/attn/compute_output_bias/o_b": [COLUMNS],
    "gpt2/h0/norm_1/g": [COLUMNS],
    "gpt2/h0/mlp/conv1d_main/c_fc/bias": [COLUMNS],
    "gpt2/ln_f/g": [COLUMNS],
    "gpt2/ln_f/b": [COLUMNS],
}
UNDECAYED = {
    "gpt2/h0/attn/compute_output_bias/o_b",
    "gpt2/h0/norm_1/g",
    "gpt2/h0/mlp/conv1d_main/c_fc/bias",
}
RANDOM = np.random.default_rng(2)
START, TARGET = (
    {name: RANDOM.normal(size=[dim.size for dim in dims]) for name, dims in DIMS.items()}
    for _ in range(2)
)
RATES = [0.03, 0.02, 0.05]


def three_updates(config, mesh_shape="x:1", layout=""):
    """Three steps on sum((w - target)^4) / 4; returns (values, norms) by variable name."""
    split = mesh_layout(mesh_shape, layout)
    devices = cpus(split.size)
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        losses = []
        for name, dims in DIMS.items():
            shape = mtf.Shape(dims)
            initial = tf.constant_initializer(START[name])
            weight = mtf.get_variable(mesh, name, shape, initializer=initial)
            target = mtf.import_tf_tensor(mesh, tf.constant(TARGET[name], tf.float32), shape)
            losses.append(mtf.reduce_sum(mtf.square(mtf.square(weight - target))) * 0.25)
        rate = tf.compat.v1.placeholder(tf.float32, [])
        updates = build_updates(
            mtf.add_n(losses),
            list(graph.trainable_variables),
            mtf.import_tf_tensor(mesh, rate, mtf.Shape([])),
            config,
        )
        lowering = mtf.Lowering(graph, {mesh: split.placement(list(devices))}, autostack=False)
        step = [lowering.lowered_operation(operation) for operation in updates.operations]
        norm = lowering.export_to_tf_tensor(updates.gradient_norm)
        to_slices, to_masters = lowering.copy_masters_to_slices(), lowering.copy_slices_to_masters()
        variables = {variable.op.name: variable for variable in tf.compat.v1.global_variables()}
        with tf.compat.v1.Session(config=session_config(devices)) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(to_slices)
            norms = [session.run([norm, step], {rate: value})[0] for value in RATES]
            session.run(to_masters)
            return session.run(variables), norms


def expected_updates(config, undecayed):
    """The same in numpy, float64."""
    weights = {name: value.copy() for name, value in START.items()}
    moments = {name: [np.zeros_like(value)] * 2 for name, value in START.items()}
    norms = []
    for rate in RATES:
        gradients = {name: (weights[name] - TARGET[name]) ** 3 for name in weights}
        norms.append(math.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))
        clip = config.gradient_clipping
        factor = 1.0 if clip is None else min(1.0, clip / norms[-1])
        for name, gradient in gradients.items():
            gradient = gradient * factor
            m = config.beta1 * moments[name][0] + (1 - config.beta1) * gradient
            v = config.beta2 * moments[name][1] + (1 - config.beta2) * gradient**2
            update = m / (np.sqrt(v) + config.epsilon)
            if name not in undecayed:
                update = update + config.weight_decay * weights[name]
            weights[name] = weights[name] - rate * update
            moments[name] = [m, v]
    values = dict(weights)
    for name, (m, v) in moments.items():
        values |= {f"{name}/adam_m": m, f"{name}/adam_v": v}
    return values, norms


ADAM = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "weight_decay": 0.3}
OPTIONS = [
    ({}, UNDECAYED),
    ({"gradient_clipping": 5.0}, UNDECAYED),
    ({"decay_final_norm": False}, UNDECAYED | {"gpt2/ln_f/g", "gpt2/ln_f/b"}),
    ({"weight_decay": 0.0}, set(DIMS)),
]


def check_updates(got, expected):
    (values, norms), (expected_values, expected_norms) = got, expected
    assert set(values) == set(expected_values)
    np.testing.assert_allclose(norms, expected_norms, rtol=2e-6)
    for name, value in expected_values.items():
        np.testing.assert_allclose(values[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("options", "undecayed"), OPTIONS, ids=["plain", "clipped", "final norm spared", "no decay"]
)
def test_three_updates(options, undecayed):
    config = make_config(**(ADAM | options))
    check_updates(three_updates(config), expected_updates(config, undecayed))


def test_three_updates_with_split_variables():
    config = make_config(**ADAM, gradient_clipping=5.0)
    got = three_updates(config, "x:2", "vocab:x")
    check_updates(got, expected_updates(config, UNDECAYED))


def test_clipping_binds_in_some_steps_only():
    """So that the test above sees both sides of the limit."""
    norms = expected_updates(make_config(**ADAM, gradient_clipping=5.0), UNDECAYED)[1]
    assert max(norms) > 5.5
    gentle = make_config(**ADAM, gradient_clipping=1000.0)
    check_updates(three_updates(gentle), expected_updates(make_config(**ADAM), UNDECAYED))


@pytest.mark.parametrize(
    ("name", "decayed", "without_final_norm"),
    [
        ("gpt2/wte", True, True),
        ("gpt2/wpe", True, True),
        ("gpt2/h3/attn/o", True, True),
        ("gpt2/h3/mlp/conv1d_main/c_proj/kernel", True, True),
        ("gpt2/ln_f/g", True, False),
        ("gpt2/ln_f/b", True, False),
        ("gpt2/h3/norm_2/g", False, False),
        ("gpt2/h3/norm_2/b", False, False),
        ("gpt2/h3/mlp/conv1d_main/c_proj/bias", False, False),
        ("gpt2/h3/attn/compute_output_bias/o_b", False, False),
    ],
)
def test_which_names_decay(name, decayed, without_final_norm):
    config = make_config(weight_decay=0.1)
    assert decays(name, config) is decayed
    config = make_config(weight_decay=0.1, decay_final_norm=False)
    assert decays(name, config) is without_final_norm


def test_a_variable_without_influence_is_named():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        used, _ = (mtf.get_variable(mesh, name, mtf.Shape([COLUMNS])) for name in ("used", "idle"))
        rate = mtf.constant(mesh, 0.1, mtf.Shape([]))
        with pytest.raises(AssertionError, match="idle does not influence the loss"):
            build_updates(
                mtf.reduce_sum(used), list(graph.trainable_variables), rate, make_config()
            )


# --- the race between updates and reads -----------------------------------------------------


def ancestors(operation):
    """All operations that are sure to have run when ``operation`` starts."""
    found, waiting = set(), [operation]
    while waiting:
        current = waiting.pop()
        for earlier in [*(tensor.op for tensor in current.inputs), *current.control_inputs]:
            if earlier not in found:
                found.add(earlier)
                waiting.append(earlier)
    return found


def readers(variable):
    """Operations that read the variable's buffer, through identities that do not copy it."""
    found, waiting = [], [variable]
    while waiting:
        for consumer in waiting.pop().outputs[0].consumers():
            if consumer.type in ("Identity", "Enter"):
                waiting.append(consumer)
            elif consumer.type not in ("Assign", "AssignSub"):
                found.append(consumer)
    return found


@pytest.mark.parametrize("mesh", [{}, {"mesh_shape": "x:2", "layout": "batch:x"}], ids=str)
def test_every_read_of_a_weight_comes_before_its_update(mesh):
    """Weights are updated in place: without clipping nothing else holds an update back.

    The graph itself is looked at, since a race may go well a thousand times.
    """
    config = make_config(weight_decay=0.1, n_layer=1, attention_types=None, **mesh)
    split = MeshLayout.from_config(config)
    devices = cpus(split.size) if split.size > 1 else ("",)
    with tf.Graph().as_default():
        shape = [config.train_batch_size, config.n_ctx]
        inputs, labels = (tf.compat.v1.placeholder(tf.int32, shape) for _ in range(2))
        model_fn = make_model_fn(config, Placement(split, devices))
        spec = model_fn({"inputs": inputs}, labels, ModeKeys.TRAIN, {})
        # And not of the copies between slices and masters.
        of_the_step = ancestors(spec.train_op.op)
        updates = [
            operation
            for operation in of_the_step
            if operation.type in ("Assign", "AssignSub")
            and operation.inputs[0].op.type == "VariableV2"
        ]
        # Each of 17 weights and its two slots, on every processor.
        assert len(updates) == split.size * 3 * 17
        for update in updates:
            before = ancestors(update)
            reads = [op for op in readers(update.inputs[0].op) if op in of_the_step]
            assert reads
            late = [operation.name for operation in reads if operation not in before]
            assert not late, update.name


def test_two_runs_without_clipping_are_equal_to_the_bit(tmp_path):
    keys = {"weight_decay": 0.1, "n_layer": 1, "attention_types": None}
    runs = []
    for number in range(2):
        config = make_config(model_path=str(tmp_path / str(number)), **keys)
        runs.append(train(config, random_batches(config, 5)))
    first, second = runs
    assert [step["loss"] for step in first.metrics] == [step["loss"] for step in second.metrics]
    assert first.variables.keys() == second.variables.keys()
    for name, value in first.variables.items():
        np.testing.assert_array_equal(value, second.variables[name], err_msg=name)
