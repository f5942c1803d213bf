"""Output layer, softmax cross entropy and their gradients together, a few tokens at a time.

The logits of all tokens would be the largest tensor of a training step by far ([batch, sequence,
vocab], three times over: logits, probabilities, gradient). Here they exist for one chunk of
tokens only. The gradient of the loss by the logits needs nothing that comes later in the graph,
so the gradients by the inputs are made in the same pass, and the backward pass only scales them.

Every dimension may be split. A chunk costs three sums over the mesh axes of the vocabulary, each
of one number per token, and one of its logits over those of the features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from models.kernels.fusion import fused, fusing
from models.kernels.operation import held_back, reduced, split_axes, traffic_counter
from utils.mesh_tensorflow import mtf

CHUNK_BYTES = 1 << 27
"""Of the float32 logits of a chunk on one processor."""


class HeadLoss(mtf.Operation):
    """See ``head_loss``; outputs: the loss, then the gradients by hidden, weight (and bias)."""

    def __init__(
        self,
        hidden: mtf.Tensor,
        weight: mtf.Tensor,
        bias: Optional[mtf.Tensor],
        targets: mtf.Tensor,
        token_weights: mtf.Tensor,
        vocab: mtf.Dimension,
        z_loss: float,
    ):
        ids = mtf.range(hidden.mesh, vocab, tf.int32)
        self._differentiated = [hidden, weight, *([] if bias is None else [bias])]
        inputs = [*self._differentiated, targets, token_weights, ids]
        super().__init__(inputs, name="head_loss")
        self._features = hidden.shape.dims[-1]
        self._vocab = vocab
        self._targets = targets
        self._vocab_first = weight.shape.dims[0] == vocab
        self._z_loss = z_loss
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32, index=0)]
        self._outputs += [
            mtf.Tensor(self, x.shape, x.dtype, index=number)
            for number, x in enumerate(self._differentiated, 1)
        ]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("splittable")
        )

    def gradient(self, grad_ys: Sequence[Optional[mtf.Tensor]]) -> list[Optional[mtf.Tensor]]:
        """The gradients made before, times that of the loss."""
        of_loss, *others = grad_ys
        assert of_loss is not None and not any(x is not None for x in others)
        scaled = [_Scaled(gradient, of_loss).outputs[0] for gradient in self.outputs[1:]]
        return [*scaled, *[None] * (len(self.inputs) - len(scaled))]

    @property
    def product_space(self) -> mtf.Shape:
        """Index space of the logits' matrix product; each of the two gradients has one as large."""
        return self._targets.shape + self._vocab + self._features

    def workspace_bytes(self, mesh_impl: Any) -> int:
        """What one processor holds for a chunk: logits, their gradient, one of the weight."""
        first, end = self.chunk_rows(mesh_impl)[0]
        [vocab] = mesh_impl.slice_shape(mtf.Shape([self._vocab]))
        dtype = self.inputs[0].dtype
        logits = 2 * (end - first) * vocab * dtype.size
        if dtype != tf.float32:  # sums are made in float32
            logits += 4 * (end - first) * vocab
        return logits + 4 * math.prod(mesh_impl.slice_shape(self.inputs[1].shape))

    def chunk_rows(self, mesh_impl: Any) -> list[tuple[int, int]]:
        """(first, end) of the tokens of each chunk on one processor."""
        rows = math.prod(mesh_impl.slice_shape(self._targets.shape))
        [vocab] = mesh_impl.slice_shape(mtf.Shape([self._vocab]))
        chunks = max(1, -(-rows * vocab * 4 // CHUNK_BYTES))
        size = -(-rows // chunks)
        return [(first, min(first + size, rows)) for first in range(0, rows, size)]

    def lower(self, lowering: Any) -> None:
        """Works through the chunks one after another, each when both products of the last are made.

        While one of them still runs, its exponentials are held: a third [tokens, vocab].
        """
        mesh_impl = lowering.mesh_impl(self)
        values = [lowering.tensors[x].to_laid_out_tensor() for x in self.inputs]
        count = len(self._differentiated)
        hidden, weight = values[:2]
        bias = values[2:count]
        rest = [mesh_impl.slicewise(_flat, x) for x in values[count : count + 2]]
        ids = values[-1]
        flat_hidden = mesh_impl.slicewise(_token_rows, hidden)
        losses: list[Any] = []
        d_hidden: list[Any] = []
        sums: list[Any] = []
        for first, end in self.chunk_rows(mesh_impl):

            def part(x: tf.Tensor, first: int = first, end: int = end) -> tf.Tensor:
                return x[first:end]

            targets, token_weights = (mesh_impl.slicewise(part, x) for x in rest)
            chunk = mesh_impl.slicewise(
                lambda x, *earlier: held_back([part(x)], earlier)[0],
                flat_hidden,
                *sums[:1],
                *d_hidden[-1:],
            )
            logits = self._logits(lowering, mesh_impl, chunk, weight)
            with fusing(mesh_impl):
                loss, exponentials, scale = self._softmax(
                    lowering, mesh_impl, logits, bias, targets, token_weights, ids
                )
            losses.append(loss)
            d_chunk, *sums = mesh_impl.slicewise(
                self._products, exponentials, scale, chunk, weight, *(sums or ())
            )
            d_hidden.append(d_chunk)
        shape = mesh_impl.slice_shape(self.inputs[0].shape)
        loss = mesh_impl.slicewise(lambda *parts: tf.add_n(parts), *losses)
        joined = mesh_impl.slicewise(
            lambda *parts: tf.reshape(tf.concat(parts, 0), shape), *d_hidden
        )
        self._set_outputs(lowering, mesh_impl, [loss, joined, *sums])

    def _set_outputs(self, lowering: Any, mesh_impl: Any, values: Sequence[Any]) -> None:
        """Hands over the outputs; their sums over the mesh are put off as usual."""
        over_rows = split_axes(mesh_impl, self._targets.shape)
        over_vocab = split_axes(mesh_impl, mtf.Shape([self._vocab]))
        for output, value in zip(self.outputs, values):
            axes = over_vocab if output is self.outputs[1] else over_rows
            if axes:
                counter = traffic_counter(lowering, output, axes)
                value = mtf.LazyAllreduceSum(mesh_impl, value, axes, counter)
            lowering.set_tensor_lowering(output, value)

    def _logits(self, lowering: Any, mesh_impl: Any, chunk: Any, weight: Any) -> Any:
        """[tokens, vocab], of the dtype of ``chunk``."""

        def product(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
            return tf.matmul(x, tf.cast(w, x.dtype), transpose_b=self._vocab_first)

        logits = mesh_impl.slicewise(product, chunk, weight)
        axes = split_axes(mesh_impl, mtf.Shape([self._features]))
        return reduced(lowering, mesh_impl, logits, axes, "SUM")

    def _softmax(
        self,
        lowering: Any,
        mesh_impl: Any,
        logits: Any,
        bias: Sequence[Any],
        targets: Any,
        weights: Any,
        ids: Any,
    ) -> tuple[Any, Any, Any]:
        """The loss, and its gradient by the logits in two factors.

        The gradient is weight * (exp(logit - largest) / total - is_target). Its row factor,
        weight / total, is left to the small sides of the products, so that the exponentials are
        used as they are, but for the targets', from which the total is taken.

        Returns:
            (summed loss, first factor [tokens, vocab], row factor [tokens] float32).
        """
        axes = split_axes(mesh_impl, mtf.Shape([self._vocab]))

        def over_vocab(x: Any, reduction: str) -> Any:
            return reduced(lowering, mesh_impl, x, axes, reduction)

        if bias:
            logits = mesh_impl.slicewise(_with_bias, logits, *bias)
        largest = over_vocab(mesh_impl.slicewise(_largest, logits), "MAX")
        dtype = self.inputs[0].dtype
        exponentials = mesh_impl.slicewise(
            fused(("exponentials", dtype), lambda x, of: _exponentials(x, of, dtype)),
            logits,
            largest,
        )
        total = over_vocab(mesh_impl.slicewise(_row_sums, exponentials), "SUM")
        target = over_vocab(mesh_impl.slicewise(_at_target, logits, targets, ids), "SUM")
        loss, scale, taken = mesh_impl.slicewise(self._rows, largest, total, target, weights)
        return loss, mesh_impl.slicewise(_minus_at_target, exponentials, targets, ids, taken), scale

    def _rows(
        self, largest: tf.Tensor, total: tf.Tensor, target: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(summed loss, row factor, what the target's exponential is reduced by), of [tokens]."""
        losses = (largest - target) + tf.math.log(total)
        growth = tf.ones_like(total)  # of a probability's weight, by the z-loss
        if self._z_loss:
            log_normalizer = largest + tf.math.log(total)
            losses += self._z_loss * tf.square(log_normalizer)
            growth += 2.0 * self._z_loss * log_normalizer
        return tf.reduce_sum(losses * weights), weights * growth / total, total / growth

    def _products(
        self,
        exponentials: tf.Tensor,
        scale: tf.Tensor,
        chunk: tf.Tensor,
        weight: tf.Tensor,
        *sums: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """Gradients by a chunk of hidden, and by weight and bias with those of earlier chunks."""
        rounded = tf.cast(weight, chunk.dtype)
        factors = tf.cast(scale, chunk.dtype)[:, tf.newaxis]
        d_chunk = tf.matmul(exponentials, rounded, transpose_b=not self._vocab_first) * factors
        scaled = chunk * factors
        left, right = (exponentials, scaled) if self._vocab_first else (scaled, exponentials)
        added = [tf.cast(tf.matmul(left, right, transpose_a=True), weight.dtype)]
        if len(self._differentiated) == 3:
            of_bias = tf.matmul(factors, exponentials, transpose_a=True)[0]
            added.append(tf.cast(of_bias, weight.dtype))
        return d_chunk, *(map(tf.add, sums, added) if sums else added)


class _Scaled(mtf.Operation):
    """A tensor times a scalar; a sum over the mesh that was put off stays put off."""

    def __init__(self, x: mtf.Tensor, scalar: mtf.Tensor):
        super().__init__([x, scalar], name="scaled")
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_splittable_and_unsplittable_dims("splittable")
        )

    @property
    def has_gradient(self) -> bool:
        """No second derivatives."""
        return False

    def lower(self, lowering: Any) -> None:
        """Scales every slice."""
        mesh_impl = lowering.mesh_impl(self)
        x, scalar = (lowering.tensors[tensor] for tensor in self.inputs)
        outstanding = isinstance(x, mtf.LazyAllreduceSum)
        value = mesh_impl.slicewise(
            lambda part, by: part * tf.cast(by, part.dtype),
            x.laid_out_input if outstanding else x,
            scalar.to_laid_out_tensor(),
        )
        if outstanding:
            counter = traffic_counter(lowering, self.outputs[0], x.mesh_axes)
            value = mtf.LazyAllreduceSum(mesh_impl, value, x.mesh_axes, counter)
        lowering.set_tensor_lowering(self.outputs[0], value)


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1])


def _token_rows(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, x.shape[-1]])


def _with_bias(logits: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(logits, tf.float32) + bias


def _largest(logits: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.reduce_max(logits, 1), tf.float32)


def _exponentials(logits: tf.Tensor, largest: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.exp(tf.cast(logits, tf.float32) - largest[:, tf.newaxis]), dtype)


def _row_sums(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(x, tf.float32), 1)


def _places(targets: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """(row and column of each target [tokens, 2], whether it is in this slice [tokens])."""
    columns = targets - ids[0]
    count = tf.size(ids)
    here = (columns >= 0) & (columns < count)
    columns = tf.clip_by_value(columns, 0, count - 1)
    return tf.stack([tf.range(tf.size(targets)), columns], 1), here


def _at_target(logits: tf.Tensor, targets: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """[tokens] float32; 0 where the target is not in this slice."""
    places, here = _places(targets, ids)
    return tf.where(here, tf.cast(tf.gather_nd(logits, places), tf.float32), 0.0)


def _minus_at_target(
    x: tf.Tensor, targets: tf.Tensor, ids: tf.Tensor, taken: tf.Tensor
) -> tf.Tensor:
    """``x`` [tokens, vocab] less ``taken`` at the targets; in place if nobody else reads it."""
    places, here = _places(targets, ids)
    return tf.tensor_scatter_nd_sub(x, places, tf.cast(tf.where(here, taken, 0.0), x.dtype))


def head_loss(
    hidden: mtf.Tensor,
    weight: mtf.Tensor,
    bias: Optional[mtf.Tensor],
    targets: mtf.Tensor,
    token_weights: mtf.Tensor,
    vocab: mtf.Dimension,
    z_loss: float = 0.0,
) -> mtf.Tensor:
    """Weighted sum over tokens of the softmax cross entropy (plus z-loss) of an output layer.

    Args:
        hidden: [batch, sequence, embd], floating.
        weight: [vocab, embd] or [embd, vocab], float32.
        bias: [vocab] float32, or None.
        targets: [batch, sequence] int32; ids outside [0, vocab) need the weight 0.
        token_weights: [batch, sequence] float32; not differentiated.
        vocab: the dimension of the vocabulary.
        z_loss: weight of log(Z)^2, Z the normaliser of the softmax.

    Returns:
        float32 scalar.

    Source: chunks with gradients made in the forward pass as in Hsu et al. 2024 (Liger Kernel),
    section 3.2; the softmax over slices as in Shoeybi et al. 2019 (Megatron-LM), section 3.
    """
    operation = HeadLoss(hidden, weight, bias, targets, token_weights, vocab, z_loss)
    return operation.outputs[0]
