"""Weights in the form in which generation reads them fastest, made once for each checkpoint.

Every token reads all weights. What a product would do to a weight each time (round it, read it
against its order) is done once, after a checkpoint is loaded, into variables of the mesh that no
checkpoint holds; and the weight itself is let go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from utils.inference_session import RELEASED
from utils.mesh_tensorflow import mtf


class PreparedWeight(mtf.Variable):
    """What a function makes of the slices of variables, kept in a variable per processor.

    As a variable, it is moved in front of the loop whose body asks for it, and filled with the
    others when weights are brought to the mesh.
    """

    def __init__(
        self,
        function: Callable[..., tf.Tensor],
        parts: Sequence[mtf.Variable],
        shape: mtf.Shape,
        dtype: tf.DType,
        releases: bool,
        name: str,
    ):
        mtf.Operation.__init__(self, [], parts[0].mesh, name)
        self._function = function
        self._parts = parts
        self._releases = releases
        self._outputs = [mtf.Tensor(self, shape, dtype)]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_all_dimensions_as_splittable()
        )

    def lower(self, lowering: Any) -> None:
        """Makes the variables, and the operation that fills them and releases the parts."""
        mesh_impl = lowering.mesh_impl(self)
        # One after another: in between, a weight is there twice.
        filled = lowering.variables.items()
        before = [x for weight, x in filled if isinstance(weight, PreparedWeight)][-1:]
        masters = [part.get_master() for part in self._parts]
        with tf.control_dependencies([x.copy_master_to_slices for x in before]):
            read = [tf.identity(master) for master in masters]
        slices = [mesh_impl.make_slices(x, part.shape) for x, part in zip(read, self._parts)]
        variables, fill = [], []
        for number, (device, *pieces) in enumerate(zip(mesh_impl.devices, *slices)):
            with tf.device(device):
                value = self._function(*pieces)
                variables.append(
                    tf.compat.v1.get_variable(
                        f"{self.name}_{number}",
                        mesh_impl.slice_shape(self.shape),
                        value.dtype,
                        tf.compat.v1.zeros_initializer(),
                        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                        use_resource=False,
                    )
                )
                fill.append(tf.compat.v1.assign(variables[-1], value).op)
        if self._releases:
            for part in self._parts:
                lowering.variables.pop(part, None)
                tf.compat.v1.add_to_collection(RELEASED, part.get_master())
            with tf.control_dependencies(fill):
                nothing = tf.zeros([0])
                fill += [
                    tf.compat.v1.assign(master, nothing, validate_shape=False).op
                    for master in masters
                ]
        lowering.variables[self] = Filling(tf.group(fill))
        tensors = [tf.identity(variable) for variable in variables]
        lowering.set_tensor_lowering(
            self.outputs[0], mesh_impl.LaidOutTensor.from_tensor_list(tensors)
        )


class Filling:
    """Takes part in bringing weights to the mesh, as ``LaidOutVariable`` does."""

    def __init__(self, fill: tf.Operation):
        self.copy_master_to_slices = fill
        self.copy_slices_to_master = tf.no_op()


def _prepared(
    function: Callable[..., tf.Tensor],
    parts: Sequence[mtf.Tensor],
    dims: Sequence[mtf.Dimension],
    dtype: tf.DType,
    releases: bool,
) -> mtf.Tensor:
    """The form of a graph that begins with the first part and has ``dtype``; made once."""
    variables = [part.operation for part in parts]
    name = f"{variables[0].name}/prepared_{dtype.name}"
    known = parts[0].mesh.graph.name_to_variable
    if name not in known:
        shape = mtf.Shape(dims)
        known[name] = PreparedWeight(function, variables, shape, dtype, releases, name)
    return known[name].outputs[0]


def prepared(weight: mtf.Tensor, dtype: tf.DType, turned: bool, releases: bool) -> mtf.Tensor:
    """A variable's value in ``dtype``, with its two dimensions in the other order if ``turned``.

    With ``releases`` nothing else reads the variable: its memory is given back, but a later
    checkpoint may still be loaded.
    """

    def arrange(piece: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.transpose(piece) if turned else piece, dtype)

    dims = weight.shape.dims[::-1] if turned else weight.shape.dims
    return _prepared(arrange, [weight], dims, dtype, releases)


def prepared_together(
    weights: Sequence[mtf.Tensor], number: mtf.Dimension, dtype: tf.DType
) -> mtf.Tensor:
    """Variables [in_dim, out_dim], which nothing else reads: [number, out_dim, in_dim]."""
    in_dim, out_dim = weights[0].shape.dims
    return _prepared(
        lambda *pieces: tf.cast(tf.stack([tf.transpose(piece) for piece in pieces]), dtype),
        weights,
        [number, out_dim, in_dim],
        dtype,
        releases=True,
    )
