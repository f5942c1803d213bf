"""Rows that only pad the vocabulary: they have no probability, whatever their weights say."""

from __future__ import annotations

import numpy as np
import pytest

from configs.load import load_config
from model_fns import Placement
from serving.engine import Engine, Sampling
from tests.interop.support import convert
from tests.support import Forward, mesh_layout, read_checkpoint, write_checkpoint

PADDING = 7
HEAD = "gpt2/wte_final_linear/conv1d_main/linear_out"
PADDED = {"gpt2/wte": 0, f"{HEAD}/kernel": 1, f"{HEAD}/bias": 0}
"""Variables with rows of the vocabulary, and which dimension these are."""


@pytest.fixture(scope="module")
def padded(fixtures_dir, tmp_path_factory):
    """A GPT-J with rows that would win every draw: makes its config; and what is expected."""
    fixture, folder = fixtures_dir / "B3_hf_gptj", tmp_path_factory.mktemp("gptj")
    convert(fixture, folder)
    variables = read_checkpoint(str(folder / "model.ckpt-0"))
    for name, axis in PADDED.items():
        widths = [(0, PADDING if number == axis else 0) for number in range(variables[name].ndim)]
        variables[name] = np.pad(variables[name], widths, constant_values=50.0)
    padded_folder = tmp_path_factory.mktemp("padded")
    checkpoint = write_checkpoint(padded_folder, variables)
    expected = dict(np.load(fixture / "expected.npz"))
    rows = expected["logits"].shape[2] + PADDING

    def config(**keys):
        sizes = {"n_vocab": rows, "vocab_padding": PADDING, "eval_batch_size": 2}
        words = [f"{key}={value}" for key, value in (sizes | keys).items()]
        return load_config(str(folder / "config.json"), words)

    return config, checkpoint, expected


def window(tokens: np.ndarray, length: int) -> np.ndarray:
    """Rows of ids, filled up behind."""
    return np.pad(tokens, [(0, 0), (0, length - tokens.shape[1])]).astype(np.int32)


def test_they_are_not_drawn(padded):
    make_config, checkpoint, expected = padded
    prompts, greedy = expected["prompt_ids"], expected["greedy_ids"]
    engine = Engine(make_config(), Placement(mesh_layout("x:1", ""), ("",)), len(prompts))
    engine.load(checkpoint)
    new = greedy.shape[1] - prompts.shape[1]
    sampling = Sampling(0.0, 0, 1.0, seed=1, max_new_tokens=new, stop_id=None)
    got = [
        row[0].prompt + row[0].continuation for row in engine.generate(prompts.tolist(), sampling)
    ]
    engine.close()
    assert got == greedy.tolist()


def test_they_are_not_counted(padded):
    make_config, checkpoint, expected = padded
    config, tokens = make_config(), expected["input_ids"]
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


def test_bfloat16_is_close(padded):
    make_config, checkpoint, expected = padded
    config, tokens = make_config(precision="bfloat16"), expected["input_ids"]
    logits = Forward(config, checkpoint)(window(tokens, config.n_ctx))["logits"]
    assert np.isfinite(logits).all()
    logits = logits[:, : tokens.shape[1], : expected["logits"].shape[2]]
    assert np.abs(logits - expected["logits"]).max() < 0.05 * np.abs(expected["logits"]).max()
