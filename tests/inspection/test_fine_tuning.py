"""The suggestion for fine-tuning: published numbers, and keys that a config takes."""

import json

import pytest

from inspection.fine_tuning import suggested_keys, suggestion_lines
from tests.support import make_config


def test_the_published_example():
    keys = suggested_keys(1147, make_config(train_batch_size=16))
    assert keys == {
        "train_steps": 72,
        "lr": 5e-5,
        "end_lr": 1e-5,
        "warmup_steps": 7,
        "anneal_steps": 65,
    }


@pytest.mark.parametrize("sequences", [1, 6, 13, 67, 10**9])
@pytest.mark.parametrize("given", [{}, {"lr_decay": "cosine", "lr_decay_end": 15}])
def test_the_line_can_be_pasted(sequences, given):
    _, line = suggestion_lines(sequences, make_config(**given))
    config = make_config(**given | json.loads(f"{{{line}}}"))
    assert config.lr_decay is None
    assert config.warmup_steps + config.anneal_steps == config.train_steps
    assert config.train_steps * 6 >= sequences
    assert config.warnings == make_config().warnings
