"""Recognises what a folder holds."""

from __future__ import annotations

import os
import re

from interop.hf_files import WEIGHT_FILES, read_json_object
from interop.mtj_files import is_mtj
from utils.files import is_remote

HF, OWN, MTJ = "hf", "ours", "mtj"
FORMATS = {
    HF: "a Hugging Face model",
    OWN: "a checkpoint of this project or of GPT-Neo",
    MTJ: "a checkpoint of Mesh Transformer JAX",
}
TARGETS = (HF, OWN)
"""Formats that are written too."""

_OWN_INDEX = re.compile(r"model\.ckpt-(\d+)\.index")


def check_local(path: str, words: str) -> None:
    """Refuses URLs: parts are moved and looked at as files.

    Raises:
        ValueError: that.
    """
    if is_remote(path):
        raise ValueError(
            f"{words} must be a local folder; got {path}. Copy it with gsutil cp -r, and convert "
            "the copy."
        )


def format_of(folder: str, words: str = "the input") -> str:
    """The format of a folder.

    Args:
        folder: a local path.
        words: what errors call it.

    Raises:
        ValueError: there is no folder, or nothing that is known in it.
    """
    check_local(folder, words)
    if not os.path.isdir(folder):
        raise ValueError(f"{words} must be a folder that exists; got {folder}. Correct the path.")
    names = set(os.listdir(folder))
    config = os.path.join(folder, "config.json")
    is_own = "checkpoint" in names or any(name.endswith(".index") for name in names)
    is_hf = "config.json" in names and "model_type" in read_json_object(config)
    if is_hf and not is_own:
        return HF
    if is_own and not is_hf:
        return OWN
    if not is_own and not is_hf and is_mtj(folder):
        return MTJ
    if names & set(WEIGHT_FILES):
        raise ValueError(
            f"a Hugging Face folder must have a config.json with model_type; got {folder}, which "
            "has weights only. Download config.json as well."
        )
    got = "both" if is_own else f"{', '.join(sorted(names)[:4]) or 'nothing'}"
    raise ValueError(
        f"{words} must hold a Hugging Face model or a checkpoint of this project, GPT-Neo or Mesh "
        f"Transformer JAX; got {got} in {folder}. Name another folder."
    )


def own_steps(folder: str) -> list[int]:
    """Steps of the checkpoints of ours in a folder, in order."""
    found = map(_OWN_INDEX.fullmatch, os.listdir(folder))
    return sorted(int(match[1]) for match in found if match is not None)


def file_identity(folder: str, names: list[str]) -> list[list[object]]:
    """Names, sizes and times of files, which are equal as long as nobody changes them."""
    identity: list[list[object]] = []
    for name in sorted(names):
        status = os.stat(os.path.join(folder, name))
        identity.append([name, status.st_size, status.st_mtime_ns])
    return identity
