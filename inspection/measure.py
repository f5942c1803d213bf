"""What a training run would need, as numbers, from its graph in named dimensions alone."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from configs.schema import Config
from inspection.arithmetic import Flops, count_flops
from inspection.communication import Collective, count_communication
from inspection.kernel_trace import size_bytes
from inspection.processor_view import ProcessorView
from inspection.step_memory import StepMemory, estimate_memory
from model_fns import TrainingGraph, build_training_graph
from utils.checkpoints import MEASUREMENTS
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf


@dataclass(frozen=True)
class VariableCost:
    """One variable of the graph.

    Attributes:
        name: in checkpoints.
        dims: (name, size) of each dimension.
        split: (dimension name, mesh axis) of each dimension that is split.
        trained: True for weights, False for optimizer slots.
        size: elements.
        slice_size: elements on one processor.
        slice_bytes: bytes on one processor.
        master_bytes: bytes of the whole variable as checkpoints hold it.
    """

    name: str
    dims: tuple[tuple[str, int], ...]
    split: tuple[tuple[str, str], ...]
    trained: bool
    size: int
    slice_size: int
    slice_bytes: int
    master_bytes: int


@dataclass(frozen=True)
class DryRun:
    """What a training run would need.

    Attributes:
        config: of the run.
        variables: weights and optimizer slots, in the order of the graph.
        flops: arithmetic of one step.
        memory: of one processor during a step, beside variables.
        communication: collectives of one step.
    """

    config: Config
    variables: tuple[VariableCost, ...]
    flops: Flops
    memory: StepMemory
    communication: tuple[Collective, ...]

    @property
    def weights(self) -> tuple[VariableCost, ...]:
        """The trained variables."""
        return tuple(variable for variable in self.variables if variable.trained)

    @property
    def slots(self) -> tuple[VariableCost, ...]:
        """The optimizer's variables."""
        return tuple(
            variable
            for variable in self.variables
            if not (variable.trained or variable.name.startswith(MEASUREMENTS))
        )

    @property
    def parameters(self) -> int:
        """Elements of all weights."""
        return sum(variable.size for variable in self.weights)

    @property
    def parameters_per_processor(self) -> int:
        """Elements of the weights' slices on one processor."""
        return sum(variable.slice_size for variable in self.weights)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights' slices on one processor."""
        return sum(variable.slice_bytes for variable in self.weights)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the optimizer slots' slices on one processor."""
        return sum(variable.slice_bytes for variable in self.slots)

    @property
    def peak_bytes(self) -> int:
        """Largest total on one processor: weights, slots, and gradients with activations."""
        return self.weight_bytes + self.slot_bytes + self.memory.peak

    @property
    def master_bytes(self) -> int:
        """Bytes of the whole variables that the host keeps for checkpoints.

        0 on one processor, where the slices are the whole variables.
        """
        if self.config.mesh_size == 1:
            return 0
        return sum(variable.master_bytes for variable in self.variables)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one update."""
        return self.config.train_batch_size * self.config.n_ctx


class _DeclaredVariable(NamedTuple):
    """Stands in for a tf.Variable of which only the name is asked.

    Attributes:
        name: as TensorFlow gives it, with the number of the output.
    """

    name: str


def _declare(getter: Any, name: str, *args: Any, **kwargs: Any) -> _DeclaredVariable:
    """Declares a variable without the seven TensorFlow operations that hold and initialize it."""
    return _DeclaredVariable(f"{name}:0")


def _variable_cost(variable: mtf.Variable, view: ProcessorView) -> VariableCost:
    dims, layout = variable.shape.dims, view.mesh_layout
    slice_shape = view.slice_shape(variable.shape)
    axes = dict(layout.rules)
    return VariableCost(
        name=variable.name,
        dims=tuple((dim.name, dim.size) for dim in dims),
        split=tuple((dim.name, axes[dim.name]) for dim in dims if layout.slices(dim) > 1),
        trained=variable.trainable,
        size=variable.size,
        slice_size=math.prod(slice_shape),
        slice_bytes=size_bytes(slice_shape, variable.slice_dtype),
        master_bytes=size_bytes(variable.shape.to_integer_list, variable.master_dtype),
    )


def declared_graph(config: Config, layout: MeshLayout) -> tuple[mtf.Graph, TrainingGraph]:
    """The graph of a training step, with variables of which only the names are there.

    Args:
        config: a checked config.
        layout: how the graph will be split.
    """
    scopes = tf.compat.v1
    with tf.Graph().as_default(), scopes.variable_scope("", custom_getter=_declare):
        graph = mtf.Graph()
        ids = [config.train_batch_size, config.n_ctx]
        inputs, labels = (scopes.placeholder(tf.int32, ids) for _ in range(2))
        step = scopes.placeholder(tf.int32, [])
        mesh = mtf.Mesh(graph, "mesh")
        return graph, build_training_graph(mesh, config, layout, inputs, labels, step)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Many objects are made and few become garbage; looking for it costs a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_no_garbage_collection()
def measure(config: Config) -> DryRun:
    """Builds the training graph in named dimensions and counts; nothing is laid out or executed.

    Args:
        config: a checked config.

    Raises:
        ValueError: the layout splits what an operation needs whole.
    """
    layout = MeshLayout.from_config(config)
    graph, built = declared_graph(config, layout)
    view = ProcessorView(graph, layout, loop_iterations=config.microbatches)
    norm = built.updates.gradient_norm
    measured = list(built.noise.metrics.values()) if built.noise else []
    return DryRun(
        config=config,
        variables=tuple(_variable_cost(variable, view) for variable in graph.all_variables),
        flops=count_flops(view, built.loss),
        memory=estimate_memory(view, built.loss, norm),
        communication=tuple(count_communication(view, [built.loss, norm, *measured])),
    )
