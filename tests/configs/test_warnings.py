"""Every warning, with its text."""

import pytest

from configs.load import parse_config
from tests.configs.rules_support import DATASET, MASKED, VALID, warnings


def test_the_base_config_is_clean():
    assert parse_config(VALID).warnings == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"ada_decay_rate": 0.1},
            "ada_decay_rate: has no effect, opt_name is not adafactor (got 0.1); remove it",
        ),
        (
            {"local_attention_radius": 256},
            "local_attention_radius: has no effect, no layer has local attention (got 256); "
            "remove it",
        ),
        (
            {"attention_types": [[["linear", "none", "linear"], 1]], "attn_dropout": 0.1},
            "attn_dropout: has no effect, no layer has attention weights, all are linear or none "
            "(got 0.1); remove it",
        ),
        (
            {"attention_types": [[["none"], 3]], "num_mem_kv": 2},
            "num_mem_kv: has no effect, no layer has attention (got 2); remove it",
        ),
        (
            {"attention_types": [[["linear"], 3]], "layout": "memory_length:x"},
            "layout: splits 'memory_length', which no tensor of this model has "
            '(got "memory_length:x"); remove it',
        ),
        (
            {"ada_epsilon1": 1e-30},
            "ada_epsilon1: has no effect, opt_name is not adafactor (got 1e-30); remove it",
        ),
        (
            {"moe_params": {"moe_dropout_rate": 0.0}},
            'moe_params: has no effect, moe_layers is empty (got {"moe_dropout_rate": 0.0}); '
            "remove it",
        ),
        (
            {"mlm_mask_id": 3},
            "mlm_mask_id: has no effect, mlm_training is false (got 3); remove it",
        ),
        (
            MASKED | {"top_p": 0.9},
            "top_p: has no effect, mlm_training is true (got 0.9); remove it",
        ),
        (
            {"entmax_loss": True, "z_loss": 0.0001},
            "z_loss: has no effect, entmax_loss is true (got 0.0001); remove it",
        ),
        (
            {"tokens_per_mb_per_replica": 14 * 22},
            "tokens_per_mb_per_replica: has no effect, the batch of a replica has 308 tokens "
            "(got 308); remove it or lower it",
        ),
        (
            {"tokens_per_mb_per_replica": 14 * 6, "mesh_shape": "x:2"},
            "tokens_per_mb_per_replica: counts as 14, microbatches of 1 of the 11 sequences of a "
            "replica with 14 tokens each (got 84); set it to 14",
        ),
        (
            {"tokens_per_mb_per_replica": 13},
            "tokens_per_mb_per_replica: counts as 14, microbatches of 1 of the 22 sequences of a "
            "replica with 14 tokens each (got 13); set it to 14",
        ),
        (
            {"log_every_steps": 10**6},
            "log_every_steps: has no effect, train_steps is lower (got 1000000); remove it",
        ),
        (
            {"top_k": 105},
            "top_k: has no effect, the vocabulary has no more tokens (got 105); remove it",
        ),
        (
            {"moe_layers": [1, 1]},
            "moe_layers: names a layer more than once (got [1, 1]); name each once",
        ),
        (
            {
                "relative_position_bias": True,
                "attention_types": [[["global", "linear", "global"], 1]],
            },
            "relative_position_bias: does not reach linear layers, they have no scores (got true); "
            "set rotary_emb instead, or let global or local layers alone know positions",
        ),
        (
            {"relative_position_bias": True, "layout": "embed_sequence:x"},
            "layout: splits 'embed_sequence', which no tensor of this model has "
            '(got "embed_sequence:x"); remove it',
        ),
        (
            {"rotary_emb": True, "attention_types": [[["none"], 3]]},
            "rotary_emb: leaves the model without positions, no layer has attention (got true); "
            "remove it",
        ),
        (
            {"lr_decay_end": 9},
            "lr_decay_end: has no effect, lr_decay is null (got 9); remove it",
        ),
        (
            {"anneal_steps": 6, "end_lr": 1e-4, "lr": 1e-4},
            "anneal_steps: has no effect, end_lr is lr (got 6); remove it",
        ),
        (
            {"opt_name": "adafactor", "adam_bias_correction": True},
            "adam_bias_correction: has no effect, opt_name is not adam (got true); remove it",
        ),
        (
            {"adam_bias_correction": True, "beta1": 0.0, "beta2": 0.0},
            "adam_bias_correction: has no effect, moments without decay have no bias (got true); "
            "remove it",
        ),
        (
            {"decay_final_norm": False},
            "decay_final_norm: has no effect, weight_decay is 0 (got false); remove it",
        ),
        (
            {"datasets": [[DATASET, 4, None, None]]},
            "datasets[0]: stitch has no effect, records are chunks (got 4); set it to null",
        ),
        (
            {"datasets": [[DATASET, None, "documents_random", None]]},
            "datasets[0]: mode has no effect with input_fn sequential_input, which reads chunks "
            '(got "documents_random"); set "input_fn": "generic_text" if the records are '
            "documents, or the mode to null",
        ),
        (
            {"datasets": [[DATASET, None, None, 2.0]]},
            "datasets[0]: weight has no effect, there is one dataset (got 2.0); set it to null",
        ),
        (
            {"layout": "experts:x"},
            "layout: splits 'experts', which no tensor of this model has (got \"experts:x\"); "
            "remove it",
        ),
        (
            {"mesh_shape": "x:1,y:2"},
            "mesh_shape: has an axis 'y' that layout never uses, so 2 processors repeat the same "
            "work (got \"x:1,y:2\"); give a dimension to 'y' in layout or remove the axis",
        ),
        (
            {"datasets": [DATASET | {"padding_id": 105}]},
            "padding_id: has no row in the embedding of 105 tokens, it is never embedded "
            "(got 105); set it to an id below 105 if the data hold padding",
        ),
        (
            {"mesh_shape": "x:2", "predict_steps": 1},
            "predict_batch_size: is no multiple of 2, the size of mesh axis 'x', so prediction "
            "does not use this mesh as it is (got 1); set it to 2 to use the whole mesh",
        ),
    ],
)
def test_warnings(changes, expected):
    assert warnings(**changes) == [expected]


def test_microbatches_that_are_what_they_say_are_not_talked_about():
    assert warnings(tokens_per_mb_per_replica=14 * 11) == []


SHARDS = {"train_batch_size": 6, "mesh_shape": "x:2,y:3", "optimizer_shard_axis": "x"}


@pytest.mark.parametrize(
    ("changes", "effective"),
    [
        ({"layout": "batch:x"}, True),
        ({"layout": "batch:x,embd:y"}, True),
        ({"layout": "batch:x,embd:y", "n_embd": 25, "mesh_shape": "x:2,y:5"}, True),
        ({"layout": "batch:x", "mesh_shape": "x:1,y:3"}, False),
        ({"layout": "batch:x", "mesh_shape": "x:7", "train_batch_size": 7}, True),  # n_vocab
        ({"layout": "", "mesh_shape": "x:11"}, False),
        ({"layout": "embd:x", "mesh_shape": "x:2"}, False),
        ({"layout": "heads:x,vocab:x,intermediate_expanded:x", "mesh_shape": "x:5"}, False),
    ],
    ids=str,
)
def test_optimizer_shards_that_split_nothing_are_told(changes, effective):
    found = [line for line in warnings(**SHARDS | changes) if line.startswith("optimizer_shard")]
    expected = (
        "optimizer_shard_axis: has no effect, layout and the size of the mesh axis leave no "
        'variable to split (got "x"); remove it'
    )
    assert found == ([] if effective else [expected])


def test_annealing_that_would_begin_when_the_run_is_over():
    keys = {"anneal_steps": 6, "end_lr": 1e-5, "train_steps": 13}
    reason = "has no effect, the warm-up lasts to the last of train_steps"
    assert warnings(**keys, warmup_steps=12) == [
        f"anneal_steps: {reason} (got 6); remove it",
        f"end_lr: {reason} (got 1e-05); remove it",
    ]
    assert warnings(**keys, warmup_steps=11) == []
