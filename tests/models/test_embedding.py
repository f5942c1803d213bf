"""Embedding lookups against numpy, whole and split."""

import numpy as np
import pytest

from models.kernels.embedding import embedding_lookup
from tests.support import assert_all_close, value_and_gradients
from utils.mesh_tensorflow import mtf

VOCAB, EMBD = mtf.Dimension("vocab", 12), mtf.Dimension("embd", 6)
BATCH, SEQUENCE = mtf.Dimension("batch", 4), mtf.Dimension("sequence", 10)
RANDOM = np.random.default_rng(4)
TABLE = RANDOM.normal(size=(12, 6)).astype(np.float32)
# First and last rows of every slice, repeats, and one id (7) that never occurs.
IDS = RANDOM.choice([0, 2, 3, 5, 6, 8, 9, 11, 11, 0], size=(4, 10)).astype(np.int32)
UPSTREAM = RANDOM.normal(size=(4, 10, 6)).astype(np.float32)
LAYOUTS = [
    ("x:1", ""),
    ("x:4", "batch:x"),
    ("x:4", "vocab:x"),
    ("x:2,y:2", "vocab:x,embd:y"),
    ("x:2,y:2", "batch:x,vocab:y"),
    ("x:2,y:2", "sequence:x,embd:y"),
]


def expected(ids: np.ndarray, upstream: np.ndarray) -> list[np.ndarray]:
    d_table = np.zeros_like(TABLE)
    np.add.at(d_table, ids, upstream)
    return [TABLE[ids], d_table]


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_rows_and_gradient(mesh_shape, layout):
    assert set(IDS.flat) == {0, 2, 3, 5, 6, 8, 9, 11}
    got = value_and_gradients(
        mesh_shape,
        layout,
        [(TABLE, [VOCAB, EMBD]), (IDS, [BATCH, SEQUENCE])],
        lambda _, table, ids: embedding_lookup(table, ids),
        UPSTREAM,
    )
    assert_all_close(got, expected(IDS, UPSTREAM), 1e-6)
    assert not got[1][7].any()


@pytest.mark.parametrize(("mesh_shape", "layout"), [("x:1", ""), ("x:2,y:2", "vocab:x,sequence:y")])
def test_ids_of_one_dimension(mesh_shape, layout):
    """Positions have no batch."""
    got = value_and_gradients(
        mesh_shape,
        layout,
        [(TABLE, [VOCAB, EMBD]), (IDS[1], [SEQUENCE])],
        lambda _, table, ids: embedding_lookup(table, ids),
        UPSTREAM[1],
    )
    assert_all_close(got, expected(IDS[1], UPSTREAM[1]), 1e-6)
