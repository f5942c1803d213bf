"""A config without a fault, and what is said about it when some keys are changed."""

import pytest

from configs.errors import ConfigError
from configs.load import parse_config

DATASET = {
    "id": "words",
    "n_vocab": 105,
    "path": "train_*",
    "eval_path": "eval_*",
    "tokenizer_is_pretrained": False,
    "tokenizer_path": "words.json",
    "eos_id": 1,
    "padding_id": 0,
}
VALID = {
    "model_path": "runs/rules",
    "n_layer": 3,
    "n_embd": 30,
    "n_head": 5,
    "n_ctx": 14,
    "n_vocab": 105,
    "train_batch_size": 22,
    "train_steps": 13,
    "datasets": [DATASET],
}
MASKED = {"mlm_training": True, "mlm_mask_id": 2}


def problems(**changes):
    with pytest.raises(ConfigError) as caught:
        parse_config(VALID | changes)
    return caught.value.problems


def warnings(**changes):
    return list(parse_config(VALID | changes).warnings)
