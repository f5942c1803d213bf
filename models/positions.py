"""Position embeddings that are added to the token embedding: learned, or learned by two axes.

Rotary positions (``kernels/rotary.py``) and relative ones (``kernels/relative_positions.py``) act
inside attention and add nothing to it.
"""

from __future__ import annotations

import tensorflow as tf

from configs.schema import Config
from models.dimensions import Dimensions
from models.initial_values import weight
from models.kernels.embedding import embedding_lookup
from models.kernels.operation import kernel
from models.weights import Weights
from utils.mesh_tensorflow import mtf

RELATIVE_STDDEV = 0.02  # Mesh Transformer JAX's


def learned_positions(
    weights: Weights, positions: mtf.Tensor, dims: Dimensions, config: Config
) -> mtf.Tensor:
    """Rows of the table ``wpe``.

    Args:
        weights: of the model.
        positions: [sequence] or [batch, sequence] int32, each within [0, n_ctx).
        dims: of the model.
        config: initializer.

    Returns:
        [positions' dims, embd] float32.
    """
    table = weight(weights, config, "positions", "wpe", [dims.embed_sequence, dims.embd])
    return embedding_lookup(table, positions)


def axial_positions(
    weights: Weights, positions: mtf.Tensor, dims: Dimensions, config: Config
) -> mtf.Tensor:
    """Mean of a row and a column embedding, ``axial_wpe_1`` and ``axial_wpe_2``.

    Position p stands in row p // columns and column p % columns.

    Args:
        weights: of the model.
        positions: [sequence] or [batch, sequence] int32, each within [0, n_ctx).
        dims: of the model.
        config: initializer.

    Returns:
        [positions' dims, embd] float32.

    Source: Ho et al. 2019 (axial attention), appendix; the mean of the two is GPT-Neo's.
    """
    assert dims.axial is not None
    row_dim, column_dim = dims.axial
    columns = column_dim.size

    def part(name: str, dim: mtf.Dimension, indices: mtf.Tensor) -> mtf.Tensor:
        table = weight(weights, config, "positions", name, [dim, dims.embd])
        return embedding_lookup(table, indices)

    def divide(at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return at // columns, at % columns

    shape = positions.shape
    rows, column_numbers = kernel(
        divide, [positions], [(shape, tf.int32)] * 2, shape.dims, "axial", differentiable=False
    )
    mean = part("axial_wpe_1", row_dim, rows) + part("axial_wpe_2", column_dim, column_numbers)
    return mean * 0.5


def relative_position_table(weights: Weights, dims: Dimensions) -> mtf.Tensor:
    """The numbers that attention adds to its scores, by head and bucket of distances.

    All layers share them.

    Args:
        weights: of the model.
        dims: of the model.

    Returns:
        [heads, relative_buckets] float32.

    Source: Raffel et al. 2020 (T5), section 2.1; initial values of Mesh Transformer JAX.
    """
    shape = [dims.heads, dims.relative_buckets]
    return weights.truncated_normal("relative_positions/table", shape, RELATIVE_STDDEV)
