"""Which rows of a batch the hosts of a mesh work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf


@dataclass(frozen=True)
class Part:
    """What a processor works on of a batch [batch, sequence].

    Attributes:
        processor: its number in the mesh.
        rows: numbers of its rows, one behind the other.
        columns: positions in the sequence.
    """

    processor: int
    rows: range
    columns: range


@dataclass(frozen=True)
class HostRows:
    """What one host works on.

    Attributes:
        device: its CPU.
        parts: of its processors.
    """

    device: str
    parts: tuple[Part, ...]

    @property
    def rows(self) -> list[int]:
        """Numbers of the rows that any of its processors works on, rising."""
        return sorted({row for part in self.parts for row in part.rows})

    def slices(self, tensor: tf.Tensor) -> dict[int, tf.Tensor]:
        """Cuts the host's rows [rows, sequence] for its processors; by their numbers."""
        places = {row: place for place, row in enumerate(self.rows)}
        cut = {}
        for part in self.parts:
            first = places[part.rows[0]]
            rows = slice(first, first + len(part.rows))
            cut[part.processor] = tensor[rows, part.columns.start : part.columns.stop]
        return cut


def _cpu_of(device: str) -> str:
    spec = tf.DeviceSpec.from_string(device)
    return spec.replace(device_type="CPU", device_index=0).to_string()


def host_rows(
    mesh_layout: MeshLayout, devices: Sequence[str], dims: Sequence[mtf.Dimension]
) -> list[HostRows]:
    """The rows of each host.

    Args:
        mesh_layout: how a batch is split.
        devices: full names, one per processor.
        dims: of the batch and of the sequence.

    Returns:
        The hosts in the order of their devices.
    """
    placement = mesh_layout.placement(list(devices))
    shape = mtf.Shape(dims)
    row_count, column_count = placement.slice_shape(shape)
    hosts: dict[str, list[Part]] = {}
    for processor, device in enumerate(devices):
        row, column = placement.slice_begin(shape, processor)
        rows, columns = range(row, row + row_count), range(column, column + column_count)
        hosts.setdefault(_cpu_of(device), []).append(Part(processor, rows, columns))
    return [HostRows(device, tuple(parts)) for device, parts in hosts.items()]
