"""A run's stored config against the one it is used with."""

import json

import pytest

from tests.support import make_config
from utils.stored_config import (
    MODEL_KEYS,
    check_resumed_config,
    check_same_model,
    read_stored_config,
)


def stored_of(**keys):
    """What a run with these keys has stored."""
    return json.loads(json.dumps(make_config(**keys).to_json_dict()))


def refusal(config, stored):
    with pytest.raises(ValueError) as caught:
        check_same_model(config, stored)
    text = str(caught.value)
    assert "\n" not in text
    head = (
        "the model must stay that of runs/test/config.json, with which the weights were trained; "
        "got "
    )
    tail = ". Set it back, or use another model_path."
    assert text.startswith(head)
    assert text.endswith(tail)
    return text[len(head) : -len(tail)]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"n_head": 7}, "n_head 7 (was 2)"),
        ({"activation_function": "relu"}, 'activation_function "relu" (was "gelu")'),
        (
            {"attention_types": [[["global"], 2]]},
            'attention_types [[["global"], 2]] (was [[["global", "local"], 1]])',
        ),
        ({"local_attention_radius": 4}, "local_attention_radius 4 (was 3)"),
        ({"n_ctx": 12}, "n_ctx 12 (was 10)"),
        (
            {"n_head": 1, "local_attention_radius": 4},
            "n_head 1 (was 2), local_attention_radius 4 (was 3)",
        ),
    ],
)
def test_another_model_is_refused(keys, named):
    assert refusal(make_config(**keys), stored_of()) == named
    with pytest.raises(ValueError, match="the model must stay"):
        check_resumed_config(make_config(**keys), stored_of())


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "GPT2"},
        {"train_batch_size": 7},
        {"mesh_shape": "x:2,y:1", "layout": "batch:x"},
        {"lr": 0.5, "train_steps": 90, "warmup_steps": 2, "weight_decay": 0.1, "beta1": 0.5},
        {"embed_dropout": 0.1, "attn_dropout": 0.1, "res_dropout": 0.1},
        {"scale_by_depth": True, "scale_by_in": True},
        {"max_to_keep": 2, "log_every_steps": 3, "temperature": 0.5, "eval_batch_size": 3},
        {"attention_types": [[["global"], 1], [["local"], 1]]},  # the same, spelled otherwise
    ],
)
def test_what_may_change(keys, caplog):
    check_resumed_config(make_config(**keys), stored_of())
    assert caplog.text == ""


def test_keys_without_effect_are_not_compared():
    stored = stored_of(attention_types=None)
    assert "local_attention_radius" in stored  # set, so it was stored
    check_same_model(make_config(attention_types=None, local_attention_radius=8), stored)


def test_older_configs_may_have_unknown_keys_and_lack_known_ones():
    stored = stored_of() | {"gone": 1}
    for key in MODEL_KEYS:
        stored.pop(key, None)
    check_resumed_config(make_config(), stored)


def test_every_model_key_is_known():
    assert {"n_layer", "n_embd", "n_head", "rotary_emb", "scalenorm"} <= set(MODEL_KEYS)
    assert not {"lr", "mesh_shape", "attn_dropout", "precision"} & set(MODEL_KEYS)


def test_configs_of_other_programs_say_nothing():
    check_resumed_config(make_config(), None)
    check_resumed_config(make_config(), {"n_head": 99, "architectures": ["GPT2LMHeadModel"]})


def test_a_stored_value_that_no_config_may_have():
    with pytest.raises(
        ValueError, match=r"^runs/test/config\.json must hold the config of the run"
    ):
        check_same_model(make_config(), stored_of() | {"n_head": "two"})


DATA = ["train_*", None, None, "documents_random", None]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"seed": 3}, "seed is not as in runs/test/config.json: from here on the run reads other"),
        ({"datasets": [DATA]}, "datasets is not as in"),
        ({"seed": 3, "datasets": [DATA]}, "seed, datasets are not as in"),
    ],
)
def test_other_data_is_warned_of(caplog, keys, message):
    check_resumed_config(make_config(**keys), stored_of())
    assert message in caplog.text


def test_equal_data_is_not_warned_of(caplog):
    keys = {"seed": 3, "datasets": [DATA]}
    check_resumed_config(make_config(**keys), stored_of(**keys))
    assert caplog.text == ""


# ---- the file ----------------------------------------------------------------------------------


def test_the_file_is_read_under_todays_names(tmp_path):
    assert read_stored_config(str(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"n_heads": 3, "lr": 1}')
    assert read_stored_config(str(tmp_path)) == {"n_head": 3, "lr": 1}


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"[1]", '"[1]"'),
        (b"null", '"null"'),
        (b"", "an empty file"),
        (b" \n", "an empty file"),
        (b'{"n_head": 2, "n_la', r'"{\"n_head\": 2, \"n_la"'),
    ],
)
def test_a_damaged_file_is_named(tmp_path, content, got):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_stored_config(str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path}/config.json must hold the config of the run as a JSON object; got {got}. "
        "Restore it from a copy, or delete it if the config of --model is the one the run was "
        "trained with."
    )


def test_endless_lists_are_one_line(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"as a JSON object; got .{,300}Restore it from a copy"):
        read_stored_config(str(tmp_path))


def test_bytes_that_are_no_text_are_one_line(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00\n\x1b[2J")
    with pytest.raises(ValueError, match="must hold the config of the run") as caught:
        read_stored_config(str(tmp_path))
    assert "\n" not in str(caught.value)
