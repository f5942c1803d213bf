"""A masked model with the entmax loss through the command line: trained, scored, no text."""

import json
import math

import pytest

from tests.end_to_end.test_command_line import probe

KEYS = {
    "mlm_training": True,
    "mlm_mask_id": 3,
    "mlm_cls_token_id": 4,
    "mlm_mask_ignore_ids": [5],
    "entmax_loss": True,
    "train_steps": 4,
    "warmup_steps": 0,
    "lr_decay_end": None,
    "lr_decay": None,
    "eval_steps": 2,
    "predict_max_steps": None,
}


def test_a_masked_run_trains_and_is_scored(workshop, program):
    config = workshop.config("masked", **KEYS)
    result = program("--model", config, "--steps_per_checkpoint", 4)
    assert result.code == 0, result.err
    assert workshop.checkpoints("masked") == [0, 4]
    file = workshop.run_folder("masked") / "eval_nosacred.jsonl"
    scores = [json.loads(line) for line in file.read_text().splitlines()]
    assert [score["global_step"] for score in scores] == [0, 4]
    assert "bits per byte" not in scores[0]
    assert scores[0]["tokens"] == scores[1]["tokens"] > 0
    assert scores[0]["perplexity"] == pytest.approx(math.exp(scores[0]["cross_entropy"]))
    assert scores[0]["perplexity"] == pytest.approx(60, rel=0.1)
    assert math.isfinite(scores[1]["loss"])

    result = program("--model", config, "--eval")
    assert result.code == 0, result.err
    assert json.loads(result.out) == pytest.approx(scores[1], rel=1e-6)


def test_a_masked_model_writes_no_text_and_says_so_at_once(workshop):
    config = workshop.config("masked_text", **KEYS)
    code, out, err = probe(workshop.folder, "--model", config, "--predict")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(
        "main.py: error: mlm_training must be false to generate text; got true"
    )
    code, out, err = probe(
        workshop.folder, "--model", workshop.config("masked_samples", predict_steps=1, **KEYS)
    )
    assert code == 2
    assert "predict_steps: must not be set with mlm_training" in err
