"""Scaled-free softmax attention over a masked window, in one kernel per slice.

The keys' dimension may be split: each slice attends to the keys that it holds and also returns
the logarithm of its normaliser, and the slices are merged by their share of the whole softmax
(the merge rule of blockwise attention: Milakov and Gimelshein 2018; Dao et al. 2022, section 3.1).
"""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from models.kernels.noise import Dropout, keep_mask
from models.kernels.operation import kernel
from utils.mesh_tensorflow import mtf

MASKED = -1e9  # added to scores that must not count; exp of it is 0 in float32 and bfloat16


def window_bias(
    query_positions: tf.Tensor, key_positions: tf.Tensor, radius: Optional[int]
) -> tf.Tensor:
    """What is added to the scores so that a query sees its own window only.

    Args:
        query_positions: int32 [sequence].
        key_positions: int32 [memory_length].
        radius: keys that are seen, the query's own included; None for all before it.

    Returns:
        float32 [sequence, memory_length]: 0 where i - radius < j <= i, else MASKED.
    """
    behind = query_positions[:, tf.newaxis] - key_positions[tf.newaxis, :]
    seen = behind >= 0
    if radius is not None:
        seen = tf.logical_and(seen, behind < radius)
    return tf.where(seen, 0.0, MASKED)


def masked_attention(
    queries: mtf.Tensor,
    keys: mtf.Tensor,
    values: mtf.Tensor,
    radius: Optional[int],
    key_slices: int,
    dropout: Optional[Dropout],
    rate: float,
    label: str,
) -> mtf.Tensor:
    """Causal softmax attention.

    The scores are not scaled by 1/sqrt(features_per_head): in the GPT-Neo family the query's
    initializer carries that factor.

    Args:
        queries: [batch, sequence, heads, features_per_head].
        keys: [batch, memory_length, heads, features_per_head].
        values: as keys.
        radius: of local attention (see window_bias), None for global attention.
        key_slices: pieces into which the layout splits memory_length.
        dropout: of the attention weights; None outside training.
        rate: probability of dropping a weight.
        label: place in the model, for the dropout's noise.

    Returns:
        [batch, sequence, heads, features_per_head].
    """
    batch, sequence, heads, features = queries.shape.dims
    memory = keys.shape.dims[1]
    mesh = queries.mesh
    pieces = mtf.Dimension(memory.name, key_slices)

    def attend(
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        query_positions: tf.Tensor,
        key_positions: tf.Tensor,
        *noise: tf.Tensor,
    ) -> Any:
        q, k, v = (tf.transpose(x, [0, 2, 1, 3]) for x in (q, k, v))
        scores = tf.matmul(q, k, transpose_b=True)
        scores += tf.cast(window_bias(query_positions, key_positions, radius), scores.dtype)
        weights = tf.nn.softmax(scores)
        if noise:
            key, batch_positions, head_positions = noise
            mask = keep_mask(
                key, [batch_positions, head_positions, query_positions, key_positions], rate
            )
            weights *= tf.cast(mask, weights.dtype)
        mixed = tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3])
        if key_slices == 1:
            return mixed
        log_normalizer = tf.transpose(tf.reduce_logsumexp(scores, -1), [0, 2, 1])
        return mixed[..., tf.newaxis], log_normalizer[..., tf.newaxis]

    inputs = [
        queries,
        keys,
        values,
        mtf.range(mesh, sequence, tf.int32),
        mtf.range(mesh, memory, tf.int32),
    ]
    if dropout is not None and rate > 0.0:
        inputs += [dropout.key(label), dropout.positions(batch), dropout.positions(heads)]
    splittable = [batch, heads, sequence, memory]
    multiply_adds = 2 * queries.shape.size * memory.size
    if key_slices == 1:
        outputs = [(queries.shape, queries.dtype)]
        [mixed] = kernel(
            attend, inputs, outputs, splittable, "attention", multiply_adds=multiply_adds
        )
        return mixed
    partial = mtf.Shape([batch, sequence, heads, features, pieces])
    normalizers = mtf.Shape([batch, sequence, heads, pieces])
    mixed, log_normalizer = kernel(
        attend,
        inputs,
        [(partial, queries.dtype), (normalizers, queries.dtype)],
        splittable,
        "attention",
        multiply_adds=multiply_adds,
    )
    share = mtf.softmax(log_normalizer, pieces)
    return mtf.einsum([mixed, share], queries.shape)
