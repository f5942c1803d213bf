"""What conversion is made of: named tensors that are read, and written, one at a time."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import ml_dtypes
import numpy as np

LOGGER = logging.getLogger(__name__)
DTYPES: dict[str, np.dtype] = {
    "fp32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
}
"""Number formats of weights, by what the command line calls them."""

OTHER_DTYPE = np.dtype(np.void)
"""Of tensors that are no weights, such as the masks that older models carry along."""

MOST_NAMES = 5
"""In a message, of each kind of what is wrong."""

Shape = tuple[int, ...]
_LAYER = re.compile(r"\b(?:h\.?|layer_)(\d+)\b")


@dataclass(frozen=True)
class TensorSpec:
    """What is known of a tensor before it is read.

    Attributes:
        shape: its sizes.
        dtype: number format in the file.
    """

    shape: Shape
    dtype: np.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Source(Protocol):
    """Named tensors that can be read one at a time.

    Attributes:
        specs: shape and number format by name, known without reading a tensor.
    """

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Shape and number format by name."""

    def read(self, name: str) -> np.ndarray:
        """Reads one tensor; nobody else holds it.

        Raises:
            ValueError: the file is damaged.
        """


@dataclass(frozen=True)
class Part:
    """Tensors that are written together; an interrupted conversion goes on at the next one.

    Attributes:
        file: name of its file.
        specs: its tensors.
    """

    file: str
    specs: Mapping[str, TensorSpec]


class Target(Protocol):
    """A format that tensors are written in.

    What it writes lies in a folder of its own until ``finish`` moves it into the output folder.
    """

    def parts(self, specs: Mapping[str, TensorSpec]) -> Sequence[Part]:
        """Divides the tensors into parts."""

    def files(self, parts: Sequence[Part]) -> Sequence[str]:
        """Names of the files that ``finish`` leaves in the output folder."""

    def write(self, part: Part, source: Source) -> Mapping[str, int]:
        """Writes one part; returns the checksum of each tensor."""

    def finished(self, parts: Sequence[Part]) -> set[str]:
        """Files of the parts that are whole, after an interruption at any place."""

    def finish(self, parts: Sequence[Part]) -> Source:
        """Puts the parts in place; returns what was written, to be read back."""


def checksum(array: np.ndarray) -> int:
    """CRC-32 of the bytes of an array in C order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return zlib.crc32(flat.view(np.uint8).data)


def is_finite(array: np.ndarray) -> bool:
    """Whether no number is NaN or infinite, without another array of that size."""
    if array.dtype not in DTYPES.values():
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum(dtype=np.float32)):
            return True  # the sum of anything with NaN or infinity is neither
    return all(np.isfinite(row).all() for row in np.atleast_1d(array))


def warn_of_spoiled(names: Sequence[str], where: str) -> None:
    """Says which tensors are not finite, if any are: a model of them computes nothing of use."""
    if names:
        LOGGER.warning(
            "%d of the tensors of %s hold NaN or infinity: %s",
            len(names),
            where,
            first_of(names, 3),
        )


def grouped(specs: Mapping[str, TensorSpec], most_bytes: int) -> list[dict[str, TensorSpec]]:
    """Neighbouring tensors in groups of at most ``most_bytes``; a larger tensor is alone."""
    groups: list[dict[str, TensorSpec]] = []
    size = most_bytes + 1
    for name, spec in specs.items():
        if size + spec.size_bytes > most_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = spec
        size += spec.size_bytes
    return groups


def check_tensors(
    got: Mapping[str, TensorSpec], expected: Mapping[str, Shape], where: str, ignored: Iterable[str]
) -> None:
    """Compares the tensors of a file with those of its config, before anything is read.

    Args:
        got: what is there.
        expected: shape by name of what must be there.
        where: what is compared, for the error.
        ignored: names that may be there and are of no use.

    Raises:
        ValueError: says how many tensors are missing, are too many, or have another shape or number
            format, and names them, those of several layers as one and five at most.
    """
    missing = [name for name in expected if name not in got]
    extra = sorted(got.keys() - expected.keys() - set(ignored))
    other = [
        f"{name} {list(got[name].shape)} in place of {list(shape)}"
        for name, shape in expected.items()
        if name in got and got[name].shape != shape
    ]
    formats = [name for name in expected if name in got and got[name].dtype not in DTYPES.values()]
    found = [
        _counted("missing", missing),
        _counted("unknown", extra),
        _counted("of another shape", other),
        _counted(f"of another number format than {', '.join(DTYPES)}", formats),
    ]
    if any(found):
        raise ValueError(
            f"tensors must be those that the config describes; got {'; '.join(filter(None, found))}"
            f" in {where}. Restore the files, or correct the config."
        )


def _counted(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} {what}: {first_of(_by_layers(names), MOST_NAMES)}" if names else ""


def first_of(names: Sequence[str], most: int) -> str:
    """The first of many names, for a message of one line."""
    return ", ".join([*names[:most], *["…"] * (len(names) > most)])


def _by_layers(names: Sequence[str]) -> list[str]:
    """Every name, those that differ in one number only as one: ``h.{0,1,2}.ln_1.bias``."""
    groups: dict[str, list[str]] = {}
    for name in names:
        match = _LAYER.search(name)
        form = name if match is None else f"{name[: match.start(1)]}{{}}{name[match.end(1) :]}"
        groups.setdefault(form, []).append("" if match is None else match[1])
    shown = []
    for form, layers in groups.items():
        numbers = layers[0] if len(layers) == 1 else f"{{{','.join(layers)}}}"
        shown.append(form.replace("{}", numbers, 1))
    return shown
