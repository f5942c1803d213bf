"""Cross entropy and z-loss of given logits against numpy, the vocabulary whole and split."""

import numpy as np
import pytest

from models.dimensions import Dimensions
from models.kernels.cross_entropy import most_likely
from models.losses import IGNORED, softmax_cross_entropy
from tests.support import assert_all_close, make_config, run_named

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


def reference(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(log Z, target logit) in float64."""
    x = logits.astype(np.float64)
    top = x.max(-1, keepdims=True)
    log_z = np.log(np.exp(x - top).sum(-1)) + top[..., 0]
    return log_z, np.take_along_axis(x, targets[..., None], -1)[..., 0]


def losses(mesh_shape, layout, logits, targets, z_loss):
    """(total, cross entropy), each [4, 6]."""
    inputs = [(logits, [BATCH, SEQUENCE, VOCAB]), (targets, [BATCH, SEQUENCE])]
    return run_named(
        mesh_shape,
        layout,
        inputs,
        lambda split, x, t: softmax_cross_entropy(x, t, DIMS, split, z_loss),
    )


@on_all_layouts
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_losses(mesh_shape, layout, z_loss):
    got = losses(mesh_shape, layout, LOGITS, TARGETS, z_loss)
    log_z, target = reference(LOGITS, TARGETS)
    cross_entropy = log_z - target
    assert_all_close(got, [cross_entropy + z_loss * log_z**2, cross_entropy], 1e-6)


def test_an_ignored_label_costs_nothing():
    targets = np.where(np.arange(24).reshape(4, 6) % 3 == 0, IGNORED, TARGETS)
    total, cross_entropy = losses("x:1", "", LOGITS, targets, 0.3)
    assert (total[targets == IGNORED] == 0).all() and (cross_entropy[targets == IGNORED] == 0).all()
    assert (cross_entropy[targets != IGNORED] > 0).all()


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
    got = losses(mesh_shape, layout, logits, TARGETS, 0.0)[1]
    log_z, target = reference(logits, TARGETS)
    assert np.isfinite(got).all()
    # Numbers of 1e4 have steps of 1e-3 in float32, and so have the normalisers of the slices.
    np.testing.assert_allclose(got, log_z - target, atol=2e-3)
    np.testing.assert_allclose(got[:2], np.log(20), atol=2e-3)
    np.testing.assert_allclose(got[2], 0.0, atol=1e-6)


@on_all_layouts
def test_the_most_likely_entry(mesh_shape, layout):
    """Of equal ones the first, in whichever slice it is."""
    logits = LOGITS.copy()
    logits[0, 0, [3, 4, 17]] = logits[1, 2, [9, 10]] = logits[3, 5, [19]] = 20.0
    [got] = run_named(
        mesh_shape,
        layout,
        [(logits, [BATCH, SEQUENCE, VOCAB])],
        lambda split, x: [most_likely(x, VOCAB, split.slices(VOCAB))],
    )
    np.testing.assert_array_equal(got, logits.argmax(-1))
    assert (got[0, 0], got[1, 2], got[3, 5]) == (3, 9, 19)
