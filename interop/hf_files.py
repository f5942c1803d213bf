"""The weights of a Hugging Face model: safetensors or pytorch_model.bin, whole or in shards."""

from __future__ import annotations

import json
import logging
import os
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on, which safetensors asks for
import numpy as np
from safetensors import SafetensorError, safe_open

from interop.tensors import DTYPES, MOST_NAMES, OTHER_DTYPE, Source, TensorSpec, first_of
from utils.errors import reason

LOGGER = logging.getLogger(__name__)
SAFETENSORS, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
_TORCH, _TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
WEIGHT_FILES = (SAFETENSORS, SAFETENSORS_INDEX, _TORCH, _TORCH_INDEX)
# How PyTorch says that a file would call something.
_CODE = ("unsupported GLOBAL", "Unsupported global", "unrecognized function", "Unsupported class")
_SAFETENSORS_DTYPES = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}


def read_json_object(path: str) -> dict[str, Any]:
    """The JSON object in a file of a Hugging Face folder.

    Raises:
        ValueError: it cannot be read or is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} must be readable JSON; got: {reason(error)}. Restore it from where the model "
            "came from."
        ) from error
    if not isinstance(values, dict):
        raise ValueError(
            f"{path} must hold a JSON object; got {type(values).__name__}. Restore it."
        )
    return values


def weight_files(folder: str) -> list[str]:
    """Names of the files that hold the weights; safetensors if there are both kinds.

    Raises:
        ValueError: there are none, or a shard is missing.
    """
    for single, index in ((SAFETENSORS, SAFETENSORS_INDEX), (_TORCH, _TORCH_INDEX)):
        if os.path.isfile(os.path.join(folder, index)):
            return _shards(folder, index)
        if os.path.isfile(os.path.join(folder, single)):
            return [single]
    raise ValueError(
        f"a Hugging Face folder must hold weights, {SAFETENSORS} or {_TORCH}, whole or in shards; "
        f"got none in {folder}. Download them, or name another folder."
    )


def _shards(folder: str, index: str) -> list[str]:
    path = os.path.join(folder, index)
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{path} must have a weight_map; got none. Restore it.")
    names = sorted({str(name) for name in weight_map.values()})
    missing = [name for name in names if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise ValueError(
            f"every shard that {path} names must be there; got {len(missing)} of {len(names)} "
            f"missing: {first_of(missing, MOST_NAMES)}. Download them."
        )
    return names


def hf_source(folder: str) -> Source:
    """The tensors of a Hugging Face folder.

    Raises:
        ValueError: a file is missing, cut short, or of a number format that is no weight's.
    """
    paths = [os.path.join(folder, name) for name in weight_files(folder)]
    is_torch = not paths[0].endswith(".safetensors")
    source = TorchFiles(paths) if is_torch else SafetensorsFiles(paths)
    index = os.path.join(folder, _TORCH_INDEX if is_torch else SAFETENSORS_INDEX)
    if os.path.isfile(index):
        lost = sorted(read_json_object(index)["weight_map"].keys() - source.specs.keys())
        if lost:
            raise ValueError(
                f"shards must hold the tensors that {index} names; got {len(lost)} in none of "
                f"them: {first_of(lost, MOST_NAMES)}. Download the shards again."
            )
    return source


class SafetensorsFiles:
    """Tensors of safetensors files.

    A file is opened anew for each tensor: mapped pages of what was read count as memory of the
    process as long as the file stays mapped.

    Args:
        paths: of the files.

    Raises:
        ValueError: a file is cut short or damaged, or has a tensor of another number format.
    """

    def __init__(self, paths: list[str]):
        self._paths: dict[str, str] = {}
        self.specs: dict[str, TensorSpec] = {}
        for path in paths:
            try:
                self._look(path)
            except (SafetensorError, OSError) as error:
                raise _unreadable(path, error) from error

    def _look(self, path: str) -> None:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118  # no dict
                piece = file.get_slice(name)
                dtype = _SAFETENSORS_DTYPES.get(piece.get_dtype())
                number_format = DTYPES[dtype] if dtype else OTHER_DTYPE
                self.specs[name] = TensorSpec(tuple(piece.get_shape()), number_format)
                self._paths[name] = path

    def read(self, name: str) -> np.ndarray:
        """Reads one tensor."""
        try:
            with safe_open(self._paths[name], framework="numpy") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise _unreadable(self._paths[name], error) from error


class TorchFiles:
    """Tensors of pytorch_model.bin files; they are mapped, and read when asked for.

    Args:
        paths: of the files.

    Raises:
        ValueError: PyTorch is not installed, or a file is cut short or damaged.
    """

    def __init__(self, paths: list[str]):
        self._paths: dict[str, str] = {}
        self.specs: dict[str, TensorSpec] = {}
        for path in paths:
            for name, tensor in self._open(path).items():
                dtype = str(tensor.dtype).removeprefix("torch.")
                known = {str(value): value for value in DTYPES.values()}
                spec = TensorSpec(tuple(tensor.shape), known.get(dtype, OTHER_DTYPE))
                self.specs[name] = spec
                self._paths[name] = path

    def _open(self, path: str) -> Mapping[str, Any]:
        if zipfile.is_zipfile(path):
            return _load_torch(path, mapped=True)
        return _whole_torch_file(path)

    def read(self, name: str) -> np.ndarray:
        """Reads one tensor."""
        import torch

        tensor = self._open(self._paths[name])[name]
        if tensor.dtype == torch.bfloat16:
            return tensor.contiguous().view(torch.uint16).numpy().view(DTYPES["bf16"]).copy()
        return tensor.contiguous().numpy().copy()


@lru_cache(maxsize=1)
def _whole_torch_file(path: str) -> Mapping[str, Any]:
    """A file of PyTorch before 1.6, which cannot be mapped."""
    tensors = _load_torch(path, mapped=False)
    LOGGER.warning("%s is of the format before PyTorch 1.6 and was read whole into memory", path)
    return tensors


def _load_torch(path: str, mapped: bool) -> Mapping[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"PyTorch must be installed to read {path}; got no module torch. Install it with: "
            "pip install torch==2.13.0"
        ) from error
    try:
        values = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    # What the reader raises depends on where the file ends: pickle's, zip's and its own errors.
    except Exception as error:
        if any(words in str(error) for words in _CODE):
            raise ValueError(
                f"{path} must hold tensors alone; got a file with code, which is not run. Take "
                "model.safetensors, or the file that save_pretrained writes."
            ) from error
        raise ValueError(
            f"{path} must be a whole file of PyTorch; got {os.path.getsize(path):,} bytes that "
            "PyTorch cannot read. Download it again."
        ) from error
    if not isinstance(values, dict) or not all(hasattr(item, "dtype") for item in values.values()):
        raise ValueError(
            f"{path} must hold tensors by name; got {type(values).__name__}. Take the file that "
            "save_pretrained writes."
        )
    return values


def _unreadable(path: str, error: Exception) -> ValueError:
    return ValueError(
        f"{path} must be whole and readable; got: {reason(error)[:200]}. Download it again."
    )
