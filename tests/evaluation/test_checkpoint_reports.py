"""What is done at each checkpoint of a run; tests/end_to_end looks at the whole of it."""

import pytest

from evaluation.checkpoint_reports import CheckpointReports
from tests.support import make_config


def test_missing_evaluation_data_shows_before_training(tmp_path):
    entry = [str(tmp_path / "train_*"), str(tmp_path / "eval_*"), 1, "documents_random", 1.0]
    config = make_config(model_path=str(tmp_path), datasets=[entry], eval_steps=1)
    with pytest.raises(ValueError, match="must match at least one record file; got none for"):
        CheckpointReports(config, (), "1", "prompt")


def test_a_missing_tokenizer_shows_before_training(tmp_path):
    dataset = {
        "id": "tiny",
        "n_vocab": 22,
        "path": "train_*",
        "tokenizer_is_pretrained": False,
        "tokenizer_path": str(tmp_path / "gone.json"),
        "eos_id": 1,
        "padding_id": 0,
    }
    entry = [dataset, None, None, None]
    config = make_config(model_path=str(tmp_path), datasets=[entry], predict_steps=1)
    with pytest.raises(ValueError, match="tokenizer file must exist; got"):
        CheckpointReports(config, (), "1", "prompt")
