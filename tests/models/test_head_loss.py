"""Output layer, loss and gradients in one operation, against numpy in float64."""

import numpy as np
import pytest
import tensorflow as tf

from models.kernels import fusion, head_loss
from tests.support import assert_all_close, run_named
from utils.mesh_tensorflow import mtf

BATCH, SEQUENCE = mtf.Dimension("batch", 4), mtf.Dimension("sequence", 6)
EMBD, VOCAB = mtf.Dimension("embd", 8), mtf.Dimension("vocab", 20)
LAYOUTS = [
    ("x:1", ""),
    ("x:2", "batch:x"),
    ("x:4", "vocab:x"),
    ("x:4", "embd:x"),
    ("x:2,y:2", "sequence:x,vocab:y"),
    ("x:2,y:2", "vocab:x,embd:y"),
    ("x:2,y:2,z:2", "batch:x,vocab:y,embd:z"),
]
RANDOM = np.random.default_rng(8)
HIDDEN = RANDOM.normal(size=(4, 6, 8)).astype(np.float32)
WEIGHT = RANDOM.normal(size=(20, 8)).astype(np.float32)
BIAS = RANDOM.normal(size=20).astype(np.float32)
# The ends of every slice among them.
TARGETS = RANDOM.permutation([0, 4, 5, 9, 10, 14, 15, 19] * 3).reshape(4, 6).astype(np.int32)
TOKEN_WEIGHTS = (RANDOM.random((4, 6)) * (np.arange(24).reshape(4, 6) % 5 > 0)).astype(np.float32)


def reference(hidden, weight, bias, targets, token_weights, z_loss):
    """Loss, and its gradients by hidden, weight and bias."""
    hidden, weight, bias = (x.astype(np.float64) for x in (hidden, weight, bias))
    logits = hidden @ weight.T + bias
    top = logits.max(-1, keepdims=True)
    log_z = np.log(np.exp(logits - top).sum(-1, keepdims=True)) + top
    one_hot = np.eye(20)[targets]
    losses = (log_z - (logits * one_hot).sum(-1, keepdims=True) + z_loss * log_z**2)[..., 0]
    d_logits = np.exp(logits - log_z) * (1 + 2 * z_loss * log_z) - one_hot
    d_logits *= token_weights[..., None]
    d_weight = np.einsum("bsv,bse->ve", d_logits, hidden)
    return (losses * token_weights).sum(), d_logits @ weight, d_weight, d_logits.sum((0, 1))


def loss_and_gradients(
    mesh_shape="x:1",
    layout="",
    hidden=HIDDEN,
    targets=TARGETS,
    z_loss=0.0,
    vocab_first=True,
    scale=1.0,
    dtype=tf.float32,
):
    """``scale`` times the loss, and its gradients by hidden, weight [vocab, embd] and bias."""
    weight = (WEIGHT, [VOCAB, EMBD]) if vocab_first else (WEIGHT.T, [EMBD, VOCAB])
    inputs = [
        (hidden, [BATCH, SEQUENCE, EMBD]),
        weight,
        (BIAS, [VOCAB]),
        (targets, [BATCH, SEQUENCE]),
        (TOKEN_WEIGHTS, [BATCH, SEQUENCE]),
    ]

    def build(split, hidden, weight, bias, targets, token_weights):
        loss = head_loss.head_loss(
            mtf.cast(hidden, dtype), weight, bias, targets, token_weights, VOCAB, z_loss
        )
        return [loss, *mtf.gradients([loss * scale], [hidden, weight, bias])]

    loss, d_hidden, d_weight, d_bias = run_named(mesh_shape, layout, inputs, build)
    return loss, d_hidden, d_weight if vocab_first else d_weight.T, d_bias


@pytest.fixture(params=[False, True], ids=["plain", "fused"])
def compiled(request, monkeypatch):
    """Both ways of running what lies between the products."""
    monkeypatch.setattr(fusion, "MIN_ELEMENTS", 0 if request.param else 1 << 40)


@pytest.fixture(params=[1 << 30, 5 * 80], ids=["one chunk", "chunks of 5 tokens and a rest"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(head_loss, "CHUNK_BYTES", request.param)


@pytest.mark.parametrize(("mesh_shape", "layout"), LAYOUTS)
def test_loss_and_gradients_under_every_layout(mesh_shape, layout, chunks):
    got = loss_and_gradients(mesh_shape, layout, z_loss=0.1)
    assert_all_close(got, reference(HIDDEN, WEIGHT, BIAS, TARGETS, TOKEN_WEIGHTS, 0.1), 2e-6)


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("vocab_first", [True, False])
def test_loss_and_gradients(z_loss, vocab_first, chunks, compiled):
    got = loss_and_gradients(z_loss=z_loss, vocab_first=vocab_first)
    assert_all_close(got, reference(HIDDEN, WEIGHT, BIAS, TARGETS, TOKEN_WEIGHTS, z_loss), 2e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), [LAYOUTS[0], LAYOUTS[-1]])
def test_gradients_are_scaled_by_that_of_the_loss(mesh_shape, layout):
    _, *gradients = loss_and_gradients(mesh_shape, layout, scale=-3.0)
    _, *expected = reference(HIDDEN, WEIGHT, BIAS, TARGETS, TOKEN_WEIGHTS, 0.0)
    assert_all_close(gradients, [-3.0 * x for x in expected], 5e-6)


@pytest.mark.parametrize(("mesh_shape", "layout"), [LAYOUTS[0], LAYOUTS[2], LAYOUTS[3]])
def test_extreme_logits_stay_finite(mesh_shape, layout, compiled):
    hidden = HIDDEN * np.float32(3e3)
    got = loss_and_gradients(mesh_shape, layout, hidden)
    expected = reference(hidden, WEIGHT, BIAS, TARGETS, TOKEN_WEIGHTS, 0.0)
    assert all(np.isfinite(x).all() for x in got)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)


def test_ignored_targets_have_no_gradient(compiled):
    targets = np.where(TOKEN_WEIGHTS == 0, -1, TARGETS)
    assert (targets == -1).any()
    got = loss_and_gradients(targets=targets)
    expected = reference(HIDDEN, WEIGHT, BIAS, TARGETS, TOKEN_WEIGHTS, 0.0)
    assert_all_close(got, expected, 2e-6)
    assert (got[1][TOKEN_WEIGHTS == 0] == 0).all()


@pytest.mark.parametrize(("mesh_shape", "layout"), [LAYOUTS[0], LAYOUTS[-1]])
def test_rounded_activations(mesh_shape, layout, chunks, compiled):
    """bfloat16 has 8 bits: sums of gradients are float32."""
    got = loss_and_gradients(mesh_shape, layout, dtype=tf.bfloat16)
    expected = reference(HIDDEN, WEIGHT, BIAS, TARGETS, TOKEN_WEIGHTS, 0.0)
    assert_all_close(got, expected, 2e-2)
    assert got[2].dtype == np.float32
