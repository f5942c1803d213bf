"""The loss of a batch and its gradients, at once or one microbatch after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Optional

import tensorflow as tf

from models.kernels.sum_of_squares import sum_of_squares
from utils.mesh_tensorflow import mtf

Features = Mapping[str, mtf.Tensor]
BatchLoss = Callable[[Features], mtf.Tensor]
"""From a part of the batch to its summand of the loss, float32 scalar."""


class Differentiated(NamedTuple):
    """A loss and what was found on the way to its gradients.

    Attributes:
        loss: float32 scalar.
        gradients: of every trainable variable of the graph, in order, of its dims, float32.
        microbatch_square: mean over the microbatches of the squared norm of their gradient, each
            scaled up to be an estimate of the whole one; float32 scalar. None if not asked for.
    """

    loss: mtf.Tensor
    gradients: list[mtf.Tensor]
    microbatch_square: Optional[mtf.Tensor]


def _gradients(loss: mtf.Tensor) -> list[mtf.Tensor]:
    variables = loss.graph.trainable_variables
    gradients = mtf.gradients([loss], [variable.outputs[0] for variable in variables])
    for variable, gradient in zip(variables, gradients):
        assert gradient is not None, f"{variable.name} does not influence the loss"
    return gradients


def differentiate(
    batch_loss: BatchLoss,
    features: Features,
    batch_dim: mtf.Dimension,
    splits: int,
    measures_microbatches: bool = False,
) -> Differentiated:
    """Differentiates the sum of ``batch_loss`` over all microbatches.

    With several ``splits`` the batch is worked through in a loop, one microbatch of every
    ``splits``-th sequence after another; losses and gradients are added up, and what the mesh
    holds in parts is added up once, after the loop. The norm of the gradient of one microbatch
    needs it whole: measuring costs the mesh a sum of all gradients per microbatch. The gradients
    themselves are added up in the same order with and without it.

    Args:
        batch_loss: builds the loss of one microbatch.
        features: each has ``batch_dim``.
        batch_dim: of the whole batch.
        splits: number of microbatches, divides ``batch_dim``.
        measures_microbatches: whether to find ``microbatch_square``; takes several splits.
    """
    if splits == 1:
        assert not measures_microbatches
        loss = batch_loss(features)
        return Differentiated(loss, _gradients(loss), None)
    microbatch_dim = mtf.Dimension("microbatch", splits)
    part_dims = [mtf.Dimension(batch_dim.name, batch_dim.size // splits), microbatch_dim]

    def body(number: mtf.Tensor) -> list[mtf.Tensor]:
        """The next number, and summands of the accumulators."""
        loss = batch_loss(
            {
                name: mtf.gather(
                    mtf.replace_dimensions(whole, batch_dim, part_dims), number, microbatch_dim
                )
                for name, whole in features.items()
            }
        )
        gradients = _gradients(loss)
        found = [number + 1, loss, *gradients]
        if measures_microbatches:
            # The gradient of a summand, times splits, estimates that of the sum.
            square = mtf.add_n([sum_of_squares(gradient) for gradient in gradients])
            found.append(square * float(splits))
        return found

    mesh = next(iter(features.values())).mesh
    _, loss, *rest = mtf.while_loop(
        lambda number: mtf.less(number, splits),
        body,
        [mtf.constant(mesh, 0, dtype=tf.int32)],
        has_accumulators=True,
        # TensorFlow would work on ten microbatches at once, with the memory of as many.
        parallel_iterations=1,
    )
    square = rest.pop() if measures_microbatches else None
    return Differentiated(loss, rest, square)
