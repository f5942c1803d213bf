"""Estimated memory of a training step against what TensorFlow's allocator records in a real one."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from inspection.measure import measure
from model_fns import ModeKeys, Placement, make_model_fn
from models.kernels import fusion
from tests.support import make_config
from utils.devices import session_config
from utils.garbage import no_garbage_collection
from utils.mesh import MeshLayout

SIZES = {
    "n_layer": 4,
    "n_embd": 96,
    "n_head": 4,
    "n_ctx": 64,
    "n_vocab": 101,
    "train_batch_size": 16,
    "eval_batch_size": 16,
    "attention_types": [[["global"], 4]],
}
MICROBATCHES = {"tokens_per_mb_per_replica": 256}  # 4 of 16 sequences
VARIANTS = {
    "plain": {},
    "recomputed": {"recompute_grad": True},
    "microbatches": MICROBATCHES,
    "both": MICROBATCHES | {"recompute_grad": True},
    "bfloat16": {"precision": "bfloat16"},
}


@pytest.fixture(scope="module", autouse=True)
def plain_kernels():
    """The allocator's records leave out what compiled programs write."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusion, "MIN_ELEMENTS", 1 << 40)
        yield


@functools.cache
def estimated(variant):
    return measure(make_config(**SIZES, **VARIANTS[variant]))


def measured_peak(config):
    """Most bytes allocated at once in one step, beside variables."""
    with no_garbage_collection(), tf.Graph().as_default():
        shape = [config.train_batch_size, config.n_ctx]
        inputs, labels = (tf.compat.v1.placeholder(tf.int32, shape) for _ in range(2))
        model_fn = make_model_fn(config, Placement(MeshLayout.from_config(config), ("",)))
        spec = model_fn({"inputs": inputs}, labels, ModeKeys.TRAIN, {})
        session_options = session_config(("",))
        # As on two cores. A single thread takes what became ready last, and puts off sums.
        session_options.inter_op_parallelism_threads = 2
        session_options.intra_op_parallelism_threads = 1
        feed = {tensor: np.ones(shape, np.int32) for tensor in (inputs, labels)}
        metadata = tf.compat.v1.RunMetadata()
        with tf.compat.v1.Session(config=session_options) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(spec.train_op, feed)  # the first step plans
            trace = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
            session.run(spec.train_op, feed, options=trace, run_metadata=metadata)
    changes = sorted(
        (record.alloc_micros, record.alloc_bytes)
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        for memory in node.memory
        for record in memory.allocation_records
    )
    return max(np.cumsum([change for _, change in changes]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_estimate_is_what_a_step_takes(variant):
    run = estimated(variant)
    assert run.memory.peak == pytest.approx(measured_peak(run.config), rel=0.15)


def test_recomputation_and_microbatches_lower_the_estimate():
    peaks = {variant: estimated(variant).memory.peak for variant in VARIANTS}
    weights = estimated("plain").weight_bytes
    assert peaks["recomputed"] < 0.6 * peaks["plain"]
    # A quarter of the activations, and the sums of the gradients.
    assert peaks["microbatches"] == pytest.approx(0.25 * peaks["plain"] + weights, rel=0.1)
    assert peaks["both"] < min(peaks["recomputed"], peaks["microbatches"])
    assert 0.5 < peaks["bfloat16"] / peaks["plain"] < 0.65  # the softmax of the loss is float32


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_exact(variant):
    run = estimated(variant)
    assert run.memory.gradients == run.weight_bytes


def test_arithmetic_of_microbatches_and_of_recomputation():
    plain, recomputed, both = (estimated(name).flops for name in ("plain", "recomputed", "both"))
    assert estimated("microbatches").flops.forward == plain.forward
    assert estimated("microbatches").flops.backward == pytest.approx(plain.backward, rel=1e-2)
    # The blocks run again, the head does not.
    head = 2 * 16 * 64 * 96 * 101
    assert recomputed.forward == plain.forward
    assert recomputed.backward == plain.backward + plain.forward - head
    assert both.forward == plain.forward
    assert both.backward == pytest.approx(recomputed.backward, rel=1e-2)
