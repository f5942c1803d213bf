"""Products with weights and bias additions against numpy, whole and split."""

import numpy as np
import pytest

from models.kernels.matmul import bias_add, expert_matmul, matmul
from tests.support import assert_all_close, run_named, value_and_gradients
from utils.mesh_tensorflow import mtf

BATCH, SEQUENCE = mtf.Dimension("batch", 4), mtf.Dimension("sequence", 6)
IN, OUT = mtf.Dimension("embd", 8), mtf.Dimension("intermediate_expanded", 12)
LAYOUTS = [
    ("x:1", ""),
    ("x:4", "batch:x"),
    ("x:4", "embd:x"),
    ("x:4", "intermediate_expanded:x"),
    ("x:2,y:2", "batch:x,embd:y"),
    ("x:2,y:2", "sequence:x,intermediate_expanded:y"),
    ("x:2,y:2", "batch:x,sequence:y"),
    ("x:2,y:2", "embd:x,intermediate_expanded:y"),
]
on_all_layouts = pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(4, 6, 8)).astype(np.float32)
WEIGHT = RANDOM.normal(size=(8, 12)).astype(np.float32)
BIAS = RANDOM.normal(size=12).astype(np.float32)
UPSTREAM = RANDOM.normal(size=(4, 6, 12)).astype(np.float32)


@on_all_layouts
def test_product_and_gradients(mesh_shape, layout):
    got = value_and_gradients(
        mesh_shape,
        layout,
        [(X, [BATCH, SEQUENCE, IN]), (WEIGHT, [IN, OUT])],
        lambda _, x, weight: matmul(x, weight, [OUT]),
        UPSTREAM,
    )
    expected = [X @ WEIGHT, UPSTREAM @ WEIGHT.T, np.einsum("bsi,bso->io", X, UPSTREAM)]
    assert_all_close(got, expected, 1e-6)


@on_all_layouts
def test_product_with_a_weight_that_is_stored_the_other_way_round(mesh_shape, layout):
    """As the tied head has it: [vocab, embd]."""
    got = value_and_gradients(
        mesh_shape,
        layout,
        [(X, [BATCH, SEQUENCE, IN]), (WEIGHT.T.copy(), [OUT, IN])],
        lambda _, x, weight: matmul(x, weight, [OUT]),
        UPSTREAM,
    )
    expected = [X @ WEIGHT, UPSTREAM @ WEIGHT.T, np.einsum("bsi,bso->oi", X, UPSTREAM)]
    assert_all_close(got, expected, 1e-6)


def test_product_and_bias_of_a_matrix():
    """Two dimensions, as in the last step of a decoder."""
    got = value_and_gradients(
        "x:2,y:2",
        "batch:x,intermediate_expanded:y",
        [(X[:, 0], [BATCH, IN]), (WEIGHT, [IN, OUT]), (BIAS, [OUT])],
        lambda _, x, weight, bias: bias_add(matmul(x, weight, [OUT]), bias),
        UPSTREAM[:, 0],
    )
    d_y = UPSTREAM[:, 0]
    expected = [X[:, 0] @ WEIGHT + BIAS, d_y @ WEIGHT.T, X[:, 0].T @ d_y, d_y.sum(0)]
    assert_all_close(got, expected, 1e-6)


@on_all_layouts
def test_bias_and_gradients(mesh_shape, layout):
    got = value_and_gradients(
        mesh_shape,
        layout,
        [(UPSTREAM + 1, [BATCH, SEQUENCE, OUT]), (BIAS, [OUT])],
        lambda _, x, bias: bias_add(x, bias),
        UPSTREAM,
    )
    assert_all_close(got, [UPSTREAM + 1 + BIAS, UPSTREAM, UPSTREAM.sum((0, 1))], 1e-6)


@on_all_layouts
@pytest.mark.parametrize("rows", [1, 4])
def test_a_bias_within_the_product(mesh_shape, layout, rows):
    """Also where processors hold partial sums, of which one holds the bias."""
    dims = [BATCH, SEQUENCE, IN] if rows == 4 else [mtf.Dimension("one", 1), IN]
    x = X if rows == 4 else X[0, :1]
    [got] = run_named(
        mesh_shape,
        layout,
        [(x, dims), (WEIGHT, [IN, OUT]), (BIAS, [OUT])],
        lambda _, x, weight, bias: [matmul(x, weight, [OUT], bias)],
    )
    assert_all_close([got], [x @ WEIGHT + BIAS], 1e-6)


@on_all_layouts
def test_product_with_several_weights_at_once(mesh_shape, layout):
    parts, several = mtf.Dimension("projections", 3), np.stack([WEIGHT, 2 * WEIGHT, -WEIGHT], 1)
    upstream = np.stack([UPSTREAM, UPSTREAM, UPSTREAM], 2)
    got = value_and_gradients(
        mesh_shape,
        layout,
        [(X, [BATCH, SEQUENCE, IN]), (several, [IN, parts, OUT])],
        lambda _, x, weight: matmul(x, weight, [parts, OUT]),
        upstream,
    )
    expected = [
        np.einsum("bsi,ipo->bspo", X, several),
        np.einsum("bspo,ipo->bsi", upstream, several),
        np.einsum("bsi,bspo->ipo", X, upstream),
    ]
    assert_all_close(got, expected, 1e-6)


EXPERTS = mtf.Dimension("experts", 2)
EXPERT_WEIGHTS, EXPERT_X, EXPERT_UPSTREAM = (
    RANDOM.normal(size=shape).astype(np.float32)
    for shape in ((2, 8, 12), (2, 4, 6, 8), (2, 4, 6, 12))
)


@pytest.mark.parametrize(
    ("mesh_shape", "layout"),
    [
        ("x:1", ""),
        ("x:2,y:2", "experts:x,batch:y"),
        ("x:2,y:2", "experts:x,embd:y"),
        ("x:2,y:2", "batch:x,intermediate_expanded:y"),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_product_of_each_expert_and_gradients(mesh_shape, layout, shared):
    x = EXPERT_X[0] if shared else EXPERT_X
    dims = [BATCH, SEQUENCE, IN]
    got = value_and_gradients(
        mesh_shape,
        layout,
        [(x, dims if shared else [EXPERTS, *dims]), (EXPERT_WEIGHTS, [EXPERTS, IN, OUT])],
        lambda _, x, weight: expert_matmul(x, weight, OUT),
        EXPERT_UPSTREAM,
    )
    term = "bsi" if shared else "ebsi"
    expected = [
        np.einsum(f"{term},eio->ebso", x, EXPERT_WEIGHTS),
        np.einsum(f"ebso,eio->{term}", EXPERT_UPSTREAM, EXPERT_WEIGHTS),
        np.einsum(f"{term},ebso->eio", x, EXPERT_UPSTREAM),
    ]
    assert_all_close(got, expected, 1e-6)


def test_the_kernel_knows_its_multiply_adds():
    """The dry run counts them: one per row, input and output."""
    counted = []

    def product(_, x, weight):
        y = matmul(x, weight, [OUT])
        counted.append(y.operation.multiply_adds)
        return y

    value_and_gradients(
        "x:1", "", [(X, [BATCH, SEQUENCE, IN]), (WEIGHT, [IN, OUT])], product, UPSTREAM
    )
    assert counted == [4 * 6 * 8 * 12]
