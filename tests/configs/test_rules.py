"""Every rule between keys, with its text."""

import pytest

from configs.errors import ConfigError
from configs.load import parse_config
from configs.names import DIMENSION_NAMES
from configs.rules import RULES
from configs.schema import Config
from tests.configs.rules_support import DATASET, MASKED, VALID, problems


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"n_embd": 32},
            "n_embd: must be a multiple of n_head 5 (got 32); set it to 30 or 35, or change n_head",
        ),
        (
            {"attention_types": [[["global", "lokal", "none"], 1]]},
            'attention_types: names an unknown attention type (got "lokal"); did you mean '
            "'local'?",
        ),
        (
            {"attention_types": [[["global", "local"], 2]]},
            "attention_types: must expand to n_layer = 3 layers and expands to 4 "
            '(got [[["global", "local"], 2]]); make the names times the repetitions add up to 3',
        ),
        (
            {"train_steps": 13, "warmup_steps": 14},
            "warmup_steps: must be at most train_steps 13 (got 14); lower it or train longer",
        ),
        (
            {"lr_decay": "linear", "warmup_steps": 5, "lr_decay_end": 4},
            "lr_decay_end: must be at least warmup_steps 5 (got 4); "
            "raise it or shorten the warm-up",
        ),
        (
            {"noise_scale_alpha": 0.01},
            "noise_scale_alpha: needs at least 2 microbatches, and the batch of a replica is one "
            "(got 0.01); set tokens_per_mb_per_replica to 154 or less, or remove it",
        ),
        (
            {"noise_scale_alpha": 0.01, "mesh_shape": "x:22", "tokens_per_mb_per_replica": 14},
            "noise_scale_alpha: needs at least 2 microbatches, and the batch of a replica is one "
            "(got 0.01); raise train_batch_size, split batch less, or remove it",
        ),
        (
            {"anneal_steps": 6},
            "end_lr: is required with anneal_steps (got null); add the rate after annealing",
        ),
        (
            {"end_lr": 1e-5},
            "anneal_steps: is required with end_lr (got null); add the steps that lead to it",
        ),
        (
            {"anneal_steps": 6, "end_lr": 0.5, "lr": 0.25},
            "end_lr: must be at most lr 0.25 (got 0.5); lower it or raise lr",
        ),
        (
            {"anneal_steps": 6, "end_lr": 1e-5, "lr_decay": "cosine"},
            'lr_decay: must not be combined with anneal_steps (got "cosine"); '
            "remove one of the two",
        ),
        (
            {"anneal_steps": 6, "end_lr": 1e-5, "lr_decay_end": 9},
            "lr_decay_end: must not be combined with anneal_steps, which is counted from the end "
            "of the warm-up (got 9); remove it",
        ),
        (
            {"n_vocab": 104},
            'n_vocab: must be at least 105, the n_vocab of dataset "words" (got 104); '
            "set it to 105 or more",
        ),
        (
            {"datasets": [], "eos_id": 105, "padding_id": 105},
            "eos_id: must be below n_vocab 105 (got 105); change it or raise n_vocab",
        ),
        (
            {"datasets": [], "eos_id": 0, "padding_id": 106},
            "padding_id: must be below n_vocab 105 (got 106); change it or raise n_vocab",
        ),
        (
            {"eos_id": 7},
            "eos_id: must be 1, as in the dataset config (got 7); remove it or change one",
        ),
        (
            {"datasets": [DATASET, DATASET | {"tokenizer_path": "other.json"}]},
            'datasets[1].tokenizer_path: must be "words.json" as in the first dataset '
            '(got "other.json"); tokenize all datasets with one tokenizer',
        ),
        (
            {"datasets": [DATASET | {"eval_path": ""}], "eval_steps": 2},
            "eval_steps: must be 0 when no dataset has an eval_path (got 2); "
            "add eval_path to the dataset config or set it to 0",
        ),
        (
            {"eval_tasks": ["piqa", "lambada"]},
            "eval_tasks: must not name lambada when no dataset config has a lambada_tokens_path "
            '(got ["piqa", "lambada"]); add it, or name lambada_openai or lambada_standard, which '
            "lm-evaluation-harness reads",
        ),
        (
            {"top_k": 0},
            "top_k: must be at least 1, or -2 for a tenth of the vocabulary (got 0); "
            "set it to null to sample among all tokens",
        ),
        (
            {"mesh_shape": "x:2,y:1", "optimizer_shard_axis": "z"},
            'optimizer_shard_axis: must be an axis of mesh_shape x:2,y:1 (got "z"); use x or y, '
            "or remove it",
        ),
        (
            {"mesh_shape": "x:0"},
            "mesh_shape: must give axis 'x' a size of at least 1 (got \"x:0\"); "
            "write a whole number after the colon",
        ),
        (
            {"mesh_shape": "x:1,x:2"},
            "mesh_shape: must name each axis once, 'x' is there twice (got \"x:1,x:2\"); "
            "rename or remove one of them",
        ),
        (
            {"layout": "batch"},
            'layout: must be a list of pairs like batch:x,heads:y (got "batch"); '
            'write "batch" as one name, a colon and one value',
        ),
        (
            {"layout": "batch:x,batch:x"},
            "layout: must name 'batch' once (got \"batch:x,batch:x\"); keep one of its rules",
        ),
        (
            {"layout": "batch:z"},
            "layout: names mesh axis 'z', which mesh_shape x:1 does not have (got \"batch:z\"); "
            "use x, or add 'z' to mesh_shape",
        ),
        (
            {"layout": "head:x"},
            "layout: names an unknown dimension (got \"head:x\"); did you mean 'heads'?",
        ),
        (
            {"layout": "features_per_head:x"},
            "layout: must not split 'features_per_head' (got \"features_per_head:x\"); "
            "split heads instead, heads:x",
        ),
        (
            {"layout": "embd:x,heads:x"},
            "layout: must not put 'embd' and 'heads' on one mesh axis, tensor "
            '[embd, heads, features_per_head] has both (got "embd:x,heads:x"); '
            "give them different axes or split one of them only",
        ),
        (
            {"layout": "vocab:x,batch:x"},
            "layout: must not put 'vocab' and 'batch' on one mesh axis, tensor "
            '[batch, sequence, vocab] has both (got "vocab:x,batch:x"); '
            "give them different axes or split one of them only",
        ),
        (
            {"mesh_shape": "x:4", "layout": "batch:x", "eval_batch_size": 8},
            "train_batch_size: must be a multiple of 4, the size of mesh axis 'x' that layout "
            "gives to 'batch' (got 22); set it to 24 or change mesh_shape",
        ),
        (
            {"mesh_shape": "x:2", "layout": "batch:x", "eval_batch_size": 9},
            "eval_batch_size: must be a multiple of 2, the size of mesh axis 'x' that layout "
            "gives to 'batch' (got 9); set it to 10 or change mesh_shape",
        ),
        (
            {"mesh_shape": "x:2", "layout": "heads:x"},
            "n_head: must be a multiple of 2, the size of mesh axis 'x' that layout gives to "
            "'heads' (got 5); change it, or take heads:x out of layout",
        ),
        (
            {"mesh_shape": "x:7", "layout": "intermediate_expanded:x"},
            "n_embd: times 4 must be a multiple of 7, the size of mesh axis 'x' that layout "
            "gives to 'intermediate_expanded' (got 30); change it, or take "
            "intermediate_expanded:x out of layout",
        ),
        (
            {"mesh_shape": "x:3", "layout": "memory_length:x"},
            "n_ctx: must be a multiple of 3, the size of mesh axis 'x' that layout gives to "
            "'memory_length' (got 14); change it, or take memory_length:x out of layout",
        ),
        (
            {"mesh_shape": "x:4", "layout": "vocab:x"},
            "n_vocab: must be a multiple of 4, the size of mesh axis 'x' that layout gives to "
            "'vocab' (got 105); set it to 108, rows beyond the dataset are padding",
        ),
        (
            {
                "attention_types": [[["global", "linear", "none"], 1]],
                "mesh_shape": "x:2",
                "layout": "sequence:x",
            },
            "layout: must not split 'sequence' with linear layers, a position needs the sum over "
            'all before it (got "sequence:x"); split batch or heads instead, heads:x',
        ),
    ],
)
def test_rules(changes, expected):
    assert problems(**changes) == [expected]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"axial_pos_emb": [2, 8]},
            "axial_pos_emb: must be two sizes whose product is n_ctx 14, and theirs is 16 "
            "(got [2, 8]); change one of them or n_ctx",
        ),
        (
            {"axial_pos_emb": [2, 7], "relative_position_bias": True},
            "axial_pos_emb: must not be combined with relative_position_bias (got [2, 7]); "
            "remove one of the two",
        ),
        (
            {"relative_position_bias": True, "rotary_emb": True},
            "relative_position_bias: must not be combined with rotary_emb (got true); "
            "remove one of the two",
        ),
        (
            {"relative_position_bias": True, "attention_types": [[["linear", "none", "none"], 1]]},
            "relative_position_bias: needs a layer with attention scores, and all are linear or "
            "none (got true); remove it or make a layer global or local in attention_types",
        ),
        (
            {"axial_pos_emb": [2, 7], "rotary_emb": True},
            "axial_pos_emb: must not be combined with rotary_emb (got [2, 7]); "
            "remove one of the two",
        ),
        (
            {"rotary_emb": True, "n_embd": 35},
            "rotary_emb: needs an even head size, and n_embd / n_head is 7 (got true); "
            "change n_embd or n_head, or set an even rotary_dim",
        ),
        (
            {"moe_layers": [1, 3]},
            "moe_layers: must name layers below n_layer 3 (got [3]); use 0 to 2",
        ),
        (
            {"mlm_training": True},
            "mlm_mask_id: is required with mlm_training (got null); add the id of the mask token",
        ),
        (
            {
                "mlm_training": True,
                "mlm_mask_id": 2,
                "mlm_same_token_prob": 0.75,
                "mlm_random_token_prob": 0.5,
            },
            "mlm_same_token_prob: plus mlm_random_token_prob must be at most 1 (got 1.25); "
            "lower one of them",
        ),
        (
            {"mlm_training": True, "mlm_mask_id": 105},
            "mlm_mask_id: must be below n_vocab 105 (got 105); change it or raise n_vocab",
        ),
        (
            MASKED | {"mlm_cls_token_id": 2},
            "mlm_mask_id: must differ from mlm_cls_token_id (got 2); change one of them",
        ),
        (
            MASKED | {"mlm_mask_ignore_ids": [3, 105, 200]},
            "mlm_mask_ignore_ids: must be below n_vocab 105 (got [105, 200]); remove them or raise "
            "n_vocab",
        ),
        (
            MASKED | {"predict_steps": 2},
            "predict_steps: must not be set with mlm_training, a masked model does not continue "
            "text (got 2); remove it",
        ),
        (
            MASKED | {"eval_tasks": ["lambada"]},
            "eval_tasks: must not be set with mlm_training, a masked model does not continue "
            'text (got ["lambada"]); remove it',
        ),
    ],
)
def test_rules_of_features_to_come_are_checked_already(changes, expected):
    assert expected in problems(**changes)


@pytest.mark.parametrize("path", ["runs/a[b]", "runs/*", "runs?/a", "runs\\\\a", "[", "gs://b/a*"])
def test_a_model_path_is_no_pattern(path):
    with pytest.raises(ConfigError, match="model_path: must not contain ") as caught:
        parse_config(VALID | {"model_path": path})
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("path", ["runs/a b", "runs/{a,b}", "runs/ü]", "gs://bucket/a-1", "a'#%:"])
def test_a_model_path_may_have_other_characters(path):
    assert parse_config(VALID | {"model_path": path}).model_path == path


def test_rules_name_keys_that_exist():
    named = set().union(*(rule.keys for rule in RULES))
    assert named <= set(Config.model_fields)


def test_every_rule_declares_the_keys_that_it_reads(monkeypatch):
    values = VALID | {"mesh_shape": "x:2,y:1", "layout": "batch:x,heads:y", "lr_decay": "linear"}
    values |= {"noise_scale_alpha": 0.5, "tokens_per_mb_per_replica": 14}
    config = parse_config(values)
    read = set()
    plain = Config.__getattribute__

    def recording(self, name):
        read.add(name)
        return plain(self, name)

    monkeypatch.setattr(Config, "__getattribute__", recording)
    for rule in RULES:
        read.clear()
        assert list(rule.check(config)) == []
        undeclared = (read & set(Config.model_fields)) - rule.keys
        assert not undeclared, f"{rule.check.__name__} reads {undeclared}"


ACTIVE = {
    "attention_types": [[["linear", "global", "local"], 1]],
    "precision": "bfloat16",
    "tokens_per_mb_per_replica": 14,
    "recompute_grad": True,
    "moe_layers": [1],
    "mlm_training": True,
    "axial_pos_emb": [2, 7],
    "rotary_emb": True,
    "relative_position_bias": True,
    "mlp_glu": True,
    "scalenorm": True,
    "rezero": True,
    "num_mem_kv": 2,
    "macaron": True,
    "share_parameters": True,
    "no_weight_tie": True,
    "entmax_loss": True,
    "log_grads": True,
    "opt_name": "adafactor",
    "eval_tasks": ["piqa"],
}


OFF = {
    "axial_pos_emb": [],
    "eval_tasks": [],
    "moe_layers": [],
    "moe_params": {},
    "num_mem_kv": 0,
    "tokens_per_mb_per_replica": 0,
}


@pytest.mark.parametrize("key", sorted({*ACTIVE, *OFF} - {"attention_types", "precision"}))
def test_a_feature_is_switched_off_by_null_or_the_zero_of_its_type(key):
    for off in (None, OFF.get(key, False)) if key != "opt_name" else (None,):
        assert parse_config(VALID | {key: off}) == parse_config(VALID)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("rotary_emb", "", 'must be true or false (got "")'),
        ("rotary_emb", 0, "must be true or false (got 0)"),
        ("eval_tasks", False, "must be a list (got false)"),
        ("moe_layers", {}, "must be a list (got {})"),
        ("moe_params", [], "must be an object (got [])"),
        ("num_mem_kv", False, "must be a whole number (got false)"),
        ("tokens_per_mb_per_replica", "", 'must be a whole number (got "")'),
        ("axial_pos_emb", False, "must be a list (got false)"),
    ],
)
def test_an_empty_value_of_another_type_is_refused(key, value, expected):
    (found,) = problems(**{key: value})
    assert found.startswith(f"{key}: {expected}; ")


def test_a_misspelt_key_is_refused_even_when_it_is_null():
    assert problems(n_hed=None) == ["n_hed: is not a known key (got null); did you mean 'n_head'?"]


def test_only_dimensions_that_can_be_split_are_offered():
    (found,) = problems(layout="zzz:x")
    assert "choose one of batch, sequence, memory_length, embd, heads, vocab," in found
    assert "features_per_head" not in found


def test_a_layout_with_every_dimension_on_its_own_axis_is_accepted():
    splits = [dim for dim in DIMENSION_NAMES if dim not in ("features_per_head", "experts")]
    axes = [f"a{index}" for index in range(len(splits))]
    config = parse_config(
        VALID
        | {
            "mesh_shape": " ".join(f"{axis}:1" for axis in axes),
            "layout": ";".join(f"{dim}:{axis}" for dim, axis in zip(splits, axes)),
        }
    )
    assert config.warnings == ()
    assert config.layout_rules == tuple(zip(splits, axes))
    assert config.mesh_axes == tuple((axis, 1) for axis in axes)


def test_a_config_is_frozen():
    config = parse_config(VALID)
    with pytest.raises(ValueError, match="frozen"):
        config.n_ctx = 3
