"""What is written about a model that is passed on."""

import json

import pytest

from configs.load import parse_config
from data.create_tfrecords import main as make_records
from data.model_card import data_lines, description, result_lines, title

KEYS = {
    "model_path": "runs/mine",
    "train_steps": 9,
    "train_batch_size": 2,
    "n_layer": 3,
    "n_embd": 14,
    "n_head": 2,
    "n_ctx": 8,
    "n_vocab": 50264,
    "vocab_padding": 7,
}


def test_the_model():
    config = parse_config(KEYS | {"scaled_attention": True, "moe_layers": [1]})
    assert title("mine", 383500) == "# mine, step 383,500"
    text = "\n".join(description(config, 1234567))
    assert "A GPT of 1,234,567 parameters that continues texts: 3 layers of width 14 with 2" in text
    assert "a vocabulary of 50264 (the last 7 rows have no token)" in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    shown = dict(row.strip("| ").replace("`", "").split(" | ") for row in rows)
    assert shown == {
        "n_layer": "3",
        "n_embd": "14",
        "n_head": "2",
        "n_ctx": "8",
        "n_vocab": "50264",
        "vocab_padding": "7",
        "scaled_attention": "true",
        "moe_layers": "[1]",
    }


@pytest.fixture
def config(tmp_path):
    """With records that have a manifest, and evaluation records that are elsewhere."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(3):
        (text / f"{number}.txt").write_text("the same words again and again " * 5)
    words = ["--mode", "chunks", "--chunk_size", "8", "--input_dir", str(text), "--name", "train"]
    assert make_records([*words, "--output_dir", str(tmp_path), "--use_gpt2_tokenizer"]) == 0
    dataset = {
        "id": "words",
        "n_vocab": 50257,
        "path": str(tmp_path / "train_[0-9]*.tfrecords"),
        "eval_path": str(tmp_path / "none" / "*.tfrecords"),
    }
    return parse_config(KEYS | {"datasets": [[dataset, None, None, None]]})


def test_the_data(config, tmp_path):
    counts = json.loads((tmp_path / "train.manifest.json").read_text())["counts"]
    assert counts["tokens_kept"] > 50
    assert data_lines(config)[-1] == (
        f"| words (train) | training | {counts['records']} | 3 | {counts['tokens_kept']} | gpt2, "
        "50,257 ids |"
    )
    (tmp_path / "train.manifest.json").unlink()
    assert data_lines(config) == []


def test_the_results(tmp_path):
    """The newest ones up to the step that is passed on."""
    assert result_lines(str(tmp_path), 20) == []
    scores = [{"loss": 4.0 - step / 100, "global_step": step} for step in (10, 20, 30)]
    lines = [json.dumps(entry) for entry in scores]
    (tmp_path / "eval_a.jsonl").write_text("\n".join([*lines, '{"loss": 1.0, "glo']))
    metrics = [{"step": step, "loss": 5.0, "learning_rate": 1e-4, "epoch": 1} for step in (9, 19)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)))
    assert result_lines(str(tmp_path), 25)[-3:] == [
        "| evaluation (eval_a.jsonl) | 20 | loss | 3.8 |",
        "| training | 19 | loss | 5 |",
        "| training | 19 | learning_rate | 0.0001 |",
    ]
    assert result_lines(str(tmp_path), 5) == []
