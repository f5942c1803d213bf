"""GPT-2, GPT-Neo and GPT-J of Hugging Face as configs of this model: logits and greedy ids.

Names are mapped here, so that what is tested is the network alone.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

from model_fns import Placement
from serving.engine import Engine, Sampling
from tests.support import Forward, make_config, mesh_layout, write_checkpoint

Keys = dict[str, Any]
Names = dict[str, tuple[str, bool]]
"""Our name -> theirs, and whether the matrix is theirs transposed."""


def _norm(ours: str, theirs: str) -> Names:
    return {f"{ours}/g": (f"{theirs}.weight", False), f"{ours}/b": (f"{theirs}.bias", False)}


def _dense(ours: str, theirs: str, turned: bool) -> Names:
    return {
        f"{ours}/kernel": (f"{theirs}.weight", turned),
        f"{ours}/bias": (f"{theirs}.bias", False),
    }


def _gpt2(layer: int) -> Names:
    ours, theirs = f"h{layer}", f"transformer.h.{layer}"
    names = _norm(f"{ours}/norm_1", f"{theirs}.ln_1") | _norm(f"{ours}/norm_2", f"{theirs}.ln_2")
    for part in "qkv":
        names[f"{ours}/attn/{part}"] = (f"{theirs}.attn.c_{part}.weight", False)
        name = f"{ours}/attn/compute_{part}_bias/{part}_b"
        names[name] = (f"{theirs}.attn.c_{part}.bias", False)
    names[f"{ours}/attn/o"] = (f"{theirs}.attn.c_proj.weight", False)
    names[f"{ours}/attn/compute_output_bias/o_b"] = (f"{theirs}.attn.c_proj.bias", False)
    names |= _dense(f"{ours}/mlp/conv1d_main/c_fc", f"{theirs}.mlp.c_fc", False)
    return names | _dense(f"{ours}/mlp/conv1d_main/c_proj", f"{theirs}.mlp.c_proj", False)


def _gpt_neo(layer: int) -> Names:
    ours, theirs = f"h{layer}", f"transformer.h.{layer}"
    attention = f"{theirs}.attn.attention"
    names = _norm(f"{ours}/norm_1", f"{theirs}.ln_1") | _norm(f"{ours}/norm_2", f"{theirs}.ln_2")
    for part, name in zip("qkvo", ("q_proj", "k_proj", "v_proj", "out_proj")):
        names[f"{ours}/attn/{part}"] = (f"{attention}.{name}.weight", True)
    names[f"{ours}/attn/compute_output_bias/o_b"] = (f"{attention}.out_proj.bias", False)
    names |= _dense(f"{ours}/mlp/conv1d_main/c_fc", f"{theirs}.mlp.c_fc", True)
    return names | _dense(f"{ours}/mlp/conv1d_main/c_proj", f"{theirs}.mlp.c_proj", True)


def _gptj(layer: int) -> Names:
    ours, theirs = f"h{layer}", f"transformer.h.{layer}"
    names = _norm(f"{ours}/norm_1", f"{theirs}.ln_1")
    for part, name in zip("qkvo", ("q_proj", "k_proj", "v_proj", "out_proj")):
        names[f"{ours}/attn/{part}"] = (f"{theirs}.attn.{name}.weight", True)
    names |= _dense(f"{ours}/mlp/conv1d_main/c_fc", f"{theirs}.mlp.fc_in", True)
    return names | _dense(f"{ours}/mlp/conv1d_main/c_proj", f"{theirs}.mlp.fc_out", True)


GPT2_KEYS: Keys = {"attention_types": None, "attention_bias": "all", "scaled_attention": True}
GPTJ_KEYS: Keys = {
    "attention_types": None,
    "attention_bias": "none",
    "scaled_attention": True,
    "parallel_residual": True,
    "rotary_emb": True,
    "rotary_interleaved": True,
    "no_weight_tie": True,
    "final_norm": True,
}
HEAD = "wte_final_linear/conv1d_main/linear_out"
EMBEDDINGS: Names = {"wte": ("transformer.wte.weight", False)}
POSITIONS: Names = {"wpe": ("transformer.wpe.weight", False)}


def _split(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """GPT-2's joined queries, keys and values as three tensors each."""
    for name in [name for name in tensors if "attn.c_attn" in name]:
        for part, values in zip("qkv", np.split(tensors.pop(name), 3, axis=-1)):
            tensors[name.replace("c_attn", f"c_{part}")] = values
    return tensors


class Published(NamedTuple):
    """A model of Hugging Face as one of ours."""

    keys: Keys
    variables: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]


def published(folder: Path) -> Published:
    theirs = json.loads((folder / "config.json").read_text())
    kind = theirs["model_type"]
    heads = theirs.get("n_head", theirs.get("num_heads"))
    keys = {
        "n_layer": theirs.get("n_layer", theirs.get("num_layers")),
        "n_head": heads,
        "n_embd": theirs.get("n_embd", theirs.get("hidden_size")),
        "n_ctx": theirs.get("n_positions", theirs.get("max_position_embeddings")),
        "n_vocab": theirs["vocab_size"],
        "eval_batch_size": 2,
        "train_batch_size": 2,
    }
    blocks = {"gpt2": _gpt2, "gpt_neo": _gpt_neo, "gptj": _gptj}[kind]
    names = EMBEDDINGS | _norm("ln_f", "transformer.ln_f")
    if kind == "gptj":
        keys |= GPTJ_KEYS | {"rotary_dim": theirs["rotary_dim"]}
        names |= _dense(HEAD, "lm_head", True)
    else:
        names |= POSITIONS
    if kind == "gpt2":
        keys |= GPT2_KEYS
    if kind == "gpt_neo":
        keys |= {
            "attention_types": theirs["attention_types"],
            "local_attention_radius": theirs["window_size"],
        }
    for layer in range(keys["n_layer"]):
        names |= blocks(layer)
    tensors = _split(load_file(folder / "model.safetensors"))
    variables = {}
    for ours, (name, turned) in names.items():
        value = tensors.pop(name)
        variables[f"gpt2/{ours}"] = value.T if turned else value
    left = [name for name in tensors if not name.endswith(("attn.bias", "masked_bias"))]
    assert left == []
    return Published(keys, variables, dict(np.load(folder / "expected.npz")))


def window(tokens: np.ndarray, length: int) -> np.ndarray:
    """Rows of ids, filled up behind."""
    return np.pad(tokens, [(0, 0), (0, length - tokens.shape[1])]).astype(np.int32)


def check_logits(config, checkpoint: str, expected: dict[str, np.ndarray], tolerance: float):
    tokens = expected["input_ids"]
    logits = Forward(config, checkpoint)(window(tokens, config.n_ctx))["logits"]
    got = logits[:, : tokens.shape[1], : expected["logits"].shape[2]]
    np.testing.assert_allclose(got, expected["logits"], rtol=0, atol=tolerance)


def greedy_ids(config, checkpoint: str, expected: dict[str, np.ndarray]) -> list[list[int]]:
    engine = Engine(config, Placement(mesh_layout("x:1", ""), ("",)), 2)
    engine.load(checkpoint)
    sampling = replace(Sampling.from_config(config, temperature=0.0), stop_id=None)
    rows = engine.generate(expected["prompt_ids"].tolist(), replace(sampling, max_new_tokens=10))
    engine.close()
    return [row[0].prompt + row[0].continuation for row in rows]


@pytest.mark.parametrize("name", ["B1_hf_gpt2", "B2_hf_gpt_neo", "B3_hf_gptj"])
def test_logits_and_greedy_ids(name, fixtures_dir, tmp_path):
    model = published(fixtures_dir / name)
    config = make_config(**model.keys)
    checkpoint = write_checkpoint(tmp_path, model.variables)
    check_logits(config, checkpoint, model.expected, 1e-4)
    assert greedy_ids(config, checkpoint, model.expected) == model.expected["greedy_ids"].tolist()


PADDING = 7


@pytest.fixture(scope="module")
def gptj(fixtures_dir):
    return published(fixtures_dir / "B3_hf_gptj")


@pytest.fixture(scope="module")
def padded_gptj(gptj, tmp_path_factory):
    """GPT-J with rows behind its vocabulary that would win every draw; its keys and checkpoint."""
    keys = gptj.keys | {"n_vocab": gptj.keys["n_vocab"] + PADDING, "vocab_padding": PADDING}
    variables = dict(gptj.variables)
    for name, axis in (("wte", 0), (f"{HEAD}/kernel", 1), (f"{HEAD}/bias", 0)):
        value = variables[f"gpt2/{name}"]
        widths = [(0, PADDING if number == axis else 0) for number in range(value.ndim)]
        variables[f"gpt2/{name}"] = np.pad(value, widths, constant_values=50.0)
    return keys, write_checkpoint(tmp_path_factory.mktemp("padded"), variables)


def test_rows_that_no_token_has_are_neither_drawn_nor_counted(gptj, padded_gptj):
    keys, checkpoint = padded_gptj
    config, expected = make_config(**keys), gptj.expected
    assert greedy_ids(config, checkpoint, expected) == expected["greedy_ids"].tolist()
    tokens = expected["input_ids"]
    got = Forward(config, checkpoint)(
        window(tokens[:, :-1], config.n_ctx), window(tokens[:, 1:], config.n_ctx)
    )
    length, count = tokens.shape[1] - 1, expected["logits"].shape[2]
    logits = got["logits"][:, :length]
    np.testing.assert_allclose(logits[..., :count], expected["logits"][:, :-1], rtol=0, atol=1e-4)
    assert (logits[..., count:] < -1e8).all()
    scores = expected["logits"][:, :-1].astype(np.float64)
    chosen = np.take_along_axis(scores, tokens[:, 1:, np.newaxis], -1)[..., 0]
    losses = np.log(np.exp(scores).sum(-1)) - chosen
    np.testing.assert_allclose(got["cross_entropy"][:, :length], losses, rtol=0, atol=1e-4)


def test_bfloat16_is_close(gptj, padded_gptj):
    keys, checkpoint = padded_gptj
    config, tokens = make_config(**keys, precision="bfloat16"), gptj.expected["input_ids"]
    logits = Forward(config, checkpoint)(window(tokens, config.n_ctx))["logits"]
    assert np.isfinite(logits).all()
    expected = gptj.expected["logits"]
    got = logits[:, : tokens.shape[1], : expected.shape[2]]
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
