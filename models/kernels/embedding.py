"""Rows of an embedding table by token id or by position."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from models.kernels.operation import Slices, kernel
from utils.mesh_tensorflow import mtf


def embedding_lookup(table: mtf.Tensor, ids: mtf.Tensor) -> mtf.Tensor:
    """Looks up rows of ``table``.

    No one-hot product: each slice gathers the rows that it holds and the slices are added up,
    so the rows' dimension (``vocab``, ``embed_sequence``) may be split.

    Args:
        table: [rows, columns], floating.
        ids: any dims, int32, each within [0, rows).

    Returns:
        [ids' dims, columns], of the table's dtype.
    """
    rows, columns = table.shape.dims
    row_numbers = mtf.range(table.mesh, rows, tf.int32)

    def gather(table_slice: tf.Tensor, ids_slice: tf.Tensor, held: tf.Tensor) -> tf.Tensor:
        count = table_slice.shape[0]
        if count == rows.size:
            return tf.gather(table_slice, ids_slice)
        local = ids_slice - held[0]
        found = tf.logical_and(local >= 0, local < count)
        values = tf.gather(table_slice, tf.where(found, local, tf.zeros_like(local)))
        return values * tf.cast(found[..., tf.newaxis], values.dtype)

    def gradient(xs: Slices, ys: Slices, dys: Slices) -> list[Any]:
        table_slice, ids_slice, held = xs
        count, width = table_slice.shape
        # Ids of other slices fall outside [0, count) and are dropped.
        local = tf.reshape(ids_slice - held[0], [-1])
        local = tf.where(local < count, local, -tf.ones_like(local))
        summed = tf.math.unsorted_segment_sum(tf.reshape(dys[0], [-1, width]), local, count)
        return [summed, None, None]

    output = mtf.Shape(ids.shape.dims + [columns])
    [y] = kernel(
        gather,
        [table, ids, row_numbers],
        [(output, table.dtype)],
        splittable=output.dims,
        summed_dims=[rows],
        gradient=gradient,
        name="embedding_lookup",
    )
    return y
