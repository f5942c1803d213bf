"""Updates on a loss whose gradients are known: sum((w - target)^4) / 4."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from configs.schema import Config
from optimizers import build_updates
from tests.support import cpus, quick_session_config
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

RATES = [0.03, 0.02, 0.05, 0.01, 0.04]


class Problem(NamedTuple):
    """Variables, where they start and where the loss is 0.

    Attributes:
        dims: by the variable's name.
        start: float64.
        target: float64.
    """

    dims: Mapping[str, Sequence[mtf.Dimension]]
    start: dict[str, np.ndarray]
    target: dict[str, np.ndarray]


def random_problem(dims: Mapping[str, Sequence[mtf.Dimension]], scale: float = 1.0) -> Problem:
    """Normal numbers; ``scale`` is the deviation of the start."""
    random = np.random.default_rng(2)
    start, target = (
        {name: random.normal(size=[dim.size for dim in named]) for name, named in dims.items()}
        for _ in range(2)
    )
    return Problem(dims, {name: value * scale for name, value in start.items()}, target)


class Steps(NamedTuple):
    """What some updates did.

    Attributes:
        values: of all variables after them, slots included.
        norms: of the gradients, one per update.
        slices: shape of one processor's slice of each variable.
    """

    values: dict[str, np.ndarray]
    norms: list[float]
    slices: dict[str, list[int]]


Apply = Callable[[list[mtf.Variable], list[mtf.Tensor]], list[mtf.Operation]]
"""From variables and gradients to assignments, in place of the config's optimizer."""


def take_steps(
    config: Config,
    problem: Problem,
    rates: Sequence[float] = RATES,
    apply: Optional[Apply] = None,
) -> Steps:
    """One update per rate, on virtual CPUs."""
    split = MeshLayout.from_config(config)
    devices = cpus(split.size)
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        losses = []
        for name, dims in problem.dims.items():
            shape = mtf.Shape(list(dims))
            initial = tf.constant_initializer(problem.start[name])
            weight = mtf.get_variable(mesh, name, shape, initializer=initial)
            target = tf.constant(problem.target[name], tf.float32)
            away = weight - mtf.import_tf_tensor(mesh, target, shape)
            losses.append(mtf.reduce_sum(mtf.square(mtf.square(away))) * 0.25)
        variables = list(graph.trainable_variables)
        gradients = mtf.gradients([mtf.add_n(losses)], [v.outputs[0] for v in variables])
        rate, step = (tf.compat.v1.placeholder(kind, []) for kind in (tf.float32, tf.int32))
        named_rate = mtf.import_tf_tensor(mesh, rate, mtf.Shape([]))
        updates = build_updates(variables, gradients, named_rate, step, config, split)
        operations = updates.operations if apply is None else apply(variables, gradients)
        lowering = mtf.Lowering(graph, {mesh: split.placement(list(devices))}, autostack=False)
        assignments = [lowering.lowered_operation(operation) for operation in operations]
        norm = lowering.export_to_tf_tensor(updates.gradient_norm)
        to_slices, to_masters = lowering.copy_masters_to_slices(), lowering.copy_slices_to_masters()
        slices = {
            variable.name: lowering.variables[variable].laid_out_tensor.slice_shape
            for variable in graph.all_variables
        }
        masters = {variable.op.name: variable for variable in tf.compat.v1.global_variables()}
        with tf.compat.v1.Session(config=quick_session_config(devices)) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(to_slices)
            norms = [
                session.run([norm, assignments], {rate: value, step: number})[0]
                for number, value in enumerate(rates)
            ]
            session.run(to_masters)
            return Steps(session.run(masters), norms, slices)


NumpyRule = Callable[[str, np.ndarray, np.ndarray, dict[str, np.ndarray], float, int], np.ndarray]
"""From name, weight, clipped gradient, slots (empty at first; changed), rate and step to the new
weight."""


def expected_steps(
    problem: Problem, clip: Optional[float], rule: NumpyRule
) -> tuple[dict[str, np.ndarray], list[float]]:
    """The same in numpy, float64: values of weights and slots, and norms."""
    weights = dict(problem.start)
    slots: dict[str, dict[str, np.ndarray]] = {name: {} for name in weights}
    norms = []
    for step, rate in enumerate(RATES):
        gradients = {name: (weights[name] - problem.target[name]) ** 3 for name in weights}
        norms.append(math.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))
        factor = 1.0 if clip is None else min(1.0, clip / norms[-1])
        for name, gradient in gradients.items():
            weights[name] = rule(name, weights[name], gradient * factor, slots[name], rate, step)
    values = dict(weights)
    for name, by_suffix in slots.items():
        values |= {name + suffix: value for suffix, value in by_suffix.items()}
    return values, norms


def check_same_steps(got: Steps, expected: Steps, tolerance: float) -> None:
    """Of two runs: equal within ``tolerance`` of each variable's largest value."""
    np.testing.assert_allclose(got.norms, expected.norms, rtol=tolerance)
    assert got.values.keys() == expected.values.keys()
    for name, value in expected.values.items():
        atol = tolerance * np.abs(value).max()
        np.testing.assert_allclose(got.values[name], value, rtol=0, atol=atol, err_msg=name)


def check_steps(got: Steps, expected: tuple[dict[str, np.ndarray], list[float]]) -> None:
    """Equal names and values, within the rounding of float32."""
    values, norms = expected
    assert set(got.values) == set(values)
    np.testing.assert_allclose(got.norms, norms, rtol=2e-6)
    for name, value in values.items():
        np.testing.assert_allclose(got.values[name], value, rtol=2e-5, atol=2e-6, err_msg=name)
