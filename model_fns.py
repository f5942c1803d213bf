"""Features and a config to a TPUEstimatorSpec: training, evaluation and prediction graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Optional, Union

import tensorflow as tf

from configs.schema import Config
from models.dimensions import Dimensions
from models.gpt import GPT
from models.kernels.noise import Dropout
from models.losses import IGNORED, TokenLoss, counted, evaluation_losses, training_loss
from models.microbatches import Features, differentiate
from models.sampling import generate
from optimizers import Updates, build_updates, learning_rate
from update_rules.noise_scale import NoiseScale, noise_scale
from utils.checkpoints import checkpoint_hooks, make_saver
from utils.garbage import no_garbage_collection
from utils.hooks import COUNTS
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf, placement_mesh_impl
from utils.tpu import Tpu
from utils.tpu_mesh import Cores
from utils.tpu_metrics import metrics_host_call

ModeKeys = tf.estimator.ModeKeys


@dataclass(frozen=True)
class Placement:
    """Where a graph runs and how it is saved.

    Attributes:
        mesh_layout: the mesh and the layout.
        devices: one TensorFlow device per processor of the mesh.
        steps_per_checkpoint: updates between two checkpoints.
        save_listeners: told of each checkpoint (training only).
        tpu: whose cores are the processors of the mesh, in place of devices.
        last_hooks: session hooks that come after those of TPUEstimator (training only).
        scaffold_fn: makes what a session begins with, when the graph is built (training only); None
            for what the initializers of its variables give.
    """

    mesh_layout: MeshLayout
    devices: tuple[str, ...]
    steps_per_checkpoint: int = 5000
    save_listeners: Sequence[Any] = field(default_factory=tuple)
    tpu: Optional[Tpu] = None
    last_hooks: Sequence[Any] = field(default_factory=tuple)
    scaffold_fn: Optional[Callable[[], Any]] = None


Rows = Union[tf.Tensor, tuple[tf.Tensor, ...]]
"""A batch, whole or as one slice per processor of the mesh."""


def _import(mesh: mtf.Mesh, rows: Rows, dims: Sequence[mtf.Dimension]) -> mtf.Tensor:
    if isinstance(rows, tuple):
        slices = placement_mesh_impl.PlacementMeshImpl.LaidOutTensor(list(rows))
        return mtf.import_laid_out_tensor(mesh, slices, mtf.Shape(dims))
    return mtf.import_tf_tensor(mesh, rows, mtf.Shape(dims))


class TrainingGraph(NamedTuple):
    """One training step before it is laid out on devices.

    Attributes:
        loss: float32 scalar, what is differentiated.
        labels: float32 scalar, how many labels count.
        updates: assignments and the gradient norm.
        learning_rate: tf float32 scalar.
        noise: the gradient noise scale, if it is measured.
    """

    loss: mtf.Tensor
    labels: mtf.Tensor
    updates: Updates
    learning_rate: tf.Tensor
    noise: Optional[NoiseScale]


def build_training_graph(
    mesh: mtf.Mesh,
    config: Config,
    mesh_layout: MeshLayout,
    inputs: Rows,
    labels: Rows,
    step: tf.Tensor,
) -> TrainingGraph:
    """Builds loss, gradients and updates in named dimensions.

    Args:
        mesh: to build on.
        config: a checked config.
        mesh_layout: how the graph will be split.
        inputs: [train_batch_size, n_ctx] int32.
        labels: [train_batch_size, n_ctx] int32, ids or IGNORED; the loss is the mean over ids.
        step: integer scalar, the global step before the update.
    """
    dims = Dimensions.from_config(config, config.train_batch_size)
    targets = _import(mesh, labels, [dims.batch, dims.sequence])
    features = {
        "inputs": _import(mesh, inputs, [dims.batch, dims.sequence]),
        "labels": targets,
        "rows": mtf.range(mesh, dims.batch, tf.int32),
    }
    label_count = mtf.reduce_sum(counted(targets))
    tokens = mtf.maximum(label_count, 1.0)
    splits = config.microbatches

    def batch_loss(part: Features) -> mtf.Tensor:
        part_dims = Dimensions.from_config(config, part["rows"].shape.size)
        dropout = Dropout(mesh, config.seed, step, part["rows"])
        model = GPT(mesh, config, part_dims, mesh_layout, dropout)
        hidden = model.window_states(part["inputs"])
        loss = training_loss(model, hidden, part["labels"], tokens)
        for auxiliary_loss in model.auxiliary_losses:
            loss += auxiliary_loss / splits
        return loss

    measures_noise = config.noise_scale_alpha is not None
    found = differentiate(batch_loss, features, dims.batch, splits, measures_noise)
    rate = learning_rate(config, step)
    variables = list(mesh.graph.trainable_variables)
    updates = build_updates(
        variables, found.gradients, _import(mesh, rate, []), step, config, mesh_layout
    )
    noise = None
    if found.microbatch_square is not None:
        noise = noise_scale(found.microbatch_square, updates.gradient_norm, config)
    return TrainingGraph(found.loss, label_count, updates, rate, noise)


class EvaluationGraph(NamedTuple):
    """One evaluated batch: token losses and logits, in named dimensions.

    Attributes:
        token_loss: of each token.
        logits: [batch, sequence, vocab].
        is_token: [vocab] float32, 0 for rows that only pad the vocabulary.
    """

    token_loss: TokenLoss
    logits: mtf.Tensor
    is_token: mtf.Tensor


def build_evaluation_graph(
    mesh: mtf.Mesh,
    config: Config,
    mesh_layout: MeshLayout,
    inputs: tf.Tensor,
    labels: tf.Tensor,
) -> EvaluationGraph:
    """Builds the forward pass without dropout; arguments as build_training_graph."""
    dims = Dimensions.from_config(config, config.eval_batch_size)
    model = GPT(mesh, config, dims, mesh_layout)
    logits = model.window_logits(_import(mesh, inputs, [dims.batch, dims.sequence]))
    targets = _import(mesh, labels, [dims.batch, dims.sequence])
    token_loss = evaluation_losses(logits, targets, dims, mesh_layout, config)
    return EvaluationGraph(token_loss, logits, model.is_token())


def make_model_fn(config: Config, placement: Placement) -> Callable[..., Any]:
    """The model function that TPUEstimator and the sessions of evaluation and generation call.

    Args:
        config: a checked config.
        placement: mesh, devices and checkpointing.

    Returns:
        ``model_fn(features, labels, mode, params)``. Features: ``inputs`` [batch, n_ctx] int32
        for training and evaluation (labels alike; for training on several hosts also as a tuple
        of one slice per processor; evaluation also ``row_weights`` [batch]
        float32, 0 for rows that only fill the batch); for prediction see models/sampling.py.
        On a TPU, params hold ``cores`` or TPUEstimator's ``context``.
    """

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        cores = None
        if placement.tpu is not None:
            cores = params.get("cores") or Cores.from_context(params["context"])
        ground = _Ground(placement, mtf.Graph(), cores)
        with no_garbage_collection():
            if mode == ModeKeys.TRAIN:
                return _training_spec(config, ground, features, labels)
            if mode == ModeKeys.EVAL:
                return _evaluation_spec(config, ground, features, labels)
            return _prediction_spec(config, ground, features)

    return model_fn


def inference_graph(
    config: Config, placement: Placement, mode: str, features: Any, labels: Any = None
) -> tuple[dict[str, tf.Tensor], Sequence[Any]]:
    """The graph of evaluation or generation in a session of its own.

    Args:
        config: a checked config.
        placement: mesh and devices.
        mode: EVAL or PREDICT.
        features: see ``make_model_fn``.
        labels: see ``make_model_fn``.

    Returns:
        (tensors to be fetched by name, hooks that bring the weights to the mesh).
    """
    model_fn = make_model_fn(config, placement)
    tf.compat.v1.train.get_or_create_global_step()

    def build(params: dict[str, Any], features: Any, labels: Any) -> tuple[Any, Sequence[Any]]:
        spec = model_fn(features, labels, mode, params)
        if mode == ModeKeys.EVAL:
            return spec.eval_metrics[1], spec.evaluation_hooks
        return spec.predictions, spec.prediction_hooks

    if placement.tpu is None:
        return build({}, features, labels)
    cores = placement.tpu.start()
    inputs = (features, labels) if labels is not None else (features,)

    def program(*values: tf.Tensor) -> tuple[Any, Sequence[Any]]:
        features, *labels = tf.nest.pack_sequence_as(inputs, values)
        return build({"cores": cores}, features, labels[0] if labels else None)

    return cores.replicate(program, tf.nest.flatten(inputs))


class _Ground:
    """What a graph is built on, and how it becomes TensorFlow.

    Attributes:
        placement: mesh, devices and checkpointing.
        mesh: to build on.
        on_tpu: whether TPU cores run the graph.
    """

    def __init__(self, placement: Placement, graph: mtf.Graph, cores: Optional[Cores]):
        self.placement = placement
        self.mesh = mtf.Mesh(graph, "mesh") if cores is None else cores.mesh(graph)
        self.on_tpu = cores is not None
        self._cores = cores

    @property
    def host(self) -> str:
        """The CPU device of the first host of the TPU."""
        assert self._cores is not None
        return self._cores.hosts[0]

    @property
    def mesh_layout(self) -> MeshLayout:
        """How the graph is split."""
        return self.placement.mesh_layout

    def lower(self) -> mtf.Lowering:
        """Lays the graph out on the processors."""
        graph = self.mesh.graph
        if self._cores is not None:
            return self._cores.lower(graph, self.mesh, self.mesh_layout)
        implementation = self.mesh_layout.placement(list(self.placement.devices))
        # Stacking small variables speeds up the start on thousands of slices; here it would
        # cost a copy of each of them.
        return mtf.Lowering(graph, {self.mesh: implementation}, autostack=False)

    def whole(self, tensor: mtf.Tensor) -> mtf.Tensor:
        """A tensor that can be exported: TPU cores export only what each of them has whole."""
        return mtf.anonymize(tensor) if self.on_tpu else tensor


def _training_spec(config: Config, ground: _Ground, features: Any, labels: Rows) -> Any:
    placement = ground.placement
    global_step = tf.compat.v1.train.get_or_create_global_step()
    # A copy: the variable itself is increased in place by this very step.
    step = tf.cast(global_step, tf.int32)
    built = build_training_graph(
        ground.mesh, config, ground.mesh_layout, features["inputs"], labels, step
    )
    noise = built.noise or NoiseScale({}, [])
    assignments = built.updates.operations + noise.operations
    if ground.on_tpu:  # small variables are stacked, if they are assigned together
        assignments = ground.mesh.graph.combine_assignments(assignments)
    lowering = ground.lower()
    loss = lowering.export_to_tf_tensor(built.loss)
    metrics = {
        "step": step + 1,
        "loss": loss,
        "learning_rate": built.learning_rate,
        "grad_norm": lowering.export_to_tf_tensor(built.updates.gradient_norm),
        "labels": tf.cast(lowering.export_to_tf_tensor(built.labels), tf.int32),
    }
    metrics |= {name: lowering.export_to_tf_tensor(x) for name, x in noise.metrics.items()}
    norms = {
        f"grads/norm/{name}": lowering.export_to_tf_tensor(norm)
        for name, norm in built.updates.gradient_norms.items()
    }
    host_call = None
    if ground.on_tpu:
        host_call = metrics_host_call(metrics | norms, config.iterations, ground.host)
    else:
        _offer(metrics, norms)
    updates = [lowering.lowered_operation(operation) for operation in assignments]
    # The metrics read this step's values before the step is counted as made.
    with tf.control_dependencies(updates + list(metrics.values())):
        train_op = tf.compat.v1.assign_add(global_step, 1)
    with mtf.utils.outside_all_rewrites():  # not on the cores of a TPU
        hooks = checkpoint_hooks(
            lowering,
            make_saver(config.max_to_keep, sharded=ground.on_tpu),
            config.model_path,
            placement.steps_per_checkpoint,
            list(placement.save_listeners),
        )
    return tf.compat.v1.estimator.tpu.TPUEstimatorSpec(
        mode=ModeKeys.TRAIN,
        loss=loss,
        train_op=train_op,
        training_hooks=[*hooks, *placement.last_hooks],
        host_call=host_call,
        scaffold_fn=placement.scaffold_fn,
    )


def _offer(metrics: dict[str, tf.Tensor], norms: dict[str, tf.Tensor]) -> None:
    """Names the metrics for hooks, and writes summaries of all but the counts."""
    for name, tensor in metrics.items():
        tf.identity(tensor, name=f"training/{name}")
    for name, tensor in (metrics | norms).items():
        if name not in COUNTS:
            tf.compat.v1.summary.scalar(name, tensor)


def _evaluation_spec(config: Config, ground: _Ground, features: Any, labels: tf.Tensor) -> Any:
    tf.compat.v1.train.get_or_create_global_step()
    built = build_evaluation_graph(
        ground.mesh, config, ground.mesh_layout, features["inputs"], labels
    )
    logits = _mean_logits(built, config)
    losses = [ground.whole(tensor) for tensor in (*built.token_loss, logits)]
    lowering = ground.lower()
    total, cross_entropy, mean_logits = map(lowering.export_to_tf_tensor, losses)
    counts = tf.cast(tf.not_equal(labels, IGNORED), tf.float32)
    row_counts = tf.reduce_sum(counts, 1)

    def row_means(tensor: tf.Tensor) -> tf.Tensor:
        """[batch, sequence] to [batch]: means over the tokens that count, 0 where none does."""
        return tf.reduce_sum(tensor * counts, 1) / tf.maximum(row_counts, 1.0)

    tensors = {
        "loss": row_means(total),
        "cross_entropy": row_means(cross_entropy),
        "mean_logits": row_means(mean_logits),
        "row_tokens": features["row_weights"] * row_counts,
        "labels": labels,
    }

    def metric_fn(row_tokens: tf.Tensor, labels: tf.Tensor, **rows: tf.Tensor) -> dict[str, Any]:
        mean = tf.compat.v1.metrics.mean
        return {name: mean(values, row_tokens) for name, values in rows.items()}

    return tf.compat.v1.estimator.tpu.TPUEstimatorSpec(
        mode=ModeKeys.EVAL,
        loss=tf.reduce_mean(tensors["loss"]),
        eval_metrics=(metric_fn, tensors),
        evaluation_hooks=[mtf.MtfRestoreHook(lowering)],
    )


def _mean_logits(built: EvaluationGraph, config: Config) -> mtf.Tensor:
    """Means over the tokens of the vocabulary, [batch, sequence]."""
    rows = built.token_loss.total.shape
    if not config.vocab_padding:
        return mtf.reduce_mean(built.logits, output_shape=rows)
    counts = mtf.cast(built.is_token, built.logits.dtype)
    return mtf.einsum([built.logits, counts], output_shape=rows) / config.token_count


def _prediction_spec(config: Config, ground: _Ground, features: Any) -> Any:
    tf.compat.v1.train.get_or_create_global_step()
    # XLA arranges weights itself, and the cores of a TPU keep only what checkpoints hold.
    prepares = not (ground.on_tpu or ground.mesh_layout.compiled)
    generated = generate(ground.mesh, config, ground.mesh_layout, features, prepares)
    texts = {name: ground.whole(tensor) for name, tensor in generated._asdict().items()}
    lowering = ground.lower()
    return tf.compat.v1.estimator.tpu.TPUEstimatorSpec(
        mode=ModeKeys.PREDICT,
        predictions={n: lowering.export_to_tf_tensor(tensor) for n, tensor in texts.items()},
        prediction_hooks=[mtf.MtfRestoreHook(lowering)],
    )
