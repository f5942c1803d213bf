"""Mesh TensorFlow's mesh of TPU cores: every core runs the same program on its own slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

import tensorflow as tf

from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

# Masters of small variables are stacked from this number of elements of a slice downwards: every
# slice on every core is a variable of its own, and a pod has many cores.
_STACKED_BELOW = 2**16
# Bytes that programs take on the first host, for Mesh TensorFlow's placing of master variables.
_PROGRAM_BYTES_PER_CORE = 300 * 2**20


class TpuMesh(mtf.simd_mesh_impl.SimdMeshImpl):
    """As Mesh TensorFlow's, but all-to-alls are exact."""

    def alltoall(self, x: Any, mesh_axis: int, split_axis: int, concat_axis: int) -> Any:
        """Sends float32 as two halves each.

        Mesh TensorFlow (0.1.21) rounds float32 to bfloat16 for the way, against a defect of
        early TPU software, so numbers would depend on the layout.
        """
        tensor = x.to_laid_out_tensor().one_slice
        if tensor.dtype != tf.float32:
            return super().alltoall(x, mesh_axis, split_axis, concat_axis)
        halves = self.LaidOutTensor([tf.bitcast(tensor, tf.bfloat16)])
        moved = super().alltoall(halves, mesh_axis, split_axis, concat_axis)
        return self.LaidOutTensor([tf.bitcast(moved.one_slice, tf.float32)])


@dataclass(frozen=True)
class Cores:
    """The cores of a TPU that is up.

    Attributes:
        device_assignment: of one replica to each core.
        hosts: the CPU device of each host.
    """

    device_assignment: Any
    hosts: tuple[str, ...]

    @classmethod
    def from_context(cls, context: Any) -> Cores:
        """The cores that TPUEstimator runs a model function on (``params["context"]``)."""
        place = context.tpu_host_placement_function
        hosts = tuple(place(host_id=number) for number in range(context.num_hosts))
        return cls(context.device_assignment, hosts)

    @property
    def count(self) -> int:
        """Number of cores."""
        return int(self.device_assignment.num_replicas)

    def mesh(self, graph: mtf.Graph) -> mtf.Mesh:
        """A mesh whose master variables are spread over the memories of the hosts."""
        cores_per_host = self.count // len(self.hosts)
        programs = _PROGRAM_BYTES_PER_CORE * cores_per_host * len(self.hosts)
        taken = [programs] + [0] * (len(self.hosts) - 1)
        return mtf.Mesh(graph, "mesh", mtf.utils.BalancedVariablePlacer(list(self.hosts), taken))

    def lower(self, graph: mtf.Graph, mesh: mtf.Mesh, mesh_layout: MeshLayout) -> mtf.Lowering:
        """Turns a graph into the program of a core."""
        implementation = TpuMesh(
            mesh_layout.mesh_shape, mesh_layout.layout, None, self.device_assignment
        )
        graph.rewrite_stack_variables(
            mesh_to_impl={mesh: implementation}, max_combined_slice_size=_STACKED_BELOW
        )
        return mtf.Lowering(graph, {mesh: implementation}, autostack=False)

    def replicate(
        self, build: Callable[..., tuple[dict[str, tf.Tensor], Any]], inputs: Sequence[tf.Tensor]
    ) -> tuple[dict[str, tf.Tensor], Any]:
        """Runs a program on every core, each with all of ``inputs``.

        Args:
            build: from the inputs, as the core has them, to (outputs by name, anything else).
            inputs: tensors of the host.

        Returns:
            (the outputs of the first core, what else ``build`` returned).
        """
        names: list[str] = []
        others: list[Any] = []

        def program(*values: tf.Tensor) -> list[tf.Tensor]:
            outputs, other = build(*values)
            names[:] = outputs
            others[:] = [other]
            return list(outputs.values())

        on_cores = tf.compat.v1.tpu.replicate(
            program, [list(inputs)] * self.count, device_assignment=self.device_assignment
        )
        return dict(zip(names, on_cores[0])), others[0]
