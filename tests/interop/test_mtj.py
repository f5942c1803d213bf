"""Checkpoints of Mesh Transformer JAX, in any number of shards, with and without optimizer."""

from __future__ import annotations

import json
import os

import ml_dtypes
import numpy as np
import pytest

from configs.load import load_config
from interop import own_files
from interop.bases import open_base
from tests.interop import mtj
from tests.interop.support import (
    FIXTURES,
    assert_computes,
    assert_same,
    convert,
    run,
    weights,
)
from tests.support import read_checkpoint

SPARE = 3  # rows of the vocabulary of 104, which eight shards divide
THEIR_CONFIG = {
    "layers": 3,
    "d_model": 32,
    "n_heads": 2,
    "n_vocab": 101 + SPARE,
    "norm": "layernorm",
    "pe": "rotary",
    "pe_rotary_dims": 8,
    "seq": 32,
    "cores_per_replica": 2,
    "per_replica_batch": 1,
    "gradient_accumulation_steps": 16,
    "tpu_size": 8,
    "warmup_steps": 7,
    "anneal_steps": 65,
    "total_steps": 72,
    "lr": 5e-5,
    "end_lr": 1e-5,
    "weight_decay": 0.1,
    "bucket": "a",
    "model_dir": "b",
    "val_set": {},
}


@pytest.fixture(scope="module")
def gptj(fixtures_dir, tmp_path_factory):
    """GPT-J of transformers as variables of ours and as a config, with spare rows."""
    folder = tmp_path_factory.mktemp("gptj") / "ours"
    convert(fixtures_dir / FIXTURES["gptj"], folder)
    variables = read_checkpoint(str(folder / "model.ckpt-0"))
    del variables["global_step"]
    config = json.loads((folder / "config.json").read_text())
    config |= {"n_vocab": config["n_vocab"] + SPARE, "vocab_padding": SPARE}
    config |= {"adam_bias_correction": True, "model_path": "elsewhere"}
    (folder / "gptj.json").write_text(json.dumps(config))
    return mtj.with_spare_rows(variables, SPARE), folder / "gptj.json"


def assert_close(got, expected):
    """Equal but for the order of sums."""
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("shards", [1, 2, 8])
def test_weights_and_optimizer(shards, gptj, tmp_path, capsys):
    variables, config = gptj
    moments = mtj.random_moments(variables)
    mtj.write_mtj(tmp_path / "run", variables, shards, moments=moments)
    convert(tmp_path / "run", tmp_path / "ours", "--model", config)
    got = read_checkpoint(str(tmp_path / "ours" / "model.ckpt-7"))
    assert got.pop("global_step") == 7
    assert_close({name: got.pop(name) for name in variables}, variables)
    slots = {
        f"{name}/adam_{letter}": array
        for letter, moment in zip("mv", moments)
        for name, array in moment.items()
    }
    assert_same(got, slots)
    assert "left out: moments of the embedding's bias" in capsys.readouterr().out
    stored = load_config(str(tmp_path / "ours" / "config.json"))
    assert stored.model_path == str(tmp_path / "ours")
    assert stored.adam_bias_correction


def test_it_computes_what_transformers_computes(gptj, fixtures_dir, tmp_path):
    variables, config = gptj
    step = mtj.write_mtj(tmp_path / "run", variables, 8, step=5)
    convert(step, tmp_path / "ours", "--model", config)
    expected = dict(np.load(fixtures_dir / FIXTURES["gptj"] / "expected.npz"))
    assert_computes(tmp_path / "ours", expected, step=5)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_slim_ones_in_half_precision(dtype, gptj, tmp_path):
    variables, config = gptj
    mtj.write_mtj(tmp_path / "run", variables, 1, dtype=dtype)
    convert(tmp_path / "run", tmp_path / "ours", "--model", config)
    got = read_checkpoint(str(tmp_path / "ours" / "model.ckpt-7"))
    expected = {
        name: array.astype(dtype).astype(np.float32)
        for name, array in variables.items()
        if name != "gpt2/wte"  # bias and rows are rounded before they are added
    }
    assert_same({name: got[name] for name in expected}, expected)
    np.testing.assert_allclose(got["gpt2/wte"], variables["gpt2/wte"], rtol=0, atol=0.02)


def test_to_transformers_at_once(gptj, fixtures_dir, tmp_path):
    variables, config = gptj
    mtj.write_mtj(tmp_path / "run", variables, 2, moments=mtj.random_moments(variables))
    convert(tmp_path / "run", tmp_path / "theirs", "--model", config, "--to", "hf")
    expected = weights(fixtures_dir / FIXTURES["gptj"])
    got = weights(tmp_path / "theirs")
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        rows = got[name][: len(array)] if len(array) == 101 else got[name]
        np.testing.assert_allclose(rows, array, rtol=0, atol=1e-6, err_msg=name)


def test_moments_after_fine_tuning(gptj, tmp_path, capsys):
    """The correction of Adam's bias goes on where the moments are, whatever the schedule."""
    variables, config = gptj
    moments = mtj.random_moments(variables)
    mtj.write_mtj(tmp_path / "run", variables, 2, step=11, moments=moments, counts=(90, 5))
    convert(tmp_path / "run", tmp_path / "ours", "--model", config)
    captured = capsys.readouterr()
    assert "model of" not in captured.out
    assert "step 90, float32, with the optimizer's slots" in captured.out
    assert read_checkpoint(str(tmp_path / "ours" / "model.ckpt-90"))["global_step"] == 90
    convert(tmp_path / "run", tmp_path / "slim", "--model", config, "--slim", "--dtype", "bf16")
    got = read_checkpoint(str(tmp_path / "slim" / "model.ckpt-11"))
    assert got.pop("global_step") == 11
    assert got.keys() == variables.keys()
    assert {array.dtype for array in got.values()} == {np.dtype(ml_dtypes.bfloat16)}


@pytest.mark.parametrize(("pe", "norm"), [("t5", "rmsnorm"), ("fixed", "layernorm-nobias")])
def test_other_models_of_its_config(pe, norm, gptj, tmp_path):
    """Its own config files; positions and norms that GPT-J has not; twelve layers, since 10 < 2."""
    base, _ = gptj
    random = np.random.default_rng(4)

    def like(name: str) -> np.ndarray:
        return random.normal(0, 0.3, base[name].shape).astype(np.float32)

    ours = {name: like(name) for name in base if "/h" not in name}
    for layer in range(12):
        first = [name for name in base if "/h0/" in name]
        ours |= {name.replace("/h0/", f"/h{layer}/"): like(name) for name in first}
    if pe == "t5":
        ours["gpt2/relative_positions/table"] = random.normal(0, 1, (2, 32)).astype(np.float32)
        ours = {name: array for name, array in ours.items() if not is_offset(name)}
    else:
        ours["gpt2/wpe"] = random.normal(0, 1, (32, 32)).astype(np.float32)
    mtj.write_mtj(tmp_path / "run", ours, 2, norm=norm.removesuffix("-nobias"))
    if pe == "fixed":  # the offsets are there, but not used
        ours = {name: array for name, array in ours.items() if not is_offset(name)}
    values = THEIR_CONFIG | {"layers": 12, "pe": pe, "norm": norm}
    (tmp_path / "theirs.json").write_text(json.dumps(values))
    convert(tmp_path / "run", tmp_path / "ours", "--model", tmp_path / "theirs.json")
    got = read_checkpoint(str(tmp_path / "ours" / "model.ckpt-7"))
    del got["global_step"]
    assert_close(got, ours)
    config = load_config(str(tmp_path / "ours" / "config.json"))
    assert (config.train_batch_size, config.train_steps, config.anneal_steps) == (64, 72, 65)
    assert (config.norm, config.end_lr, config.initializer) == (norm, 1e-5, "gptj")


def is_offset(name: str) -> bool:
    return name.endswith(("norm_1/b", "ln_f/b"))


def test_a_base_of_fine_tuning(gptj, tmp_path):
    """Read in place, with the config of the run that begins from it."""
    variables, path = gptj
    moments = mtj.random_moments(variables)
    run = mtj.write_mtj(tmp_path / "full", variables, 2, moments=moments, counts=(90, 5)).parent
    base = open_base(load_config(str(path), [f"init_from={run}"]))
    assert base.config.earlier_updates == 90
    assert base.source.specs.keys() == {
        f"{name}{suffix}" for name in variables for suffix in ("", "/adam_m", "/adam_v")
    }
    assert len(base.files) == 2 * mtj.PIECES
    assert all(map(os.path.isfile, base.files))
    mtj.write_mtj(tmp_path / "slim", variables, 2)
    overrides = [f"init_from={tmp_path / 'slim'}"]
    with pytest.raises(ValueError, match=r"which holds weights alone\. Add --fresh_opt"):
        open_base(load_config(str(path), overrides))
    base = open_base(load_config(str(path), [*overrides, "fresh_opt=true"]))
    assert base.source.specs.keys() == variables.keys()
    overrides = [*overrides, "fresh_opt=true", "parallel_residual=false"]
    with pytest.raises(ValueError, match="got parallel_residual false in the config"):
        open_base(load_config(str(path), overrides))


def test_an_interrupted_conversion_goes_on(gptj, tmp_path, monkeypatch, capsys):
    variables, config = gptj
    moments = mtj.random_moments(variables)
    mtj.write_mtj(tmp_path / "run", variables, 2, moments=moments)
    monkeypatch.setattr(own_files, "_GROUP_BYTES", 3000)
    words = (tmp_path / "run", tmp_path / "ours", "--model", config)
    write, parts = own_files.OwnTarget.write, []

    def dying(*arguments):
        parts.append(arguments[1].file)
        if len(parts) == 20:
            raise KeyboardInterrupt
        return write(*arguments)

    monkeypatch.setattr(own_files.OwnTarget, "write", dying)
    assert run(*words) == 130
    convert(*words)
    assert len(parts) > 60
    assert len(parts) == len(set(parts)) + 1  # the interrupted one
    got = read_checkpoint(str(tmp_path / "ours" / "model.ckpt-7"))
    assert_same({name: got[f"{name}/adam_v"] for name in variables}, moments[1])
    convert(*words)
    assert "is complete already" in capsys.readouterr().out
