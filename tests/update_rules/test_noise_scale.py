"""The gradient noise scale against numpy."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from tests.support import make_config
from update_rules.noise_scale import noise_scale
from utils.hooks import NOISE_METRICS
from utils.mesh_tensorflow import mtf, placement_mesh_impl

KEYS = {"train_batch_size": 12, "tokens_per_mb_per_replica": 40, "noise_scale_alpha": 0.2}
STATE = [f"measurements/noise_scale/{name}" for name in ("gradient", "variance", "weight")]


def measured(squares):
    """Metrics after each step, and the state after the last, of (microbatch, batch) squares."""
    config = make_config(**KEYS)
    assert config.microbatches == 3
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        small, norm = (tf.compat.v1.placeholder(tf.float32, []) for _ in range(2))
        named = [mtf.import_tf_tensor(mesh, value, mtf.Shape([])) for value in (small, norm)]
        noise = noise_scale(*named, config)
        implementation = placement_mesh_impl.PlacementMeshImpl(mtf.Shape([]), [], [""])
        lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
        metrics = {name: lowering.export_to_tf_tensor(x) for name, x in noise.metrics.items()}
        assignments = [lowering.lowered_operation(operation) for operation in noise.operations]
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        steps = [
            session.run([metrics, assignments], {small: part, norm: np.sqrt(whole)})[0]
            for part, whole in squares
        ]
        session.run(lowering.copy_slices_to_masters())
        variables = {item.op.name: item for item in tf.compat.v1.global_variables()}
        return steps, session.run(variables)


def test_estimates_and_averages():
    squares = [(5.0, 2.5), (4.0, 3.5), (9.0, 4.0), (3.0, 2.75)]
    steps, state = measured(squares)
    # Microbatches of 4 sequences of 12, in the words of the paper's appendix.
    gradients = [(12 * whole - 4 * part) / (12 - 4) for part, whole in squares]
    variances = [(part - whole) / (1 / 4 - 1 / 12) for part, whole in squares]
    for count, step in enumerate(steps, start=1):
        weights = 0.2 * 0.8 ** np.arange(count - 1, -1, -1)
        gradient, variance = (
            np.average(values[:count], weights=weights) for values in (gradients, variances)
        )
        expected = [variance / gradient, gradient, variance]
        np.testing.assert_allclose([step[name] for name in NOISE_METRICS], expected, rtol=2e-6)
    sums = [weights @ gradients, weights @ variances, weights.sum()]
    assert sorted(state) == sorted(STATE)
    np.testing.assert_allclose([state[name] for name in STATE], sums, rtol=2e-6)


def test_noise_that_hides_the_gradient_is_not_a_number_until_it_shows():
    # |G|^2 is estimated as (12 * 1 - 4 * 5) / 8 = -1, then 10.
    steps, _ = measured([(5.0, 1.0), (1.0, 7.0)])
    hidden, shown = (SimpleNamespace(**step) for step in steps)
    assert np.isnan(hidden.noise_scale)
    np.testing.assert_allclose(hidden.noise_scale_gradient, -1, rtol=1e-6)
    np.testing.assert_allclose(hidden.noise_scale_variance, 24, rtol=1e-6)
    assert np.isfinite(shown.noise_scale)


def test_known_gradients_give_back_their_mean_and_covariance():
    """Without bias: over many steps of random gradients of single sequences."""
    random = np.random.default_rng(0)
    mean, deviations = np.array([0.3, -0.4, 0.5]), np.array([1.0, 0.5, 2.0])
    parts = mean + deviations * random.normal(size=[3000, 12, 3])
    micro = parts.reshape(3000, 3, 4, 3).mean(2)
    small, whole = (micro**2).sum(2).mean(1), (micro.mean(1) ** 2).sum(1)
    steps, _ = measured(list(zip(small, whole)))
    got = [np.mean([step[name] for step in steps]) for name in NOISE_METRICS[1:]]
    np.testing.assert_allclose(got, [0.5, 5.25], rtol=0.05)
