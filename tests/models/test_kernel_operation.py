"""The kernel operation: its rules of lowering and of gradients, and what mtf.slicewise got wrong.

Every expected number is worked out in numpy.
"""

import numpy as np
import pytest
import tensorflow as tf

from models.kernels import fusion
from models.kernels.embedding import embedding_lookup
from models.kernels.matmul import matmul
from models.kernels.operation import KernelOperation, kernel
from tests.support import assert_all_close, cpus, mesh_layout, run_named, value_and_gradients
from utils.mesh_tensorflow import mtf

BATCH, EMBD, VOCAB = mtf.Dimension("batch", 12), mtf.Dimension("embd", 4), mtf.Dimension("vocab", 8)
LAYOUTS = [
    ("x:1", ""),
    ("x:4", "batch:x"),
    ("x:4", "embd:x"),
    ("x:4", "vocab:x"),
    ("x:2,y:2", "batch:x,embd:y"),
    ("x:2,y:2", "batch:x,vocab:y"),
    ("x:2,y:2", "vocab:x,embd:y"),
]
on_all_layouts = pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)


def draw(*dims: mtf.Dimension, seed: int = 0) -> tuple[np.ndarray, list[mtf.Dimension]]:
    random = np.random.default_rng(seed + len(dims))
    return random.normal(size=[dim.size for dim in dims]).astype(np.float32), list(dims)


def scaled_tanh(x: mtf.Tensor, gain: mtf.Tensor) -> mtf.Tensor:
    [y] = kernel(
        lambda a, b: tf.tanh(a * b), [x, gain], [(x.shape, x.dtype)], x.shape.dims, "scaled_tanh"
    )
    return y


@on_all_layouts
def test_gradient_of_an_unsplit_input_is_summed_over_the_mesh(mesh_shape, layout):
    """Defect 1: under batch:x a gain got the gradient of one slice of the batch only."""
    x, gain, upstream = draw(BATCH, EMBD), draw(EMBD), draw(BATCH, EMBD, seed=9)[0]

    got = value_and_gradients(
        mesh_shape, layout, [x, gain], lambda _, *tensors: scaled_tanh(*tensors), upstream
    )

    y = np.tanh(x[0] * gain[0])
    inner = upstream * (1 - y**2)
    assert_all_close(got, [y, inner * gain[0], (inner * x[0]).sum(0)], 1e-6)


@on_all_layouts
def test_tensor_shared_by_chained_kernels_is_counted_once_each(mesh_shape, layout):
    """Defect 2: f(h(x, g), g) counted the path through h twice."""
    x, gain, upstream = draw(BATCH, EMBD), draw(EMBD), draw(BATCH, EMBD, seed=9)[0]

    def chained(_, x, gain):
        return scaled_tanh(scaled_tanh(x, gain), gain)

    got = value_and_gradients(mesh_shape, layout, [x, gain], chained, upstream)

    inner = np.tanh(x[0] * gain[0])
    outer = np.tanh(inner * gain[0])
    d_outer = upstream * (1 - outer**2)
    d_inner = d_outer * gain[0] * (1 - inner**2)
    d_gain = (d_outer * inner + d_inner * x[0]).sum(0)
    assert_all_close(got, [outer, d_inner * gain[0], d_gain], 1e-6)


@on_all_layouts
def test_input_that_depends_on_another_input_is_counted_once(mesh_shape, layout):
    """Defect 2 again: f(x, h(x))."""
    x, upstream = draw(BATCH, EMBD), draw(BATCH, EMBD, seed=9)[0]

    got = value_and_gradients(
        mesh_shape, layout, [x], lambda _, x: scaled_tanh(x, scaled_tanh(x, x)), upstream
    )

    inner = np.tanh(x[0] ** 2)
    outer = np.tanh(x[0] * inner)
    d_product = upstream * (1 - outer**2)
    d_x = d_product * inner + d_product * x[0] * (1 - inner**2) * 2 * x[0]
    assert_all_close(got, [outer, d_x], 1e-6)


@on_all_layouts
def test_lazily_reduced_inputs_and_gradients(mesh_shape, layout):
    """Defect 3: an einsum over a split dimension before or behind a kernel crashed.

    The einsum before it sums over embd; the gradient of the one behind it sums over batch and,
    for the kernel's own gradient, over vocab.
    """
    wide = mtf.Dimension("intermediate_expanded", 3)
    x, into, gain = draw(BATCH, EMBD), draw(EMBD, VOCAB), draw(VOCAB)
    out, upstream = draw(VOCAB, wide, seed=3), draw(BATCH, wide, seed=9)[0]

    def sandwich(_, x, into, gain, out):
        hidden = mtf.einsum([x, into], mtf.Shape([BATCH, VOCAB]))
        return mtf.einsum([scaled_tanh(hidden, gain), out], mtf.Shape([BATCH, wide]))

    got = value_and_gradients(mesh_shape, layout, [x, into, gain, out], sandwich, upstream)

    hidden = x[0] @ into[0]
    middle = np.tanh(hidden * gain[0])
    d_product = (upstream @ out[0].T) * (1 - middle**2)
    d_hidden = d_product * gain[0]
    expected = [
        middle @ out[0],
        d_hidden @ into[0].T,
        x[0].T @ d_hidden,
        (d_product * hidden).sum(0),
        middle.T @ upstream,
    ]
    assert_all_close(got, expected, 2e-6)


@on_all_layouts
def test_only_outputs_without_a_summed_dim_are_added_up(mesh_shape, layout):
    """A row sum needs adding over embd's slices; the squares beside it do not."""
    x = draw(BATCH, EMBD)
    d_sums, d_squares = draw(BATCH, seed=4), draw(BATCH, EMBD, seed=9)

    def build(_, x, d_sums, d_squares):
        rows = mtf.Shape([BATCH])
        sums, squares = kernel(
            lambda a: (tf.reduce_sum(a * a * a, -1), a * a),
            [x],
            [(rows, x.dtype), (x.shape, x.dtype)],
            splittable=[BATCH],
            summed_dims=[EMBD],
            name="sums",
        )
        loss = mtf.reduce_sum(sums * d_sums) + mtf.reduce_sum(squares * d_squares)
        return [sums, squares, *mtf.gradients([loss], [x])]

    got = run_named(mesh_shape, layout, [x, d_sums, d_squares], build)

    d_x = d_sums[0][:, None] * 3 * x[0] ** 2 + d_squares[0] * 2 * x[0]
    assert_all_close(got, [(x[0] ** 3).sum(-1), x[0] ** 2, d_x], 1e-6)


def softmax_over_embd(x: mtf.Tensor) -> mtf.Tensor:
    [y] = kernel(tf.nn.softmax, [x], [(x.shape, x.dtype)], splittable=[BATCH], name="softmax")
    return y


def test_split_of_an_unsplittable_dimension_is_refused():
    with pytest.raises(ValueError) as caught:
        run_named(
            "x:2,y:2", "batch:x,embd:y", [draw(BATCH, EMBD)], lambda _, x: [softmax_over_embd(x)]
        )
    assert str(caught.value) == (
        "dimension embd of softmax must not be split; got a layout that puts it on mesh axis y. "
        "Remove embd from layout."
    )


def test_split_of_a_splittable_dimension_beside_an_unsplittable_one_is_not():
    x = draw(BATCH, EMBD)
    [got] = run_named("x:4", "batch:x", [x], lambda _, x: [softmax_over_embd(x)])
    exponentials = np.exp(x[0])
    np.testing.assert_allclose(got, exponentials / exponentials.sum(-1, keepdims=True), atol=1e-6)


def test_no_gradient_flows_through_a_kernel_that_has_none():
    def build(_, x):
        [y] = kernel(
            tf.square, [x], [(x.shape, x.dtype)], x.shape.dims, "square", differentiable=False
        )
        assert not y.operation.has_gradient
        assert mtf.gradients([mtf.reduce_sum(y)], [x]) == [None]
        # Beside another path only the other one counts.
        return mtf.gradients([mtf.reduce_sum(y + 3.0 * x)], [x])

    [gradient] = run_named("x:2", "batch:x", [draw(BATCH, EMBD)], build)
    np.testing.assert_array_equal(gradient, np.full([12, 4], 3.0, np.float32))


def test_integer_inputs_get_no_gradient():
    ids = np.arange(12, dtype=np.int32), [BATCH]

    def build(_, x, ids):
        [y] = kernel(
            lambda a, i: a * tf.cast(i, tf.float32)[:, tf.newaxis],
            [x, ids],
            [(x.shape, x.dtype)],
            x.shape.dims,
            "times",
        )
        d_x, d_ids = mtf.gradients([mtf.reduce_sum(y)], [x, ids])
        assert d_ids is None
        return [d_x]

    [gradient] = run_named("x:4", "batch:x", [draw(BATCH, EMBD), ids], build)
    np.testing.assert_array_equal(gradient, np.repeat(np.arange(12.0)[:, None], 4, 1))


@on_all_layouts
def test_explicit_gradient_sees_outputs_and_is_summed_over_the_mesh(mesh_shape, layout):
    x, gain, upstream = draw(BATCH, EMBD), draw(EMBD), draw(BATCH, EMBD, seed=9)[0]

    def gradient(xs, ys, dys):
        # Deliberately not the true one: it must be this that is used.
        return [10.0 * ys[0] * dys[0], tf.reduce_sum(xs[0] * dys[0], 0)]

    def product(_, x, gain):
        [y] = kernel(
            lambda a, b: a * b,
            [x, gain],
            [(x.shape, x.dtype)],
            x.shape.dims,
            "product",
            gradient=gradient,
            keeps_outputs=True,
        )
        return y

    got = value_and_gradients(mesh_shape, layout, [x, gain], product, upstream)

    y = x[0] * gain[0]
    assert_all_close(got, [y, 10 * y * upstream, (x[0] * upstream).sum(0)], 1e-6)


def test_gradient_of_an_unused_output_is_none_for_an_explicit_gradient():
    seen = []

    def gradient(xs, ys, dys):
        assert not ys  # the kernel does not keep them
        seen.append([dy is None for dy in dys])
        return [dys[1]]

    def build(_, x):
        _, copy = kernel(
            lambda a: (a, a),
            [x],
            [(x.shape, x.dtype)] * 2,
            x.shape.dims,
            "twice",
            gradient=gradient,
        )
        return mtf.gradients([mtf.reduce_sum(copy * 2.0)], [x])

    [got] = run_named("x:2", "batch:x", [draw(BATCH, EMBD)], build)
    np.testing.assert_array_equal(got, np.full([12, 4], 2.0, np.float32))
    assert seen == [[True, False]] * 2  # one call per slice


def test_unused_output_without_an_explicit_gradient():
    x = draw(BATCH, EMBD)

    def build(_, x):
        _, square = kernel(
            lambda a: (tf.exp(a), a * a), [x], [(x.shape, x.dtype)] * 2, x.shape.dims, "two"
        )
        return mtf.gradients([mtf.reduce_sum(square)], [x])

    [got] = run_named("x:2", "embd:x", [x], build)
    np.testing.assert_allclose(got, 2 * x[0], atol=1e-6)


def test_traffic_of_the_gradient_is_counted():
    """The counters that mtf keeps of its own operations hold the kernels' all-reduces too."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        x, gain = (
            mtf.import_tf_tensor(mesh, tf.constant(array), mtf.Shape(dims))
            for array, dims in (draw(BATCH, EMBD), draw(EMBD))
        )
        y = scaled_tanh(x, gain)
        assert isinstance(y.operation, KernelOperation)
        [d_gain] = mtf.gradients([mtf.reduce_sum(y)], [gain])
        implementation = mesh_layout("x:4", "batch:x").placement(list(cpus(4)))
        lowering = mtf.Lowering(graph, {mesh: implementation})
        lowering.export_to_tf_tensor(d_gain)
        # Four processors hold 4 values each.
        assert dict(lowering.counters)["allreduce/[0]/kernel"] == 16


def test_a_summed_dimension_on_the_axis_of_one_that_stays_is_refused():
    with pytest.raises(ValueError, match=r"embedding_lookup sums over must not share a mesh axis"):
        run_named("x:2", "batch:x,embd:x", [draw(EMBD, VOCAB), draw(BATCH)], lookup_of_batch)


def lookup_of_batch(_, table, x):
    """Rows of a table by ids: the rows' dimension is summed over, the batch stays."""
    return [embedding_lookup(table, mtf.cast(x * 0.0, tf.int32))]


# ---- tensors that are made again for gradients -------------------------------------------------


@pytest.mark.parametrize(("mesh_shape", "layout"), [("x:1", ""), ("x:2,y:2", "batch:x,embd:y")])
@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_cheap_is_made_again_behind_the_gradient(mesh_shape, layout, compiled, monkeypatch):
    """A product's gradient reads its own copy of a hidden layer, and gradients stay the same."""
    if compiled:  # else these are too small
        monkeypatch.setattr(fusion, "MIN_ELEMENTS", 1)
    random = np.random.default_rng(5)
    x, by = (random.normal(size=shape).astype(np.float32) for shape in ((4, 8), (8, 6)))
    upstream = random.normal(size=(4, 6)).astype(np.float32)
    batch, embd, out = (mtf.Dimension(*x) for x in (("batch", 4), ("embd", 8), ("out", 6)))
    waited_for = []

    def tanh(x):
        y = tf.tanh(x)
        waited_for.append(bool(x.op.control_inputs))
        return y

    def build(_, x, by):
        [hidden] = kernel(
            tanh, [x], [(x.shape, x.dtype)], x.shape.dims, "hidden", fusion="tanh", cheap=True
        )
        return matmul(hidden, by, [out])

    inputs = [(x, [batch, embd]), (by, [embd, out])]
    got = value_and_gradients(mesh_shape, layout, inputs, build, upstream)
    hidden = np.tanh(x)
    d_x = upstream @ by.T * (1 - hidden**2)
    assert_all_close(got, [hidden @ by, d_x, hidden.T @ upstream], 1e-6)
    slices = 4 if layout else 1
    if not compiled:  # forward, made again, and once more within the gradient of its own
        assert waited_for == [False] * slices + [True] * 2 * slices
