"""The benchmark of the input at a tiny size."""

import json

from benchmarks import input as benchmark

TINY = {
    "model_path": "unused",
    "n_layer": 1,
    "n_embd": 6,
    "n_head": 2,
    "n_ctx": 5,
    "n_vocab": 13,
    "attention_types": [[["global"], 1]],
    "train_batch_size": 4,
    "train_steps": 1,
    "lr": 0.01,
    "mesh_shape": "x:1",
    "layout": "batch:x",
    "log_every_steps": 1,
}


def test_reading_and_training_are_measured_on_the_same_records(tmp_path, capsys, monkeypatch):
    kept = {way: benchmark.WAYS[way] for way in ("chunks", "chunks, mix of two")}
    monkeypatch.setattr(benchmark, "WAYS", kept)
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    benchmark.main(["--model", str(path), "--records", "64", "--steps", "4"])
    result = json.loads(capsys.readouterr().out)
    assert (result["n_ctx"], result["train_batch_size"]) == (5, 4)
    training = result["training_records_per_second"]
    assert training > 0
    assert result["reading_records_per_second"].keys() == kept.keys()
    for way, rate in result["reading_records_per_second"].items():
        assert rate > 0
        ratio = result["reading_over_training"][way]
        assert abs(ratio - rate / training) <= 0.05 + 0.01 * ratio
