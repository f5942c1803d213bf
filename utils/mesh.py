"""A mesh and a layout as values: what ``mesh_shape`` and ``layout`` of a config say."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from configs.schema import Config
from utils.mesh_tensorflow import mtf, placement_mesh_impl

SLOT_PART = "optimizer_shard"
"""Name of the dimension along which optimizer slots, but not the weights, are split."""


@dataclass(frozen=True)
class MeshLayout:
    """How named dimensions are split over named mesh axes.

    Attributes:
        axes: (name, number of processors) of each mesh axis.
        rules: (dimension name, mesh axis) pairs.
        compiled: whether XLA compiles the program of a processor as a whole, as on TPUs. Shapes
            inside it must not depend on values, and nothing can be written in place.
    """

    axes: tuple[tuple[str, int], ...]
    rules: tuple[tuple[str, str], ...]
    compiled: bool = False

    @classmethod
    def from_config(cls, config: Config) -> MeshLayout:
        """The mesh and layout of ``config``."""
        rules = config.layout_rules
        if config.optimizer_shard_axis is not None:
            rules += ((SLOT_PART, config.optimizer_shard_axis),)
        return cls(config.mesh_axes, rules)

    def without(self, dims: Collection[str]) -> MeshLayout:
        """The same mesh with a layout that does not split ``dims``."""
        return replace(self, rules=tuple(rule for rule in self.rules if rule[0] not in dims))

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

    def slot_shape(self, shape: Any) -> Any:
        """Dims of the optimizer slots of a variable.

        With an axis for the slots, the largest dimension that is whole and that the axis divides
        is renamed to one that is split over it. Vectors and variables that are split over the
        axis already keep their dims.

        Args:
            shape: mtf.Shape of the variable.
        """
        rules = dict(self.rules)
        axis = rules.get(SLOT_PART, "")
        pieces = dict(self.axes).get(axis, 1)
        if pieces == 1 or shape.ndims < 2 or axis in map(rules.get, shape.dimension_names):
            return shape
        fitting = [dim for dim in shape.dims if self.slices(dim) == 1 and dim.size % pieces == 0]
        if not fitting:
            return shape
        largest = max(fitting, key=lambda dim: dim.size)
        return shape.rename_dimension(largest.name, SLOT_PART)

    def placement(self, devices: list[str]) -> Any:
        """A PlacementMeshImpl on ``devices``, one per processor."""
        assert len(devices) == self.size, (devices, self)
        implementation = placement_mesh_impl.PlacementMeshImpl(
            self.mesh_shape, self.layout, devices
        )
        # XLA compiles for the CPU here; on a GPU TensorFlow's own kernels run.
        implementation.fuses_kernels = not any(":GPU:" in device.upper() for device in devices)
        return implementation
