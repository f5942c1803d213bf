"""Entmax and its loss against bisection in numpy, float64, and against finite differences."""

import numpy as np
import pytest
import tensorflow as tf

from models.dimensions import Dimensions
from models.kernels.entmax import ALPHA, entmax, log_entmax
from models.losses import IGNORED, entmax_loss
from tests.support import assert_all_close, make_config, run_tf, value_and_gradients
from utils.mesh_tensorflow import mtf

DIMS = Dimensions.from_config(make_config(n_ctx=6, n_vocab=20), batch_size=4)
BATCH, SEQUENCE, VOCAB = DIMS.batch, DIMS.sequence, DIMS.vocab
RANDOM = np.random.default_rng(6)
LOGITS = RANDOM.normal(0, 3, size=(4, 6, 20)).astype(np.float32)
TARGETS = RANDOM.permutation([0, 4, 5, 9, 10, 14, 15, 19] * 3).reshape(4, 6).astype(np.int32)
UPSTREAM = RANDOM.normal(size=(4, 6)).astype(np.float32)


def bisected(logits: np.ndarray, alpha: float = 1.3) -> np.ndarray:
    """Entmax in float64; the threshold lies between those of one and of equal probabilities."""
    x = (alpha - 1) * logits.astype(np.float64)
    top = x.max(-1, keepdims=True)
    low, high = top - 1.0, top - x.shape[-1] ** (1.0 - alpha)
    for _ in range(100):
        middle = (low + high) / 2
        total = (np.maximum(x - middle, 0) ** (1 / (alpha - 1))).sum(-1, keepdims=True)
        low, high = np.where(total >= 1, middle, low), np.where(total >= 1, high, middle)
    return np.maximum(x - low, 0) ** (1 / (alpha - 1))


def reference_loss(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """max over p of p z + H(p), which entmax attains, less the target's logit; float64."""
    z, p = logits.astype(np.float64), bisected(logits)
    entropy = (p - p**1.3).sum(-1) / (1.3 * 0.3)
    return (p * z).sum(-1) + entropy - np.take_along_axis(z, targets[..., None], -1)[..., 0]


def hard_rows() -> np.ndarray:
    """Rows of 50,257 logits from flat to peaked, with many and few tokens near the threshold."""
    random, count = np.random.default_rng(0), 50257
    rows = [random.normal(0, scale, count) for scale in (0, 0.01, 0.3, 1, 2, 5, 50)]
    rows += [-np.log(np.arange(1, count + 1)) * power for power in (0.3, 1, 2)]
    rows.append(-np.abs(random.standard_cauchy(count)))
    for depth in (0.3, 1.0, 2.5, 3.2, 3.4):
        rows.append(np.where(np.arange(count) == 9, 0.0, -depth))
    rows.append(-random.choice([0.5, 1.5, 2, 2.5, 3, 3.2, 3.3], count, p=np.arange(1, 8) / 28))
    rows.append(rows[3] + 1e4)
    return np.stack(rows).astype(np.float32)


def test_entmax_equals_bisection():
    assert ALPHA == 1.3
    logits = hard_rows()
    got, logs = run_tf(lambda: (entmax(tf.constant(logits)), log_entmax(tf.constant(logits))))
    expected = bisected(logits)
    assert np.abs(expected.sum(-1) - 1).max() < 1e-9
    np.testing.assert_allclose(got.sum(-1, dtype=np.float64), 1, rtol=0, atol=5e-6)
    assert np.abs(got - expected).sum(-1).max() < 5e-6
    np.testing.assert_array_equal(logs == logs.min(), got == 0)
    np.testing.assert_allclose(np.exp(logs), got, rtol=1e-5)


def test_entmax_is_sparse_and_keeps_the_order():
    logits = np.random.default_rng(1).normal(0, 4, (50, 300)).astype(np.float32)
    got = run_tf(lambda: entmax(tf.constant(logits)))
    share = (got > 0).mean()
    assert 0.01 < share < 0.4
    order = np.argsort(-logits, -1)
    assert (np.diff(np.take_along_axis(got, order, -1), axis=-1) <= 0).all()
    assert (got.max(-1) > 0).all()


def test_a_far_largest_logit_takes_all():
    logits = np.array([[0.0, 5.0, -1.0, 1.0], [1e30, 0.0, 0.0, -1e30]], np.float32)
    got = run_tf(lambda: entmax(tf.constant(logits)))
    np.testing.assert_array_equal(got, [[0, 1, 0, 0], [1, 0, 0, 0]])


def loss_and_gradient(mesh_shape, layout, logits, targets, upstream):
    inputs = [(logits, [BATCH, SEQUENCE, VOCAB]), (targets, [BATCH, SEQUENCE])]
    return value_and_gradients(
        mesh_shape, layout, inputs, lambda split, x, t: entmax_loss(x, t, DIMS), upstream
    )


@pytest.mark.parametrize(
    ("mesh_shape", "layout"),
    [
        ("x:1", ""),
        ("x:4", "vocab:x"),
        ("x:2,y:2", "batch:x,vocab:y"),
        ("x:2,y:2", "sequence:x,vocab:y"),
    ],
)
def test_loss_and_gradient(mesh_shape, layout):
    got = loss_and_gradient(mesh_shape, layout, LOGITS, TARGETS, UPSTREAM)
    gradient = (bisected(LOGITS) - np.eye(20)[TARGETS]) * UPSTREAM[..., None]
    assert_all_close(got, [reference_loss(LOGITS, TARGETS), gradient], 1e-6)
    assert got[0].max() > 5  # although some of these targets have the probability 0
    assert (np.take_along_axis(bisected(LOGITS), TARGETS[..., None], -1) == 0).any()


def test_gradient_equals_finite_differences():
    """Of the reference itself, so that the loss and p - y are known to belong together."""
    gradient = loss_and_gradient("x:1", "", LOGITS, TARGETS, np.ones_like(UPSTREAM))[1]
    z = LOGITS.astype(np.float64)
    for token in range(20):
        step = np.zeros(20)
        step[token] = 1e-5
        slope = (reference_loss(z + step, TARGETS) - reference_loss(z - step, TARGETS)) / 2e-5
        np.testing.assert_allclose(gradient[..., token], slope, rtol=0, atol=1e-6)


def test_loss_is_zero_where_the_target_has_all_probability_and_positive_elsewhere():
    logits = LOGITS.copy()
    np.put_along_axis(logits, TARGETS[..., None], 30.0, -1)
    loss, gradient = loss_and_gradient("x:1", "", logits, TARGETS, UPSTREAM)
    assert (loss == 0).all()
    assert (gradient == 0).all()
    assert loss_and_gradient("x:1", "", LOGITS, TARGETS, UPSTREAM)[0].min() >= -1e-6


def test_ignored_labels_do_not_count():
    targets = np.where(np.arange(6) % 2, TARGETS, IGNORED)
    loss, gradient = loss_and_gradient("x:1", "", LOGITS, targets, UPSTREAM)
    full = loss_and_gradient("x:1", "", LOGITS, TARGETS, UPSTREAM)
    np.testing.assert_array_equal(loss, full[0] * (targets >= 0))
    np.testing.assert_array_equal(gradient, full[1] * (targets >= 0)[..., None])


def test_extreme_logits_are_finite():
    logits = (LOGITS * 1e6).astype(np.float32)
    loss, gradient = loss_and_gradient("x:1", "", logits, TARGETS, UPSTREAM)
    assert np.isfinite(loss).all()
    assert np.isfinite(gradient).all()


def test_bfloat16_logits_are_worked_on_in_float32():
    inputs = [(LOGITS, [BATCH, SEQUENCE, VOCAB]), (TARGETS, [BATCH, SEQUENCE])]
    loss, gradient = value_and_gradients(
        "x:1",
        "",
        inputs,
        lambda split, x, t: entmax_loss(mtf.cast(x, tf.bfloat16), t, DIMS),
        UPSTREAM,
    )
    rounded = run_tf(lambda: tf.cast(tf.cast(tf.constant(LOGITS), tf.bfloat16), tf.float32))
    assert_all_close([loss], [reference_loss(rounded, TARGETS)], 1e-6)
    expected = (bisected(rounded) - np.eye(20)[TARGETS]) * UPSTREAM[..., None]
    assert_all_close([gradient], [expected], 0.01)
