"""What cannot be converted is named in one line, before anything is written."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.interop.support import (
    FIXTURES,
    convert,
    copy_model,
    error_of,
    run,
    save_weights,
    weights,
)
from tests.support import make_config, random_variables, write_checkpoint


@pytest.fixture
def folder(fixtures_dir, tmp_path):
    return copy_model(fixtures_dir, "gpt_neo", tmp_path / "model")


def test_every_wrong_tensor_is_named(folder, tmp_path, capsys):
    tensors = weights(folder)
    for layer in (0, 2, 3):
        del tensors[f"transformer.h.{layer}.ln_1.bias"]
    tensors["transformer.h.4.ln_1.bias"] = np.zeros(24, np.float32)
    tensors["transformer.adapter"] = np.zeros(2, np.float32)
    tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"][:-1].copy()
    tensors["transformer.ln_f.bias"] = np.zeros(24, np.int64)
    save_weights(folder, tensors)
    line = error_of(capsys, folder, tmp_path / "ours")
    assert (
        "got 3 missing: transformer.h.{0,2,3}.ln_1.bias; 2 unknown: transformer.adapter, "
        "transformer.h.4.ln_1.bias; 1 of another shape: transformer.wpe.weight [31, 24] in place "
        "of [32, 24]; 1 of another number format than fp32, bf16, fp16: transformer.ln_f.bias in "
        f"{folder}. Restore the files" in line
    )
    assert not (tmp_path / "ours").exists()


WRONG_KEYS = [
    ("gpt2", {"n_inner": 96 + 1}, "n_inner must be null or 4 times the width 24"),
    ("gpt2", {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon must be 1e-05"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "must be false"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention must be false"),
    ("gpt2", {"quantization_config": {"bits": 4}}, "quantization_config must be null"),
    ("gpt2", {"activation_function": "gelu_quick"}, "activation_function must be one of gelu_new"),
    ("gpt2", {"n_layer": None}, "n_layer must be given to be converted; got null"),
    ("gpt2", {"model_type": "gpt_2"}, "got \"gpt_2\" in "),
    ("gpt2", {"model_type": "llama"}, "must be one of gpt2, gpt_neo, gptj; got \"llama\""),
    ("gpt2", {"n_embd": "24"}, "n_embd: must be a whole number (got \"24\")"),
    ("gpt2", {"vocab_size": "97"}, "n_vocab: must be a whole number (got \"97\")"),
    ("gpt2", {"vocab_padding": "3"}, "vocab_padding: must be a whole number"),
    (
        "gpt2",
        {"n_head": None, "layer_norm_epsilon": 1e-6, "scale_attn_by_inverse_layer_idx": True},
        "n_head must be given; layer_norm_epsilon must be 1e-05; scale_attn_by_inverse_layer_idx "
        "must be false to be converted; got null, 1e-06, true in",
    ),
    ("gpt_neo", {"intermediate_size": 95}, "intermediate_size must be null or 4 times"),
    ("gpt_neo", {"num_heads": 5}, "n_embd: must be a multiple of n_head 5"),
    ("gpt_neo", {"attention_types": [[["global"], 3]]}, "attention_types: must expand to"),
    ("gptj", {"rotary_dim": None}, "rotary_dim must be given"),
    ("gptj", {"rotary_dim": 18}, "rotary_dim"),
    ("gptj", {"tie_word_embeddings": True}, "tie_word_embeddings must be false"),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "keys", "words"), WRONG_KEYS)
def test_models_that_are_not_ours(model_type, keys, words, fixtures_dir, tmp_path, capsys):
    folder = copy_model(fixtures_dir, model_type, tmp_path / "model", **keys)
    assert words in error_of(capsys, folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def shard(folder):
    """Writes the weights as two shards, and returns the path of the second."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {name: files[number % 2] for number, name in enumerate(names)}
    (folder / "model.safetensors").unlink()
    for file in files:
        part = {name: tensors[name] for name in names if weight_map[name] == file}
        save_weights(folder, part)
        (folder / "model.safetensors").rename(folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder / files[1]


def test_shards_that_are_missing_cut_or_of_another_model(folder, tmp_path, capsys):
    second = shard(folder)
    content = second.read_bytes()
    second.write_bytes(content[:-10])
    line = error_of(capsys, folder, tmp_path / "ours")
    assert f"{second} must be whole and readable" in line
    second.unlink()
    line = error_of(capsys, folder, tmp_path / "ours")
    assert f"got 1 of 2 missing: {second.name}. Download them." in line
    second.write_bytes((folder / "model-00001-of-00002.safetensors").read_bytes())
    line = error_of(capsys, folder, tmp_path / "ours")
    assert "got 28 in none of them: transformer.h.0.attn.attention.out_proj.bias, " in line
    second.write_bytes(content)
    convert(folder, tmp_path / "ours")


def test_folders_without_a_model(folder, tmp_path, capsys):
    output = tmp_path / "ours"
    (tmp_path / "empty").mkdir()
    line = error_of(capsys, tmp_path / "empty", output)
    assert "got nothing in" in line
    assert "must be a folder that exists" in error_of(capsys, tmp_path / "none", output)
    assert "the input must be a local folder" in error_of(capsys, "gs://bucket/model", output)
    assert "the output must be a local folder" in error_of(capsys, folder, "gs://bucket/model")
    (folder / "config.json").write_text("{")
    assert "config.json must be readable JSON" in error_of(capsys, folder, output)
    (folder / "config.json").unlink()
    assert "must have a config.json with model_type" in error_of(capsys, folder, output)


def test_an_output_folder_that_holds_something_else(folder, tmp_path, capsys):
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "thesis.tex").write_text("mine")
    for words in ((), ("--overwrite",)):
        line = error_of(capsys, folder, occupied, *words)
        assert "must be empty or not there yet" in line
        assert "which holds thesis.tex. Name another one." in line
    assert "it is no folder" in error_of(capsys, folder, occupied / "thesis.tex" / "deeper")
    assert "must be empty" in error_of(capsys, folder, folder)
    line = error_of(capsys, folder, tmp_path / "a%20b*[x]{y}")
    assert 'the output folder must not contain "*" "[", since TensorFlow reads' in line
    line = error_of(capsys, folder, "/proc/none")  # where no one can write
    assert "the output folder must be one that can be made and written; got /proc/none" in line
    assert (occupied / "thesis.tex").read_text() == "mine"


def test_what_is_wrong_is_said_without_tensorflow_in_a_second(folder, tmp_path, repo_root):
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    program = (
        "import sys; sys.modules['tensorflow'] = sys.modules['torch'] = None; "
        "import convert_checkpoint; sys.exit(convert_checkpoint.main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", program, str(folder), str(tmp_path / "ours")]
    began = time.monotonic()
    done = subprocess.run(words, cwd=repo_root, capture_output=True, text=True)
    assert done.returncode == 2
    assert "model.safetensors must be whole and readable" in done.stderr
    assert time.monotonic() - began < 10  # a second on an idle machine; TensorFlow alone takes 4


OTHER_MODELS = [
    ({"rotary_emb": True, "n_embd": 28}, "rotary_emb true, which the nearest of them, gpt_neo"),
    ({"scaled_attention": True}, "scaled_attention true"),
    ({"attention_bias": "none"}, "attention_bias \"none\""),
    ({"moe_layers": [1]}, "moe_layers"),
    ({"scalenorm": True}, "scalenorm true"),
    ({"norm": "rmsnorm"}, "norm \"rmsnorm\""),
    ({"mlp_glu": True, "macaron": True}, "mlp_glu true, macaron true"),
    ({"share_parameters": True}, "share_parameters true"),
    ({"num_mem_kv": 3}, "num_mem_kv 3"),
    ({"axial_pos_emb": [2, 5]}, "axial_pos_emb"),
    ({"relative_position_bias": True}, "relative_position_bias true"),
    ({"no_weight_tie": True}, "no final norm"),
    ({"attention_types": [[["linear", "global"], 1]]}, "attention_types with linear"),
    ({"activation_function": "cube"}, "activation_function \"cube\""),
    ({"attention_bias": "all"}, "attention_types with local"),
    ({"mlm_training": True, "mlm_mask_id": 3}, "mlm_training true"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "words"), OTHER_MODELS)
def test_models_that_transformers_has_not(keys, words, tmp_path, capsys):
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    config = make_config(model_path=str(run_folder), **keys)
    (run_folder / "config.json").write_text(json.dumps(config.to_json_dict()))
    (run_folder / "checkpoint").write_text("")
    line = error_of(capsys, run_folder, tmp_path / "theirs")
    assert "the model must be a GPT-2, GPT-Neo or GPT-J to be exported" in line
    assert words in line


def test_checkpoints_of_ours_that_are_not_there(tmp_path, capsys):
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    config = make_config(model_path=str(run_folder))
    variables = random_variables(config, seed=3)
    write_checkpoint(run_folder, variables, step=7)
    output = tmp_path / "theirs"
    line = error_of(capsys, run_folder, output)
    assert "got no config.json in" in line
    assert "Name it with --model." in line
    stored = tmp_path / "run.json"
    stored.write_text(json.dumps(config.to_json_dict()))
    line = error_of(capsys, run_folder, output, "--model", stored, "--step", 8)
    assert "got 8, and there is only 7. Name another one." in line
    (tmp_path / "other.json").write_text(json.dumps(config.to_json_dict() | {"n_vocab": 23}))
    line = error_of(capsys, run_folder, output, "--model", tmp_path / "other.json")
    assert "1 of another shape: gpt2/wte [22, 14] in place of [23, 14]" in line
    convert(run_folder, output, "--model", stored)
    (run_folder / "config.json").write_text(stored.read_text())
    line = error_of(capsys, run_folder, tmp_path / "again", "--model", stored)
    assert "--model must be given for folders without a config.json only" in line
    [data] = run_folder.glob("*.data-*")
    data.write_bytes(data.read_bytes()[:-100])
    assert "must be readable; got:" in error_of(capsys, run_folder, tmp_path / "again")


def test_every_problem_of_a_config_is_named(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    write_checkpoint(tmp_path / "run", random_variables(make_config(), seed=3), step=7)
    (tmp_path / "faulty.json").write_text('{"n_vocab": 0, "n_layer": 2}')
    words = (tmp_path / "run", tmp_path / "theirs", "--model")
    assert run(*words, tmp_path / "faulty.json") == 2
    error = capsys.readouterr().err
    assert "faulty.json has " in error
    assert "\n  n_vocab: must be above 0 (got 0)" in error
    assert "\n  n_head: is required" in error
    assert run(*words, "nope") == 2
    assert "\n  --model: " in capsys.readouterr().err


WRONG_FLAGS = [
    (("--to", "hf"), "--to must be another format than that of the input; got hf"),
    (("--to", "HF"), "invalid choice: 'HF'"),
    (("--dtype", "fp16"), "--dtype must come with --slim or --to hf; got a Hugging Face"),
    (
        ("--step", "3", "--max_shard_size", "1GB"),
        "--max_shard_size must come with --to hf, --step must come with another input; got",
    ),
    (("--slim", "--model", "gptj_6B"), "--model must come with another input; got"),
    (("--max_shard_size", "5 bytes"), "must be a size such as 500MB or 5GB; got '5 bytes'"),
    (("--max_shard_size", "0GB"), "must be a size such as 500MB or 5GB; got '0GB'"),
    (("--step", "-1"), "must be a whole number of at least 0; got '-1'. Change it. See "),
    (("--slimmer",), "unrecognized arguments: --slimmer"),
]


@pytest.mark.parametrize(("words", "message"), WRONG_FLAGS)
def test_flags(words, message, fixtures_dir, tmp_path, capsys):
    source = fixtures_dir / FIXTURES["gpt2"]
    assert message in error_of(capsys, source, tmp_path / "ours", *words)
