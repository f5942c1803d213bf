"""The files of a Mesh Transformer JAX checkpoint: ``step_N/shard_i/j.npz``.

Each shard is what one core held: the leaves of the state, without names, in sixteen files that
follow one another. bfloat16, which NumPy's format does not know, is stored as two raw bytes.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import numpy as np

from interop.hf_files import read_json_object
from interop.tensors import DTYPES, TensorSpec
from utils.errors import reason, there_are

PIECES = 16
"""Files of a shard."""

STEP_FOLDER = re.compile(r"step_(\d{1,18})")
_SHARD = re.compile(r"shard_(\d{1,6})")
_RAW_BFLOAT16 = np.dtype("V2")
_DAMAGES = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def is_mtj(folder: str) -> bool:
    """Whether a folder is a step, or holds some."""
    return _is_step(folder) or bool(mtj_steps(folder))


def _is_step(folder: str) -> bool:
    return any(map(_SHARD.fullmatch, os.listdir(folder)))


def mtj_steps(folder: str) -> list[int]:
    """Steps of the checkpoints in a folder, in order."""
    found = map(STEP_FOLDER.fullmatch, os.listdir(folder))
    names = {match[0]: int(match[1]) for match in found if match is not None}
    return sorted(step for name, step in names.items() if os.path.isdir(os.path.join(folder, name)))


def step_folder(folder: str, step: Optional[int]) -> str:
    """The folder of one checkpoint.

    Args:
        folder: of a run, or of a step.
        step: that is asked for; None for the newest, which ``meta.json`` names if there is one.

    Raises:
        ValueError: it is not there.
    """
    steps = mtj_steps(folder)
    if not steps:
        match = STEP_FOLDER.fullmatch(os.path.basename(os.path.abspath(folder)))
        if step is not None and (match is None or int(match[1]) != step):
            raise ValueError(
                f"--step must be left out for the folder of one step; got {step} and {folder}. "
                "Leave it out, or name the folder above."
            )
        return folder
    meta = os.path.join(folder, "meta.json")
    wanted = step
    if wanted is None:
        wanted = read_json_object(meta).get("step") if os.path.isfile(meta) else steps[-1]
    if wanted not in steps:
        subject = "--step" if step is not None else f"the step in {meta}"
        raise ValueError(
            f"{subject} must be that of a checkpoint in {folder}; got {wanted!r:.40}, and "
            f"{there_are(steps)}. Name another one with --step."
        )
    return os.path.join(folder, f"step_{wanted}")


@dataclass(frozen=True)
class _Place:
    """Where a leaf lies.

    Attributes:
        path: of the file.
        member: its name therein.
        spec: shape and number format.
    """

    path: str
    member: str
    spec: TensorSpec


class MtjFiles:
    """The leaves of a step, by shard and position.

    The files of a shard are opened when it is asked for: what is wrong with the number of shards
    is seen before there are hundreds of headers to read.

    Attributes:
        folder: of the step.
        names: of all files, relative to it.
        shards: their number.

    Args:
        folder: of the step.

    Raises:
        ValueError: a file is missing.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.names: list[str] = []
        shards = _shard_names(folder)
        self.shards = len(shards)
        self._places: list[Optional[list[_Place]]] = [None] * len(shards)
        for shard in shards:
            names = [os.path.join(shard, f"{number}.npz") for number in range(PIECES)]
            missing = [name for name in names if not os.path.isfile(os.path.join(folder, name))]
            if missing:
                raise ValueError(
                    f"a shard must have the files 0.npz to {PIECES - 1}.npz; got no "
                    f"{', '.join(missing)} in {folder}. Copy them again."
                )
            self.names += names

    def _leaves(self, shard: int) -> list[_Place]:
        places = self._places[shard]
        if places is None:
            names = self.names[shard * PIECES : (shard + 1) * PIECES]
            paths = [os.path.join(self.folder, name) for name in names]
            places = self._places[shard] = [place for path in paths for place in _leaves(path)]
        return places

    def specs(self, shard: int) -> list[TensorSpec]:
        """Shape and number format of the leaves of a shard, in their order.

        Raises:
            ValueError: a file is no npz file, or is cut short.
        """
        return [place.spec for place in self._leaves(shard)]

    def read(self, shard: int, position: int) -> np.ndarray:
        """Reads one leaf; the file's checksum of it is compared.

        Raises:
            ValueError: it is damaged.
        """
        place = self._leaves(shard)[position]
        try:
            with zipfile.ZipFile(place.path) as archive, archive.open(place.member) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
                file.read()  # to the end, where the checksum is compared
        except _DAMAGES as error:
            raise _damaged(place.path, error) from error
        return array.view(place.spec.dtype)


def _shard_names(folder: str) -> list[str]:
    names = [name for name in os.listdir(folder) if _SHARD.fullmatch(name)]
    expected = [f"shard_{number}" for number in range(max(map(_number, names)) + 1)]
    missing = [name for name in expected if name not in names]
    if missing:
        raise ValueError(
            f"a checkpoint must have all of its shards; got no {', '.join(missing)} beside "
            f"{expected[-1]} in {folder}. Copy them again."
        )
    return expected


def _number(name: str) -> int:
    return int(name.partition("_")[2])


def _leaves(path: str) -> Iterator[_Place]:
    """The leaves of a file: arr_0.npy, arr_1.npy and so on; only their headers are read."""
    try:
        with zipfile.ZipFile(path) as archive:
            for number in range(len(archive.namelist())):
                member = archive.getinfo(f"arr_{number}.npy")
                yield _Place(path, member.filename, _header(archive, member))
    except (*_DAMAGES, KeyError) as error:
        raise _damaged(path, error) from error


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> TensorSpec:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        begin = file.tell()
    spec = TensorSpec(shape, DTYPES["bf16"] if dtype == _RAW_BFLOAT16 else dtype)
    if begin + spec.size_bytes != member.file_size:
        raise ValueError(f"{member.filename} has {member.file_size} bytes")
    return spec


def _damaged(path: str, error: Exception) -> ValueError:
    return ValueError(
        f"{path} must be a whole npz file; got: {reason(error)[:200]}. Copy it again."
    )
