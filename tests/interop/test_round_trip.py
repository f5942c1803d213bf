"""Weights come back bit for bit, in both directions and in every number format."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from transformers import AutoConfig

from configs.load import load_config
from tests.interop.support import (
    FIXTURES,
    assert_same,
    convert,
    copy_model,
    error_of,
    save_weights,
    weights,
)
from tests.support import read_checkpoint, write_checkpoint


@pytest.mark.parametrize("model_type", FIXTURES)
def test_there_and_back(model_type, fixtures_dir, tmp_path):
    source = fixtures_dir / FIXTURES[model_type]
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back")
    assert_same(weights(tmp_path / "back"), weights(source))
    before = json.loads((source / "config.json").read_text())
    after = json.loads((tmp_path / "back" / "config.json").read_text())
    decisive = {key for key in after if key not in ("torch_dtype", "pad_token_id")}
    assert {key: after[key] for key in decisive} == {key: before[key] for key in decisive}
    convert(tmp_path / "back", tmp_path / "again")
    assert_same(
        read_checkpoint(str(tmp_path / "again" / "model.ckpt-0")),
        read_checkpoint(str(tmp_path / "ours" / "model.ckpt-0")),
    )
    first, second = (
        load_config(str(tmp_path / name / "config.json")) for name in ("ours", "again")
    )
    changed = first.model_dump(exclude={"model_path"}), second.model_dump(exclude={"model_path"})
    assert changed[0] == changed[1]


@pytest.mark.parametrize(("step", "words"), [(12, ()), (0, ("--step", "0"))])
def test_a_run_there_and_back(step, words, fixtures_dir, tmp_path):
    """Of GPT-Neo's own code: the optimizer's slots stay behind."""
    source = fixtures_dir / "A1_local_global"
    convert(source, tmp_path / "theirs", *words)
    convert(tmp_path / "theirs", tmp_path / "back")
    expected = {
        name: value
        for name, value in read_checkpoint(str(source / f"model.ckpt-{step}")).items()
        if not name.endswith(("adam_m", "adam_v"))
    }
    expected["global_step"] = np.int64(0)  # it starts anew
    assert_same(read_checkpoint(str(tmp_path / "back" / "model.ckpt-0")), expected)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", ml_dtypes.bfloat16), ("fp16", np.float16)])
def test_half_precision(name, dtype, fixtures_dir, tmp_path):
    source = fixtures_dir / FIXTURES["gpt2"]
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "half", "--dtype", name)
    rounded = {key: value.astype(dtype) for key, value in weights(source).items()}
    assert_same(weights(tmp_path / "half"), rounded)
    # And they are read: to float32, in which nothing is lost.
    convert(tmp_path / "half", tmp_path / "from_half")
    convert(tmp_path / "from_half", tmp_path / "whole")
    exact = {key: value.astype(np.float32) for key, value in rounded.items()}
    assert_same(weights(tmp_path / "whole"), exact)


def test_numbers_that_a_format_has_not_are_refused(fixtures_dir, tmp_path, capsys):
    folder = copy_model(fixtures_dir, "gpt_neo", tmp_path / "model")
    tensors = weights(folder)
    tensors["transformer.h.1.ln_2.bias"][5] = 7e4
    save_weights(folder, tensors)
    convert(folder, tmp_path / "ours")
    words = (tmp_path / "ours", tmp_path / "half", "--dtype", "fp16")
    capsys.readouterr()
    line = error_of(capsys, *words)
    assert (
        "got a number in gpt2/h1/norm_2/b that float16 has not. Use --dtype bf16 or fp32." in line
    )
    assert not (tmp_path / "half").exists()
    convert(*words[:2], "--dtype", "bf16")


def test_numbers_that_are_none_are_named(fixtures_dir, tmp_path, caplog):
    folder = copy_model(fixtures_dir, "gpt_neo", tmp_path / "model")
    tensors = weights(folder)
    for layer in range(4):
        tensors[f"transformer.h.{layer}.ln_2.bias"][5] = (np.nan, np.inf, -np.inf, 0)[layer]
    tensors["transformer.ln_f.weight"][:] = 3e38  # the sum is beyond float32, the numbers are not
    save_weights(folder, tensors)
    convert(folder, tmp_path / "ours")
    names = ", ".join(f"gpt2/h{layer}/norm_2/b" for layer in range(3))
    assert f"3 of the tensors of {tmp_path / 'ours'} hold NaN or infinity: {names}\n" in caplog.text


def test_a_model_without_an_end_of_documents(fixtures_dir, tmp_path, caplog):
    """Its weights go there and back; transformers must not take GPT-2's id for it."""
    ids = {"eos_token_id": 5000, "pad_token_id": 7000}
    folder = copy_model(fixtures_dir, "gpt2", tmp_path / "model", **ids)
    convert(folder, tmp_path / "ours")
    assert "is 5000, no id of the 97 tokens: the converted config leaves eos_id out" in caplog.text
    assert "eos_id" not in json.loads((tmp_path / "ours" / "config.json").read_text())
    convert(tmp_path / "ours", tmp_path / "back")
    assert "no eos_id is known among the 97 tokens: config.json of" in caplog.text
    values = AutoConfig.from_pretrained(tmp_path / "back")
    assert (values.bos_token_id, values.eos_token_id) == (None, None)
    convert(tmp_path / "back", tmp_path / "again")
    assert_same(
        read_checkpoint(str(tmp_path / "again" / "model.ckpt-0")),
        read_checkpoint(str(tmp_path / "ours" / "model.ckpt-0")),
    )


def test_a_config_names_a_folder_elsewhere_by_its_whole_path(fixtures_dir, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    source = fixtures_dir / FIXTURES["gpt2"]
    for given, written in (("below/ours", "below/ours"), ("../ours", str(tmp_path / "ours"))):
        convert(source, given)
        with open(f"{given}/config.json") as file:
            assert json.load(file)["model_path"] == written


@pytest.mark.parametrize("size", ["20KB", "1"])
def test_shards(size, fixtures_dir, tmp_path):
    """Of tensors that fit, and of one tensor each where none fits; they are read as one model."""
    source = fixtures_dir / FIXTURES["gptj"]
    convert(source, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", "--max_shard_size", size)
    shards = sorted((tmp_path / "theirs").glob("model-*.safetensors"))
    index = json.loads((tmp_path / "theirs" / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == [shard.name for shard in shards]
    tensors = weights(source)
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in tensors.values())
    assert len(shards) == len(tensors) if size == "1" else 5 < len(shards) < len(tensors)
    assert_same(weights(tmp_path / "theirs"), tensors)
    convert(tmp_path / "theirs", tmp_path / "back")
    assert_same(
        read_checkpoint(str(tmp_path / "back" / "model.ckpt-0")),
        read_checkpoint(str(tmp_path / "ours" / "model.ckpt-0")),
    )


def test_names_of_older_models(fixtures_dir, tmp_path):
    """Without the prefix, with masks, and with the embedding once more as the head."""
    folder = copy_model(fixtures_dir, "gpt2", tmp_path / "model")
    tensors = {name.removeprefix("transformer."): x for name, x in weights(folder).items()}
    tensors["h.0.attn.bias"] = np.tril(np.ones((1, 1, 32, 32), np.uint8))
    tensors["h.1.attn.masked_bias"] = np.array(-1e4, np.float32)
    tensors["lm_head.weight"] = tensors["wte.weight"].copy()
    save_weights(folder, tensors)
    convert(folder, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back")
    assert_same(weights(tmp_path / "back"), weights(fixtures_dir / FIXTURES["gpt2"]))


def test_a_tied_head_that_is_another_matrix_is_refused(fixtures_dir, tmp_path, capsys):
    folder = copy_model(fixtures_dir, "gpt2", tmp_path / "model")
    tensors = weights(folder)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + np.float32(1)
    save_weights(folder, tensors)
    line = error_of(capsys, folder, tmp_path / "ours")
    assert "lm_head.weight must be transformer.wte.weight where tie_word_embeddings is true" in line


def test_a_head_of_its_own(fixtures_dir, tmp_path, capsys):
    """Ours has a bias, GPT-2's has none: it starts at zero, and only zero can go back."""
    folder = copy_model(fixtures_dir, "gpt2", tmp_path / "model", tie_word_embeddings=False)
    tensors = weights(folder)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + np.float32(1)
    save_weights(folder, tensors)
    convert(folder, tmp_path / "ours")
    config = load_config(str(tmp_path / "ours" / "config.json"))
    assert config.no_weight_tie
    assert config.has_final_norm
    convert(tmp_path / "ours", tmp_path / "back")
    assert_same(weights(tmp_path / "back"), tensors)
    variables = read_checkpoint(str(tmp_path / "ours" / "model.ckpt-0"))
    bias = "gpt2/wte_final_linear/conv1d_main/linear_out/bias"
    variables[bias] = variables[bias] + np.float32(0.5)
    del variables["global_step"]
    trained = tmp_path / "trained"
    trained.mkdir()
    write_checkpoint(trained, variables, step=3)
    shutil.copy(tmp_path / "ours" / "config.json", trained)
    assert f"{bias} must be all zeros to be exported" in error_of(capsys, trained, tmp_path / "no")


def test_rows_without_a_token(fixtures_dir, tmp_path):
    """They are kept; what no token has is kept in config.json, and never drawn there."""
    folder = copy_model(fixtures_dir, "gptj", tmp_path / "model", vocab_padding=7)
    convert(folder, tmp_path / "ours")
    config = load_config(str(tmp_path / "ours" / "config.json"))
    assert (config.n_vocab, config.vocab_padding) == (101, 7)
    convert(tmp_path / "ours", tmp_path / "back")
    generation = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert generation["suppress_tokens"] == list(range(94, 101))
    assert_same(weights(tmp_path / "back"), weights(folder))
    convert(tmp_path / "back", tmp_path / "again")
    assert load_config(str(tmp_path / "again" / "config.json")).vocab_padding == 7
