"""A mesh and a layout as values: what ``mesh_shape`` and ``layout`` of a config say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from configs.schema import Config
from utils.mesh_tensorflow import mtf, placement_mesh_impl


@dataclass(frozen=True)
class MeshLayout:
    """How named dimensions are split over named mesh axes.

    Attributes:
        axes: (name, number of processors) of each mesh axis.
        rules: (dimension name, mesh axis) pairs.
    """

    axes: tuple[tuple[str, int], ...]
    rules: tuple[tuple[str, str], ...]

    @classmethod
    def from_config(cls, config: Config) -> MeshLayout:
        """The mesh and layout of ``config``."""
        return cls(config.mesh_axes, config.layout_rules)

    def without(self, dims: Collection[str]) -> MeshLayout:
        """The same mesh with a layout that does not split ``dims``."""
        return MeshLayout(self.axes, tuple(rule for rule in self.rules if rule[0] not in dims))

    @property
    def size(self) -> int:
        """Number of processors."""
        size = 1
        for _, axis_size in self.axes:
            size *= axis_size
        return size

    @property
    def mesh_shape(self) -> Any:
        """As mtf.Shape."""
        return mtf.Shape([mtf.Dimension(name, size) for name, size in self.axes])

    @property
    def layout(self) -> Any:
        """As mtf.LayoutRules."""
        return mtf.LayoutRules(set(self.rules))

    def slices(self, dim: Any) -> int:
        """Into how many pieces the layout cuts ``dim``."""
        return mtf.tensor_dim_to_mesh_dim_size(self.layout, self.mesh_shape, dim)

    def placement(self, devices: list[str]) -> Any:
        """A PlacementMeshImpl on ``devices``, one per processor."""
        assert len(devices) == self.size, (devices, self)
        return placement_mesh_impl.PlacementMeshImpl(self.mesh_shape, self.layout, devices)
