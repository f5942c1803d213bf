"""`moe_params`: what it may hold, what it refuses, and what has no effect."""

import pytest

from configs.errors import ConfigError
from configs.load import parse_config
from configs.mixture_keys import MixtureKeys

VALID = {
    "model_path": "runs/experts",
    "n_layer": 3,
    "n_embd": 30,
    "n_head": 5,
    "n_ctx": 14,
    "n_vocab": 105,
    "train_batch_size": 22,
    "train_steps": 13,
    "eos_id": 1,
    "padding_id": 0,
    "moe_layers": [1],
}


def problems(changes):
    with pytest.raises(ConfigError) as caught:
        parse_config(VALID | changes)
    return caught.value.problems


def test_defaults_are_mesh_tensorflow_s():
    config = parse_config(VALID)
    assert config.warnings == ()
    assert config.moe_params.model_dump() == {
        "moe_num_experts": 16,
        "moe_hidden_size": 4096,
        "moe_activation": None,
        "moe_dropout_rate": 0.0,
        "moe_capacity_factor_train": 1.25,
        "moe_min_expert_capacity": 4,
        "moe_second_policy_train": "random",
        "moe_second_threshold_train": 0.2,
        "moe_loss_coef": 0.01,
        "moe_use_second_place_loss": False,
    }


OTHER = {
    "moe_num_experts": 6,
    "moe_hidden_size": 22,
    "moe_activation": "relu",
    "moe_dropout_rate": 0.1,
    "moe_capacity_factor_train": 2.0,
    "moe_min_expert_capacity": 1,
    "moe_second_policy_train": "threshold",
    "moe_second_threshold_train": 0.3,
    "moe_loss_coef": 0.0,
    "moe_use_second_place_loss": True,
}


def test_every_default_may_be_overridden():
    assert OTHER.keys() == MixtureKeys.model_fields.keys()
    assert parse_config(VALID | {"moe_params": OTHER}).moe_params.model_dump() == OTHER
    for name, value in OTHER.items():
        params = parse_config(VALID | {"moe_params": {name: value}}).moe_params
        assert params.model_dump() == MixtureKeys().model_dump() | {name: value}
    by_flag = parse_config(VALID, ['moe_params={"moe_num_experts": 6}'])
    assert by_flag.moe_params.moe_num_experts == 6
    null = parse_config(VALID | {"moe_params": {"moe_num_experts": None}})
    assert null.moe_params == MixtureKeys()


@pytest.mark.parametrize("params", [{}, OTHER, {"moe_second_policy_train": "none"}])
def test_the_resolved_config_loads_again(params):
    config = parse_config(VALID | {"moe_params": params})
    again = parse_config(config.to_json_dict())
    assert (again.moe_params, again.warnings) == (config.moe_params, config.warnings)


def test_the_experts_activation_is_the_config_s_unless_they_have_their_own():
    keys = VALID | {"activation_function": "silu"}
    assert parse_config(keys).expert_activation == "silu"
    own = parse_config(keys | {"moe_params": {"moe_activation": "relu"}})
    assert (own.expert_activation, own.warnings) == ("relu", ())


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (
            {"moe_num_expert": 4},
            "moe_params.moe_num_expert: is not a known key (got 4); did you mean "
            "'moe_num_experts'?",
        ),
        (
            {"moe_num_expert": None},
            "moe_params.moe_num_expert: is not a known key (got null); did you mean "
            "'moe_num_experts'?",
        ),
        (
            {"moe_capacity_factor_eval": 2.0},
            "moe_params.moe_capacity_factor_eval: is not a key of the config (got 2.0); "
            "remove it: evaluation leaves no token out",
        ),
        (
            {"moe_num_experts": 1},
            "moe_params.moe_num_experts: must be at least 2 (got 1); change it",
        ),
        (
            {"moe_hidden_size": 2.5},
            "moe_params.moe_hidden_size: must be a whole number (got 2.5); write it without "
            "quotes or decimal point",
        ),
        (
            {"moe_dropout_rate": 1.0},
            "moe_params.moe_dropout_rate: must be below 1.0 (got 1.0); change it",
        ),
        (
            {"moe_second_policy_train": "randm"},
            "moe_params.moe_second_policy_train: must be one of all, none, threshold, random "
            "(got \"randm\"); did you mean 'random'?",
        ),
        (
            {"moe_activation": "rellu"},
            'moe_params.moe_activation: is not a known activation (got "rellu"); did you mean '
            "'relu'?",
        ),
        ([["moe_num_experts", 4]], None),
    ],
    ids=str,
)
def test_wrong_params(params, expected):
    found = problems({"moe_params": params})
    if expected is None:
        assert found[0].startswith("moe_params: must be an object (got [")
    else:
        assert found == [expected]


def test_all_problems_are_reported_at_once():
    found = problems(
        {"moe_params": {"moe_num_experts": 1, "moe_loss_coef": -1.0}, "n_head": 0, "n_hed": 3}
    )
    assert {line.partition(":")[0] for line in found} == {
        "moe_params.moe_num_experts",
        "moe_params.moe_loss_coef",
        "n_head",
        "n_hed",
    }


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (
            "experts:x",
            "moe_params.moe_num_experts: must be a multiple of 4, the size of mesh axis 'x' that "
            "layout gives to 'experts' (got 6); set it to 8, or take experts:x out of layout",
        ),
        (
            "intermediate_expanded:x",
            "moe_params.moe_hidden_size: must be a multiple of 4, the size of mesh axis 'x' that "
            "layout gives to 'intermediate_expanded' (got 22); set it to 24, or take "
            "intermediate_expanded:x out of layout",
        ),
        (
            "sequence:y",
            "layout: must not split 'sequence' with moe_layers, experts count a sequence's "
            'tokens (got "sequence:y"); split batch or experts instead, experts:y',
        ),
    ],
)
def test_layouts_that_cannot_be(layout, expected):
    keys = {"moe_params": OTHER, "mesh_shape": "x:4,y:1", "layout": layout}
    assert problems(keys) == [expected]


def test_batch_and_experts_may_share_an_axis():
    keys = VALID | {"mesh_shape": "x:2", "layout": "batch:x,experts:x"}
    assert parse_config(keys).warnings == ()


ALL_EXPERTS = {"moe_layers": [0, 1, 2]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            ALL_EXPERTS | {"mlp_glu": True},
            "mlp_glu: has no effect, every feed-forward layer is a mixture of experts (got true); "
            "remove it",
        ),
        (
            ALL_EXPERTS | {"scale_by_depth": True},
            "scale_by_depth: has no effect, every feed-forward layer is a mixture of experts "
            "(got true); remove it",
        ),
        (
            ALL_EXPERTS | {"activation_function": "silu", "moe_params": OTHER},
            "activation_function: has no effect, every feed-forward layer is a mixture of experts "
            'with moe_activation (got "silu"); remove it',
        ),
        (ALL_EXPERTS | {"activation_function": "silu"}, None),
        (ALL_EXPERTS | {"scale_by_depth": True, "macaron": True}, None),
        ({"mlp_glu": True}, None),
        (
            {
                "moe_params": {
                    "moe_second_policy_train": "all",
                    "moe_second_threshold_train": 0.4,
                }
            },
            "moe_params.moe_second_threshold_train: has no effect, moe_second_policy_train is all "
            "(got 0.4); remove it",
        ),
        ({"moe_params": {"moe_second_threshold_train": 0.4}}, None),
    ],
    ids=str,
)
def test_warnings(changes, expected):
    assert parse_config(VALID | changes).warnings == (() if expected is None else (expected,))
