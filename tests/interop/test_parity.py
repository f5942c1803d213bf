"""Models of transformers compute the same here, and what is exported loads there."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.interop.support import (
    FIXTURES,
    TOLERANCE,
    assert_computes,
    assert_same,
    config_of,
    convert,
    weights,
)
from tests.support import Forward

LENGTH = 600


@pytest.mark.parametrize("model_type", FIXTURES)
def test_logits_and_greedy_tokens(model_type, fixtures_dir, tmp_path):
    folder = fixtures_dir / FIXTURES[model_type]
    convert(folder, tmp_path)
    assert_computes(tmp_path, dict(np.load(folder / "expected.npz")))


SIZES = {"vocab_size": 101, "eos_token_id": 3, "bos_token_id": 3}
GPT2_SIZES = {"n_positions": LENGTH, "n_embd": 30, "n_layer": 3, "n_head": 3} | SIZES
LIVE = {
    "gpt2": GPT2_SIZES | {"tie_word_embeddings": False, "scale_attn_weights": False},
    "gpt_neo": {
        "max_position_embeddings": LENGTH,
        "hidden_size": 28,
        "num_layers": 3,
        "num_heads": 2,
        "attention_types": [[["local", "global", "local"], 1]],
        "window_size": 17,
        "activation_function": "gelu",  # the exact one
    }
    | SIZES,
    "gptj": GPT2_SIZES | {"rotary_dim": 6, "activation_function": "silu"},
}


@pytest.mark.parametrize("model_type", LIVE)
def test_beside_transformers(model_type, tmp_path):
    """A new model of its own code, over a long window; then ours, loaded there."""
    torch = pytest.importorskip("torch", reason="PyTorch has no release for this Python")
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    config = AutoConfig.for_model(model_type, **LIVE[model_type])
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():  # larger than at the start of training, so that every part shows
        for weight in model.parameters():
            weight.add_(0.15 * torch.randn_like(weight))
    model.save_pretrained(tmp_path / "theirs")
    tokens = np.random.default_rng(5).integers(0, SIZES["vocab_size"], (1, LENGTH))
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens)).logits.numpy()

    convert(tmp_path / "theirs", tmp_path / "ours")
    forward = Forward(
        config_of(tmp_path / "ours", eval_batch_size=1), str(tmp_path / "ours" / "model.ckpt-0")
    )
    logits = forward(tokens)["logits"]
    assert np.abs(expected).max() > 1
    assert np.abs(logits - expected).max() < TOLERANCE

    convert(tmp_path / "ours", tmp_path / "back", "--max_shard_size", "40KB")
    assert_same(weights(tmp_path / "back"), weights(tmp_path / "theirs"))
    loaded, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert not any(report.values()), report
    with torch.no_grad():
        again = loaded.eval()(torch.from_numpy(tokens)).logits.numpy()
    assert (again == expected).all()
    values = json.loads((tmp_path / "back" / "config.json").read_text())
    reloaded = loaded.config.to_dict()
    assert {key: reloaded[key] for key in values if key != "torch_dtype"} == {
        key: value for key, value in values.items() if key != "torch_dtype"
    }
