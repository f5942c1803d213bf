"""The mixture-of-experts layer against a loop over tokens in numpy, whole and split."""

import numpy as np
import pytest
import tensorflow as tf

from models.dimensions import Dimensions
from models.kernels.noise import Dropout, keep_mask
from models.mixture_of_experts import mixture_of_experts
from tests.support import (
    assert_all_close,
    cpus,
    make_config,
    mesh_layout,
    run_named,
    run_tf,
)
from utils.garbage import no_garbage_collection
from utils.mesh_tensorflow import mtf

BATCH, LENGTH, WIDTH, EXPERTS, HIDDEN = 6, 10, 14, 4, 22
LAYER = 1
SIZES = {"moe_num_experts": EXPERTS, "moe_hidden_size": HIDDEN, "moe_min_expert_capacity": 1}
LAYOUTS = [
    ("x:2", "experts:x"),
    ("x:2", "batch:x,experts:x"),
    ("x:2,y:2", "batch:x,experts:y"),
    ("x:2,y:2", "batch:x,experts:x,intermediate_expanded:y"),
    ("x:2,y:2", "batch:x,experts:x,embd:y"),
]
RANDOM = np.random.default_rng(4)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


X, UPSTREAM = normal(2, BATCH, LENGTH, WIDTH)
# Tokens lean towards the first experts, so that these overflow.
X += 0.7
GATE = normal(WIDTH, EXPERTS) * 0.4 + np.array([0.08, 0.04, 0, 0], np.float32)
WI = normal(EXPERTS, WIDTH, HIDDEN) * 0.4
WO = normal(EXPERTS, HIDDEN, WIDTH) * 0.4
VALUES = {"top_2_gating": GATE, "wi": WI, "wo": WO}
LOSS_WEIGHT = 30.0  # the auxiliary loss's part of what is differentiated


class GivenWeights:
    """Stands in for Weights: variables are tensors of the test."""

    prepares = False

    def __init__(self, **tensors: mtf.Tensor):
        self._tensors = {f"h{LAYER}/{name}/kernel": x for name, x in tensors.items()}

    def layer_scope(self, layer: int) -> str:
        return f"h{layer}"

    def truncated_normal(self, name, dims, stddev) -> mtf.Tensor:
        tensor = self._tensors[name]
        assert tensor.shape.dims == dims
        return tensor


def config_of(**params):
    return make_config(
        n_embd=WIDTH,
        n_ctx=LENGTH,
        train_batch_size=BATCH,
        moe_layers=[LAYER],
        moe_params=SIZES | params,
    )


def given(config, values=None, x=X):
    """Inputs of the layer with their dimensions: x, then the variables."""
    values = VALUES if values is None else values
    dims = Dimensions.from_config(config, len(x))
    mixture = dims.mixture
    return [
        (x, [dims.batch, dims.sequence, dims.embd]),
        (values["top_2_gating"], [dims.embd, mixture.routes]),
        (values["wi"], [mixture.experts, dims.embd, mixture.hidden]),
        (values["wo"], [mixture.experts, mixture.hidden, dims.embd]),
    ]


def apply_layer(split, config, x, gate, wi, wo, training=True, dtype=tf.float32):
    """(mixed, auxiliary loss or None); step 3 of seed 5."""
    dims = Dimensions.from_config(config, x.shape.dims[0].size)
    weights = GivenWeights(top_2_gating=gate, wi=wi, wo=wo)
    rows = mtf.range(x.mesh, dims.batch, tf.int32)
    dropout = Dropout(x.mesh, 5, tf.constant(3), rows) if training else None
    cast = mtf.cast(x, dtype)
    return mixture_of_experts(weights, cast, dims, config, split, LAYER, dropout)


def trained_layer(config, mesh_shape="x:1", layout="", dtype=tf.float32, evaluates=False):
    """Output, auxiliary loss, and gradients of sum(output * UPSTREAM) + LOSS_WEIGHT * loss.

    With ``evaluates`` the output of evaluation follows.
    """
    inputs = given(config)

    def build(split, upstream, *tensors):
        mixed, loss = apply_layer(split, config, *tensors, dtype=dtype)
        assert loss.dtype == tf.float32
        mixed = mtf.cast(mixed, tf.float32)
        objective = mtf.reduce_sum(mixed * upstream) + LOSS_WEIGHT * loss
        outputs = [mixed, loss, *mtf.gradients([objective], list(tensors))]
        if evaluates:
            outputs.append(apply_layer(split, config, *tensors, training=False).mixed)
        return outputs

    return run_named(mesh_shape, layout, [(UPSTREAM, inputs[0][1]), *inputs], build)


def evaluated_layer(config, x=X):
    def build(split, *tensors):
        mixed, loss = apply_layer(split, config, *tensors, training=False)
        assert loss is None
        return [mixed]

    return run_named("x:1", "", given(config, x=x), build)[0]


def noise(config) -> tuple[np.ndarray, np.ndarray]:
    """What the layer draws for second experts [batch, sequence], and its dropout's factors."""
    dims = Dimensions.from_config(config, BATCH)
    hidden = [dims.mixture.experts, dims.batch, dims.mixture.capacity, dims.mixture.hidden]

    def build(_, rows):
        dropout = Dropout(rows.mesh, 5, tf.constant(3), rows)
        second = dropout.uniform([dims.batch, dims.sequence], f"h{LAYER}/mlp/second_expert")
        return [second, dropout.key(f"h{LAYER}/mlp/experts")]

    rows = np.arange(BATCH, dtype=np.int32)
    second, key = run_named("x:1", "", [(rows, [dims.batch])], build)
    rate = config.moe_params.moe_dropout_rate
    factors = run_tf(
        lambda: keep_mask(tf.constant(key), [tf.range(dim.size) for dim in hidden], rate)
    )
    return second, factors


# --- the reference ---------------------------------------------------------------------------

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def second_wanted(policy: str, threshold: float, gate: float, draw: float) -> bool:
    return {
        "all": True,
        "none": False,
        "threshold": gate > threshold,
        "random": draw < gate / max(threshold, 1e-9),
    }[policy]


def reference(config, x, gate, wi, wo, draws=None, factors=None):
    """Output, auxiliary loss and the number of choices that found no slot, token by token.

    Args:
        config: moe_params.
        x: [batch, sequence, embd].
        gate: [embd, experts].
        wi: [experts, embd, hidden].
        wo: [experts, hidden, embd].
        draws: [batch, sequence] noise of a training step; None for evaluation.
        factors: [experts, batch, capacity, hidden] dropout of a training step.
    """
    params, act = config.moe_params, ACTIVATIONS[config.expert_activation]
    x, gate, wi, wo = (array.astype(np.float64) for array in (x, gate, wi, wo))
    training, experts = draws is not None, gate.shape[1]
    share = int(x.shape[1] * params.moe_capacity_factor_train / experts)
    capacity = min(x.shape[1], max(share, params.moe_min_expert_capacity))
    mixed, losses, dropped = np.zeros_like(x), [], 0
    for b, row in enumerate(x):
        probabilities = softmax(row @ gate)
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :2]
        gates = np.take_along_axis(probabilities, order, 1)
        gates = gates / (gates.sum(1, keepdims=True) + 1e-9)
        filled = [0] * experts
        for place in range(2):  # all first choices are served before any second one
            for t, token in enumerate(row):
                expert, weight = order[t, place], gates[t, place]
                policy = params.moe_second_policy_train
                if policy == "random" and not training:
                    policy = "all"
                draw = draws[b, t] if training else 0.0
                if place and not second_wanted(
                    policy, params.moe_second_threshold_train, weight, draw
                ):
                    continue
                hidden = act(token @ wi[expert])
                if training:
                    if filled[expert] == capacity:
                        dropped += 1
                        continue
                    hidden = hidden * factors[expert, b, filled[expert]]
                    filled[expert] += 1
                mixed[b, t] += weight * (hidden @ wo[expert])
        shares = [np.bincount(order[:, place], minlength=experts) for place in range(2)]
        loss = experts * (shares[0] / len(row) * probabilities.mean(0)).sum()
        if params.moe_use_second_place_loss:
            rest = probabilities.copy()
            np.put_along_axis(rest, order[:, :1], 0.0, 1)
            rest /= rest.sum(1, keepdims=True) + 1e-9
            loss += 0.5 * experts * (shares[1] / len(row) * rest.mean(0)).sum()
        losses.append(loss)
    return mixed, np.mean(losses) * params.moe_loss_coef, dropped


def training_reference(config, x=X, values=None):
    values = VALUES if values is None else values
    draws, factors = noise(config)
    return reference(config, x, *(values[name] for name in VALUES), draws, factors)


# --- training --------------------------------------------------------------------------------

ROOMY = {"moe_capacity_factor_train": 2.0}  # else few second choices find a slot
OPTIONS = [
    ROOMY | {"moe_second_policy_train": "random", "moe_second_threshold_train": 0.7},
    ROOMY
    | {"moe_second_policy_train": "random", "moe_dropout_rate": 0.3}
    | {"moe_activation": "relu"},
    {"moe_second_policy_train": "all", "moe_activation": "tanh"},
    {"moe_second_policy_train": "all", "moe_use_second_place_loss": True, "moe_loss_coef": 0.5},
    {"moe_second_policy_train": "all", "moe_capacity_factor_train": 0.5},
    {"moe_second_policy_train": "all", "moe_min_expert_capacity": 5},
    ROOMY | {"moe_second_policy_train": "threshold", "moe_second_threshold_train": 0.35},
    {"moe_second_policy_train": "none"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_training_values(options):
    config = config_of(**options)
    mixed, loss, _ = training_reference(config)
    assert_all_close(trained_layer(config)[:2], [mixed, np.asarray(loss)], 1e-6)


def test_every_option_changes_what_is_trained():
    """So that the values above tell them apart; each leaves tokens out."""
    results = [training_reference(config_of(**options)) for options in OPTIONS]
    for index, (mixed, _, dropped) in enumerate(results):
        for other in results[:index]:
            assert np.abs(mixed - other[0]).max() > 1e-2, index
        assert dropped > 0, index


@pytest.mark.parametrize("first", [0, 6], ids=["random", "threshold"])
def test_policies_matter_to_many_tokens(first):
    """What is compared above holds second experts that are used, and some that are not."""
    policies = [{"moe_second_policy_train": policy} for policy in ("none", "all")]
    none, every = (training_reference(config_of(**OPTIONS[first] | p))[0] for p in policies)
    mixed = training_reference(config_of(**OPTIONS[first]))[0]
    for other in (none, every):
        differing = np.abs(mixed - other).max(-1) > 1e-3
        assert differing.sum() >= BATCH * LENGTH // 10, differing.sum()


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[1], OPTIONS[3]], ids=str)
def test_gradients(options):
    """Against differences of the reference in float64; nothing of them changes who goes where."""
    config = config_of(**options)
    draws, factors = noise(config)

    def objective(x, *values):
        mixed, loss, _ = reference(config, x, *values, draws, factors)
        return (mixed * UPSTREAM).sum() + LOSS_WEIGHT * loss

    arrays = [array.astype(np.float64) for array in (X, GATE, WI, WO)]
    random = np.random.default_rng(8)
    for index, gradient in enumerate(trained_layer(config)[2:]):
        for place in random.choice(gradient.size, 8, replace=False):
            values = []
            for step in (1e-5, -1e-5):
                moved = [array.copy() for array in arrays]
                moved[index].flat[place] += step
                values.append(objective(*moved))
            expected = (values[0] - values[1]) / 2e-5
            scale = np.abs(gradient).max()
            assert abs(gradient.flat[place] - expected) < 1e-5 * scale, (index, place)


# --- layouts ---------------------------------------------------------------------------------

MIXED_BAG = OPTIONS[1] | {"moe_use_second_place_loss": True, "moe_second_threshold_train": 0.5}


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_layout_does_not_matter(whole, mesh_shape, layout):
    got = trained_layer(config_of(**MIXED_BAG), mesh_shape, layout, evaluates=True)
    assert_all_close(got, whole, 2e-6)


@pytest.fixture(scope="module")
def whole():
    return trained_layer(config_of(**MIXED_BAG), evaluates=True)


def test_the_layer_of_the_layouts_is_right(whole):
    config = config_of(**MIXED_BAG)
    mixed, loss, _ = training_reference(config)
    evaluated, _, _ = reference(config, X, GATE, WI, WO)
    assert_all_close([*whole[:2], whole[-1]], [mixed, np.asarray(loss), evaluated], 1e-6)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [("batch:x,experts:x", {"alltoall/0"}), ("batch:x,experts:y", {"allconcat/1"})],
)
def test_processors_exchange_tokens_when_experts_share_the_axis_of_the_batch(layout, expected):
    """On another axis they keep their sequences, and nothing moves along the batch's axis."""
    config, split = config_of(), mesh_layout("x:2,y:2", layout)
    with no_garbage_collection(), tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        tensors = [
            mtf.import_tf_tensor(mesh, tf.constant(array), mtf.Shape(dims))
            for array, dims in given(config)
        ]
        apply_layer(split, config, *tensors)
        lowering = mtf.Lowering(graph, {mesh: split.placement(list(cpus(4)))})
    suffix = "/reshape_op"
    moves = {name for name, _ in lowering.counters if name.endswith(suffix)}
    assert {name.removesuffix(suffix) for name in moves} == expected


def test_bfloat16_is_gated_in_float32():
    """The same experts as for the rounded tokens in float32, weighted with the same gates."""
    config = config_of(moe_second_policy_train="all")
    mixed, loss, *gradients = trained_layer(config, dtype=tf.bfloat16)
    rounded = run_tf(lambda: tf.cast(tf.cast(tf.constant(X), tf.bfloat16), tf.float32))
    expected, expected_loss, _ = training_reference(config, rounded)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    np.testing.assert_allclose(mixed, expected, atol=0.02 * np.abs(expected).max())
    for gradient, exact in zip(gradients, trained_layer(config)[2:]):
        assert np.corrcoef(gradient.ravel(), exact.ravel())[0, 1] > 0.999


# --- evaluation ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"moe_second_policy_train": "random", "moe_dropout_rate": 0.3},
        {"moe_second_policy_train": "threshold", "moe_second_threshold_train": 0.35},
        {"moe_second_policy_train": "none", "moe_activation": "relu"},
    ],
    ids=str,
)
def test_evaluation_values(options):
    """No token is left out, and nothing is random."""
    config = config_of(**options)
    expected, _, dropped = reference(config, X, GATE, WI, WO)
    assert dropped == 0
    assert_all_close([evaluated_layer(config)], [expected], 1e-6)


def test_a_token_is_evaluated_alone():
    """Whatever is beside it, in its sequence or in the batch."""
    config = config_of()
    alone = X.copy()
    alone[1:] = X[0, 3]
    alone[0, 5:] = -X[0, 3]
    together, apart = evaluated_layer(config), evaluated_layer(config, x=alone)
    np.testing.assert_allclose(apart[0, :5], together[0, :5], rtol=1e-6, atol=1e-6)
