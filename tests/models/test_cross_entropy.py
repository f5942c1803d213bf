"""Cross entropy and z-loss against numpy in float64, with the vocabulary whole and split."""

import numpy as np
import pytest

from models.dimensions import Dimensions
from models.kernels.cross_entropy import log_normalizer_and_target
from models.losses import softmax_cross_entropy
from tests.support import assert_all_close, make_config, run_named, value_and_gradients

DIMS = Dimensions.from_config(make_config(n_ctx=6, n_vocab=20), batch_size=4)
BATCH, SEQUENCE, VOCAB = DIMS.batch, DIMS.sequence, DIMS.vocab
LAYOUTS = [
    ("x:1", ""),
    ("x:4", "batch:x"),
    ("x:4", "vocab:x"),
    ("x:2,y:2", "batch:x,vocab:y"),
    ("x:2,y:2", "sequence:x,vocab:y"),
    ("x:2,y:2", "batch:x,sequence:y"),
]
on_all_layouts = pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
RANDOM = np.random.default_rng(6)
LOGITS = RANDOM.normal(0, 3, size=(4, 6, 20)).astype(np.float32)
# The ends of every slice among them.
TARGETS = RANDOM.permutation([0, 4, 5, 9, 10, 14, 15, 19] * 3).reshape(4, 6).astype(np.int32)
UPSTREAM = RANDOM.normal(size=(4, 6)).astype(np.float32)


def reference(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, ...]:
    """(log Z, target logit, probabilities, one-hot targets) in float64."""
    x = logits.astype(np.float64)
    top = x.max(-1, keepdims=True)
    exponentials = np.exp(x - top)
    total = exponentials.sum(-1, keepdims=True)
    target = np.take_along_axis(x, targets[..., None], -1)[..., 0]
    return (np.log(total) + top)[..., 0], target, exponentials / total, np.eye(20)[targets]


def loss_and_gradient(mesh_shape, layout, logits, targets, upstream, z_loss):
    return value_and_gradients(
        mesh_shape,
        layout,
        [(logits, [BATCH, SEQUENCE, VOCAB]), (targets, [BATCH, SEQUENCE])],
        lambda split, x, t: softmax_cross_entropy(x, t, DIMS, split, z_loss).total,
        upstream,
    )


@on_all_layouts
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_loss_and_gradient(mesh_shape, layout, z_loss):
    got = loss_and_gradient(mesh_shape, layout, LOGITS, TARGETS, UPSTREAM, z_loss)
    log_z, target, probabilities, one_hot = reference(LOGITS, TARGETS)
    loss = log_z - target + z_loss * log_z**2
    gradient = probabilities * (1 + 2 * z_loss * log_z)[..., None] - one_hot
    assert_all_close(got, [loss, gradient * UPSTREAM[..., None]], 1e-6)


def test_cross_entropy_is_reported_without_z_loss():
    inputs = [(LOGITS, [BATCH, SEQUENCE, VOCAB]), (TARGETS, [BATCH, SEQUENCE])]
    total, cross_entropy = run_named(
        "x:1", "", inputs, lambda split, x, t: softmax_cross_entropy(x, t, DIMS, split, 0.3)
    )
    log_z, target, _, _ = reference(LOGITS, TARGETS)
    assert_all_close([cross_entropy], [log_z - target], 1e-6)
    assert_all_close([total], [log_z - target + 0.3 * log_z**2], 1e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), [LAYOUTS[0], LAYOUTS[2], LAYOUTS[3]])
@pytest.mark.parametrize("output", [0, 1])
def test_each_of_the_two_numbers_has_its_own_gradient(mesh_shape, layout, output):
    got = value_and_gradients(
        mesh_shape,
        layout,
        [(LOGITS, [BATCH, SEQUENCE, VOCAB]), (TARGETS, [BATCH, SEQUENCE])],
        lambda split, x, t: log_normalizer_and_target(x, t, VOCAB, split.slices(VOCAB))[output],
        UPSTREAM,
    )
    log_z, target, probabilities, one_hot = reference(LOGITS, TARGETS)
    value, gradient = [(log_z, probabilities), (target, one_hot)][output]
    assert_all_close(got, [value, gradient * UPSTREAM[..., None]], 1e-6)


@on_all_layouts
def test_extreme_logits(mesh_shape, layout):
    """Huge, tiny, all equal, and one of the largest size on either side of a slice."""
    logits = np.zeros((4, 6, 20), np.float32)
    logits[0] = 1e4
    logits[1] = -1e4
    logits[2] = -1e4
    logits[2, np.arange(6), TARGETS[2]] = 1e4  # certain and right
    logits[3, :, ::3] = 1e4  # certain of others
    logits[3, :, 1::3] = -1e4
    got = loss_and_gradient(mesh_shape, layout, logits, TARGETS, np.ones((4, 6), np.float32), 0.0)
    log_z, target, probabilities, one_hot = reference(logits, TARGETS)
    assert all(np.isfinite(array).all() for array in got)
    # Numbers of 1e4 have steps of 1e-3 in float32, and so have the normalisers of the slices.
    np.testing.assert_allclose(got[0], log_z - target, atol=2e-3)
    np.testing.assert_allclose(got[1], probabilities - one_hot, atol=2e-4)
    np.testing.assert_allclose(got[0][:2], np.log(20), atol=2e-3)
    np.testing.assert_allclose(got[0][2], 0.0, atol=1e-6)
