"""Hugging Face folders to convert, and the program that converts them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

import convert_checkpoint

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
