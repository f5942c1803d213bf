"""Rules and warnings of keys that say what the network is, and the names of other frameworks."""

import pytest

from configs.load import parse_config
from configs.names import MOVED_KEYS
from tests.configs.rules_support import DATASET, VALID, problems, warnings


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"rotary_emb": True, "rotary_dim": 8},
            "rotary_dim: must be even and at most the head size, n_embd / n_head = 6 (got 8); set "
            "it to 6 or less",
        ),
        (
            {"rotary_emb": True, "rotary_dim": 3},
            "rotary_dim: must be even and at most the head size, n_embd / n_head = 6 (got 3); set "
            "it to 6 or less",
        ),
        (
            {"rotary_emb": True, "rotary_dim": 2, "n_embd": 5},
            "rotary_dim: must be even and at most the head size, n_embd / n_head = 1 (got 2); "
            "change n_embd or n_head",
        ),
        (
            {"norm": "rmsnorm", "scalenorm": True},
            'norm: must not be combined with scalenorm (got "rmsnorm"); remove one of the two',
        ),
        (
            {"norm": "layernorm-nobias", "rezero": True},
            'norm: must not be combined with rezero (got "layernorm-nobias"); remove one of the '
            "two",
        ),
        (
            {"norm": "layernorm-desync"},
            "norm: must be one of layernorm, layernorm-nobias, rmsnorm, rmsnorm-bias, scalenorm, "
            "scalenorm-bias (got \"layernorm-desync\"); did you mean 'layernorm'?",
        ),
        (
            {"vocab_padding": 105, "datasets": []},
            "vocab_padding: must be below n_vocab 105, whose last rows it counts (got 105); lower "
            "it or raise n_vocab",
        ),
        (
            {"vocab_padding": 2},
            'n_vocab: must be at least 105, the n_vocab of dataset "words" plus vocab_padding 2 '
            "(got 105); set it to 107 or more",
        ),
        (
            {"vocab_padding": 2, "datasets": [], "eos_id": 103, "padding_id": 0},
            "eos_id: must be below n_vocab - vocab_padding = 103 (got 103); change it or raise "
            "n_vocab",
        ),
        (
            {
                "vocab_padding": 2,
                "datasets": [],
                "padding_id": 0,
                "mlm_training": True,
                "mlm_mask_id": 2,
                "mlm_mask_ignore_ids": [102, 103],
            },
            "mlm_mask_ignore_ids: must be below n_vocab - vocab_padding = 103 (got [103]); remove "
            "them or raise n_vocab",
        ),
    ],
)
def test_faults(changes, expected):
    assert expected in problems(**changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"rotary_dim": 4, "rotary_interleaved": True},
            [
                "rotary_dim: has no effect, rotary_emb is false (got 4); remove it",
                "rotary_interleaved: has no effect, rotary_emb is false (got true); remove it",
            ],
        ),
        (
            {"rotary_emb": True, "rotary_dim": 2, "rotary_interleaved": True},
            [
                "rotary_interleaved: has no effect, a single pair of features is turned (got "
                "true); remove it"
            ],
        ),
        (
            {"scaled_attention": True, "attention_types": [[["linear"], 3]]},
            [
                "scaled_attention: has no effect, no layer has attention scores, all are linear or "
                "none (got true); remove it"
            ],
        ),
        (
            {
                "attention_bias": "all",
                "parallel_residual": True,
                "attention_types": [[["none"], 3]],
            },
            [
                'attention_bias: has no effect, no layer has attention (got "all"); remove it',
                "parallel_residual: has no effect, no layer has attention (got true); remove it",
            ],
        ),
        (
            {"initializer": "gptj", "scale_by_in": True, "scale_by_depth": True},
            [
                "scale_by_in: has no effect, initializer is gptj (got true); remove it",
                "scale_by_depth: has no effect, initializer is gptj (got true); remove it",
            ],
        ),
        (
            {"final_norm": False, "weight_decay": 0.1, "decay_final_norm": False},
            ["decay_final_norm: has no effect, the model has no final norm (got false); remove it"],
        ),
    ],
)
def test_keys_without_effect(changes, expected):
    assert warnings(**changes) == expected


def test_padding_that_no_row_of_a_token_stands_for():
    dataset = DATASET | {"n_vocab": 103, "padding_id": 103}
    lines = warnings(vocab_padding=2, datasets=[dataset])
    assert lines == [
        "padding_id: has no row in the embedding of 103 tokens, it is never embedded (got 103); "
        "set it to an id below 103 if the data hold padding"
    ]


def test_what_follows_from_the_keys():
    plain = parse_config(VALID)
    assert (plain.token_count, plain.rotary_features, plain.has_final_norm) == (105, 0, True)
    untied = parse_config(VALID | {"no_weight_tie": True, "rotary_emb": True})
    assert (untied.rotary_features, untied.has_final_norm) == (6, False)
    gptj = {"no_weight_tie": True, "final_norm": True, "rotary_emb": True, "rotary_dim": 4}
    config = parse_config(VALID | gptj | {"n_vocab": 112, "vocab_padding": 7})
    assert (config.token_count, config.rotary_features, config.has_final_norm) == (105, 4, True)


def test_sizes_by_the_names_of_mesh_transformer_jax():
    rest = {key: VALID[key] for key in VALID if key not in ("n_layer", "n_embd", "n_ctx")}
    theirs = {"layers": 3, "d_model": 30, "n_heads": 5, "seq": 14}
    del rest["n_head"]
    assert parse_config(rest | theirs) == parse_config(VALID)


def test_its_other_keys_say_what_to_write():
    keys = ("pe", "cores_per_replica", "per_replica_batch", "bucket", "val_batches", "d_head")
    lines = problems(**dict.fromkeys(keys, 1))
    assert len(lines) == len(keys)
    for key in keys:
        assert f"{key}: is not a key of the config (got 1); {MOVED_KEYS[key]}" in lines
