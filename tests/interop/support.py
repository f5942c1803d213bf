"""Hugging Face folders to convert, and the program that converts them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

import convert_checkpoint
from configs.load import load_config
from configs.schema import Config
from model_fns import Placement
from serving.engine import Engine, Sampling
from tests.support import Forward
from utils.devices import place_inference

TOLERANCE = 1e-4
FIXTURES = {"gpt2": "B1_hf_gpt2", "gpt_neo": "B2_hf_gpt_neo", "gptj": "B3_hf_gptj"}


def run(*words: Any) -> int:
    """The exit code of ``python convert_checkpoint.py`` with these words."""
    return convert_checkpoint.main([str(word) for word in words])


def convert(*words: Any) -> None:
    assert run(*words) == 0


def error_of(capsys, *words: Any) -> str:
    """The one line with which wrong input is refused."""
    capsys.readouterr()
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert "Traceback" not in captured.err
    assert lines[-1].startswith("convert_checkpoint.py: error: ")
    assert not any(line.startswith("convert_checkpoint.py:") for line in lines[:-1])
    return lines[-1]


def copy_model(fixtures_dir: Path, kind: str, folder: Path, **keys: Any) -> Path:
    """A fixture in a folder of its own; ``keys`` replace those of its config.json."""
    folder.mkdir(parents=True)
    source = fixtures_dir / FIXTURES[kind]
    shutil.copyfile(source / "model.safetensors", folder / "model.safetensors")
    values = json.loads((source / "config.json").read_text()) | keys
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Tensors of a folder of Hugging Face's, from all of its shards."""
    return {
        name: array
        for path in sorted(folder.glob("*.safetensors"))
        for name, array in load_file(path).items()
    }


def save_weights(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    """Equal names, types, shapes and bits."""
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert array.dtype == right[name].dtype, name
        assert array.shape == right[name].shape, name
        assert array.tobytes() == right[name].tobytes(), name


def config_of(folder: Path, **keys: object) -> Config:
    return load_config(
        str(folder / "config.json"), [f"{key}={value}" for key, value in keys.items()]
    )


def continuations(
    folder: Path, prompts: np.ndarray, new_tokens: int, step: int = 0
) -> list[list[int]]:
    """Prompts and their most likely continuations, through the key-value cache."""
    config = config_of(folder)
    fit = place_inference(config, (), len(prompts), "the number of prompts")
    engine = Engine(config, Placement(fit.mesh_layout, fit.devices), len(prompts))
    engine.load(str(folder / f"model.ckpt-{step}"))
    sampling = Sampling(0.0, 0, 1.0, seed=1, max_new_tokens=new_tokens, stop_id=None)
    completions = engine.generate(prompts.tolist(), sampling)
    engine.close()
    return [item.prompt + item.continuation for [item] in completions]


def assert_computes(folder: Path, expected: dict[str, np.ndarray], step: int = 0) -> None:
    """That a converted checkpoint gives the logits and the greedy texts of a fixture."""
    tokens = expected["input_ids"]
    config = config_of(folder, eval_batch_size=len(tokens))
    padded = np.zeros((len(tokens), config.n_ctx), np.int64)
    padded[:, : tokens.shape[1]] = tokens
    logits = Forward(config, str(folder / f"model.ckpt-{step}"))(padded)["logits"]
    difference = logits[:, : tokens.shape[1], : config.token_count] - expected["logits"]
    assert np.abs(difference).max() < TOLERANCE
    prompts, greedy = expected["prompt_ids"], expected["greedy_ids"]
    got = continuations(folder, prompts, greedy.shape[1] - prompts.shape[1], step)
    assert got == greedy.tolist()
