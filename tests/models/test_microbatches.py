"""Losses, gradients and norms of microbatches against numpy, under layouts."""

import numpy as np
import pytest
import tensorflow as tf

from models.microbatches import differentiate
from tests.support import assert_all_close, cpus, mesh_layout, quick_session_config
from utils.mesh_tensorflow import mtf

BATCH, EMBD, SPLITS = mtf.Dimension("batch", 12), mtf.Dimension("embd", 10), 3
RANDOM = np.random.default_rng(3)
ROWS = RANDOM.normal(size=[12, 10]).astype(np.float32)
WEIGHTS = RANDOM.normal(size=[10]).astype(np.float32)
LAYOUTS = [("x:1", ""), ("x:2", "batch:x"), ("x:2,y:2", "batch:x,embd:y")]


def found(mesh_shape, layout, splits, measures):
    """Loss, gradient and, if it is measured, the mean square of microbatches."""
    split = mesh_layout(mesh_shape, layout)
    devices = cpus(split.size)
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        initial = tf.constant_initializer(WEIGHTS)
        weight = mtf.get_variable(mesh, "weight", mtf.Shape([EMBD]), initializer=initial)
        rows = mtf.import_tf_tensor(mesh, tf.constant(ROWS), mtf.Shape([BATCH, EMBD]))

        def part_loss(part):
            scores = mtf.reduce_sum(part["rows"] * weight, reduced_dim=EMBD)
            return mtf.reduce_sum(mtf.square(mtf.square(scores))) / 12

        result = differentiate(part_loss, {"rows": rows}, BATCH, splits, measures)
        square = result.microbatch_square
        outputs = [result.loss, *result.gradients, *([] if square is None else [square])]
        lowering = mtf.Lowering(graph, {mesh: split.placement(list(devices))}, autostack=False)
        fetches = [lowering.export_to_tf_tensor(output) for output in outputs]
        with tf.compat.v1.Session(config=quick_session_config(devices)) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(lowering.copy_masters_to_slices())
            return session.run(fetches)


def expected():
    rows, weights = ROWS.astype(np.float64), WEIGHTS.astype(np.float64)
    scores = rows @ weights
    gradients = 4 * scores[:, None] ** 3 * rows
    parts = [gradients[first::SPLITS].mean(0) for first in range(SPLITS)]
    square = np.mean([part @ part for part in parts])
    mean_norm = np.mean([np.linalg.norm(part) for part in parts])
    assert square > 1.1 * mean_norm**2  # it is no square of a mean
    return [np.mean(scores**4), gradients.mean(0), np.array(square)]


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_against_numpy(mesh_shape, layout):
    got = found(mesh_shape, layout, SPLITS, True)
    for value, wanted in zip(got, expected()):
        np.testing.assert_allclose(value, wanted, rtol=2e-6, atol=1e-6 * np.abs(wanted).max())


def test_measuring_leaves_the_gradients_to_the_bit():
    measured, plain = (found("x:2", "batch:x", SPLITS, measures) for measures in (True, False))
    for value, wanted in zip(measured, plain):
        np.testing.assert_array_equal(value, wanted)


def test_one_batch_at_once():
    assert_all_close(found("x:2", "batch:x", 1, False), expected()[:2], 1e-6)
