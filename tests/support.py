"""What tests of named tensors share: running them on a mesh, and checkpoints of plain arrays."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from configs.layout import parse_layout, parse_mesh_shape
from configs.load import parse_config
from configs.schema import Config
from model_fns import ModeKeys, Placement, build_evaluation_graph, make_model_fn
from update_rules import adafactor, adam
from utils.checkpoints import MEASUREMENTS, make_saver
from utils.devices import place_inference, place_training, session_config
from utils.garbage import no_garbage_collection
from utils.hooks import METRIC_TENSORS, NOISE_METRICS
from utils.inference_session import InferenceSession
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

Named = tuple[np.ndarray, Sequence[mtf.Dimension]]
"""An array and the dimensions that its axes stand for."""


def mesh_layout(mesh_shape: str, layout: str) -> MeshLayout:
    """A mesh and layout as a config writes them."""
    return MeshLayout(parse_mesh_shape(mesh_shape), parse_layout(layout))


def cpus(count: int) -> tuple[str, ...]:
    """Names of virtual CPUs."""
    return tuple(f"device:CPU:{number}" for number in range(count))


def quick_session_config(devices: Sequence[str]) -> tf.compat.v1.ConfigProto:
    """Session options of a run; on several devices without TensorFlow's graph optimizer.

    It takes a quarter of the time of a short run there. Runs on one device keep it, so numbers
    that agree between the two do not depend on it.
    """
    config = session_config(devices)
    if len(devices) > 1:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def run_named(
    mesh_shape: str,
    layout: str,
    inputs: Sequence[Named],
    build: Callable[..., Any],
) -> list[np.ndarray]:
    """Runs ``build(mesh_layout, *named tensors)`` on virtual CPUs; returns its tensors' values."""
    split = mesh_layout(mesh_shape, layout)
    devices = cpus(split.size)
    with no_garbage_collection(), tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        tensors = [
            mtf.import_tf_tensor(mesh, tf.constant(array), mtf.Shape(list(dims)))
            for array, dims in inputs
        ]
        outputs = build(split, *tensors)
        lowering = mtf.Lowering(graph, {mesh: split.placement(list(devices))})
        fetches = [lowering.export_to_tf_tensor(output) for output in outputs]
        with tf.compat.v1.Session(config=quick_session_config(devices)) as session:
            return session.run(fetches)


def value_and_gradients(
    mesh_shape: str,
    layout: str,
    inputs: Sequence[Named],
    function: Callable[..., mtf.Tensor],
    upstream: np.ndarray,
) -> list[np.ndarray]:
    """Value of ``function(mesh_layout, *tensors)`` and the gradients of sum(value * upstream).

    Returns:
        The value, then one gradient per floating input.
    """

    def build(split: MeshLayout, *tensors: mtf.Tensor) -> list[mtf.Tensor]:
        value = function(split, *tensors)
        weights = mtf.import_tf_tensor(value.mesh, tf.constant(upstream), value.shape)
        loss = mtf.reduce_sum(value * weights)
        return [value, *mtf.gradients([loss], [x for x in tensors if x.dtype.is_floating])]

    return run_named(mesh_shape, layout, inputs, build)


def assert_all_close(
    got: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float
) -> None:
    """Equal shapes, and differences below ``tolerance`` relative to each array's scale."""
    assert len(got) == len(expected)
    for number, (left, right) in enumerate(zip(got, expected)):
        assert left.shape == right.shape, number
        scale = max(float(np.abs(right).max()), 1.0)
        np.testing.assert_allclose(
            left, right, rtol=0, atol=tolerance * scale, err_msg=f"array {number}"
        )


def run_tf(build: Callable[[], Any]) -> Any:
    """Values of the tensors that ``build`` returns."""
    with tf.Graph().as_default():
        fetches = build()
        with tf.compat.v1.Session() as session:
            return session.run(fetches)


def make_config(**keys: Any) -> Config:
    """A checked config of a tiny model; ``keys`` replace its own."""
    values = {
        "model_path": "runs/test",
        "train_steps": 20,
        "train_batch_size": 6,
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 14,
        "n_ctx": 10,
        "n_vocab": 22,
        "eos_id": 1,
        "padding_id": 0,
        "lr": 0.01,
        "attention_types": [[["global", "local"], 1]],
        "local_attention_radius": 3,
        "mesh_shape": "x:1",
        "layout": "batch:x",
    }
    return parse_config(values | keys)


def write_checkpoint(folder: Path, values: Mapping[str, np.ndarray], step: int = 0) -> str:
    """Writes variables as ``model.ckpt-<step>``, the newest of ``folder``; returns its path."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        everything = dict(values) | {"global_step": np.int64(step)}
        placeholders, assignments, variables = {}, [], {}
        for name, value in everything.items():
            array = np.asarray(value)
            variables[name] = tf.compat.v1.get_variable(name, array.shape, tf.as_dtype(array.dtype))
            placeholders[name] = tf.compat.v1.placeholder(variables[name].dtype.base_dtype)
            assignments.append(tf.compat.v1.assign(variables[name], placeholders[name]))
        session.run(assignments, {placeholders[name]: everything[name] for name in everything})
        return make_saver(max_to_keep=5).save(
            session, str(folder / "model.ckpt"), global_step=step, write_meta_graph=False
        )


def copy_checkpoint(source: str, folder: Path) -> None:
    """Makes the checkpoint ``source`` the newest of ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(source)
    for file in path.parent.glob(f"{path.name}.*"):
        shutil.copy(file, folder)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{path.name}"\n')


def read_checkpoint(path: str) -> dict[str, np.ndarray]:
    """All variables of a checkpoint."""
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def random_variables(config: Config, seed: int) -> dict[str, np.ndarray]:
    """Weights of a model, large enough that every part of it shows in the logits."""
    shapes = {"wte": (config.n_vocab, config.n_embd), "wpe": (config.n_ctx, config.n_embd)}
    width, hidden = config.n_embd, 4 * config.n_embd
    for layer in range(config.n_layer):
        for name in "qkvo":
            shapes[f"h{layer}/attn/{name}"] = (width, width)
        shapes[f"h{layer}/attn/compute_output_bias/o_b"] = (width,)
        for norm in ("norm_1", "norm_2"):
            shapes |= {f"h{layer}/{norm}/g": (width,), f"h{layer}/{norm}/b": (width,)}
        mlp = f"h{layer}/mlp/conv1d_main"
        shapes |= {f"{mlp}/c_fc/kernel": (width, hidden), f"{mlp}/c_fc/bias": (hidden,)}
        shapes |= {f"{mlp}/c_proj/kernel": (hidden, width), f"{mlp}/c_proj/bias": (width,)}
    shapes |= {"ln_f/g": (width,), "ln_f/b": (width,)}
    random = np.random.default_rng(seed)
    return {
        f"gpt2/{name}": (name.endswith("/g") + random.normal(0.0, 0.25, shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


class Trained(NamedTuple):
    """What a training run left.

    Attributes:
        metrics: those of METRIC_TENSORS, of each step, and of NOISE_METRICS if they are measured.
        variables: of the final checkpoint: weights, slots, global_step.
        checkpoint: its path.
    """

    metrics: list[dict[str, float]]
    variables: dict[str, np.ndarray]
    checkpoint: str


Batch = tuple[np.ndarray, np.ndarray]
"""Inputs and labels, each [train_batch_size, n_ctx]."""
Start = Callable[[str, Sequence[int]], np.ndarray]
"""Value of the variable of a name and shape before training."""


def train(
    config: Config,
    batches: Iterable[Batch],
    start: Optional[Start] = None,
    steps_per_checkpoint: int = 10**6,
    scaffold_fn: Optional[Callable[[], Any]] = None,
) -> Trained:
    """Trains as the estimator does: the model function's graph and hooks in one session.

    It begins with ``start``, or as ``scaffold_fn`` of a placement says, or goes on from the newest
    checkpoint of ``config.model_path``, if there is one.
    """
    fit = place_training(config, cpus(config.mesh_size) if config.mesh_size > 1 else ())
    path = Path(config.model_path)
    path.mkdir(parents=True, exist_ok=True)
    with no_garbage_collection(), tf.Graph().as_default():
        shape = [config.train_batch_size, config.n_ctx]
        inputs, labels = (tf.compat.v1.placeholder(tf.int32, shape) for _ in range(2))
        placement = Placement(
            fit.mesh_layout, fit.devices, steps_per_checkpoint, scaffold_fn=scaffold_fn
        )
        model_fn = make_model_fn(config, placement)
        spec = model_fn({"inputs": inputs}, labels, ModeKeys.TRAIN, {})
        noise = NOISE_METRICS if config.noise_scale_alpha is not None else ()
        fetches = METRIC_TENSORS | {name: f"training/{name}:0" for name in noise}
        if start is not None:
            variables = {item.op.name: item.shape for item in tf.compat.v1.global_variables()}
            del variables["global_step"]
            write_checkpoint(path, {name: start(name, variables[name]) for name in variables})
        creator = tf.compat.v1.train.ChiefSessionCreator(
            spec.scaffold_fn() if spec.scaffold_fn else None,
            checkpoint_dir=str(path),
            config=quick_session_config(fit.devices),
        )
        metrics = []
        hooks = spec.training_hooks
        with tf.compat.v1.train.MonitoredSession(creator, hooks) as session:
            for batch in batches:
                feed = {inputs: batch[0], labels: batch[1]}
                metrics.append(session.run([fetches, spec.train_op], feed)[0])
    checkpoint = tf.train.latest_checkpoint(str(path))
    assert checkpoint is not None
    return Trained(metrics, read_checkpoint(checkpoint), checkpoint)


def is_slot(variable: str) -> bool:
    """Whether a variable belongs to the optimizer, or to what is measured."""
    return variable.endswith((*adam.SLOTS, *adafactor.SLOTS)) or variable.startswith(MEASUREMENTS)


def large_weights(name: str, shape: Sequence[int]) -> np.ndarray:
    """A ``Start`` from which every part of a model shows in the loss; gains are about 1."""
    if is_slot(name):
        return np.zeros(shape, np.float32)
    values = np.random.default_rng(zlib.crc32(name.encode())).normal(0.0, 0.25, shape)
    return (values + name.endswith("/g")).astype(np.float32)


def movements(trained: Trained, start: Start) -> dict[str, np.ndarray]:
    """By how much training has changed each weight."""
    return {
        name: value - start(name, value.shape)
        for name, value in trained.variables.items()
        if name != "global_step" and not is_slot(name)
    }


def check_same_weights(got: Trained, expected: Trained, start: Start, tolerance: float) -> None:
    """Each weight differs by less than ``tolerance`` of its movement, as norms.

    And by the rounding of the weight itself: a gain near 1 may have moved by little.
    """
    assert got.variables.keys() == expected.variables.keys()
    for name, movement in movements(expected, start).items():
        value, moved = expected.variables[name], np.linalg.norm(movement)
        difference = np.linalg.norm(got.variables[name] - value)
        limit = tolerance * moved + 1e-6 * np.linalg.norm(value)
        assert difference <= limit, (name, difference / moved)
        assert moved > 0, name


def random_batches(config: Config, count: int, seed: int = 5) -> list[Batch]:
    """Windows of random ids."""
    shape = (count, config.train_batch_size, config.n_ctx + 1)
    tokens = np.random.default_rng(seed).integers(0, config.token_count, shape)
    return [(window[:, :-1], window[:, 1:]) for window in tokens]


def initial_variables(config: Config) -> dict[str, np.ndarray]:
    """The model's variables before training."""
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        window = tf.zeros([config.eval_batch_size, config.n_ctx], tf.int32)
        split = mesh_layout("x:1", "")
        build_evaluation_graph(mesh, config, split, window, window)
        mtf.Lowering(mesh.graph, {mesh: split.placement([""])}, autostack=False)
        variables = {variable.op.name: variable for variable in tf.compat.v1.global_variables()}
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run(variables)


class Forward:
    """The evaluation graph of a config: logits and losses of windows."""

    def __init__(self, config: Config, checkpoint: Optional[str] = None):
        devices = cpus(config.mesh_size) if config.mesh_size > 1 else ()
        fit = place_inference(config, devices, config.eval_batch_size, "eval_batch_size")

        def build() -> tuple[Any, Sequence[Any]]:
            tf.compat.v1.train.get_or_create_global_step()
            shape = [config.eval_batch_size, config.n_ctx]
            self._inputs, self._labels = (tf.compat.v1.placeholder(tf.int32, shape) for _ in "xy")
            graph = mtf.Graph()
            mesh = mtf.Mesh(graph, "mesh")
            built = build_evaluation_graph(
                mesh, config, fit.mesh_layout, self._inputs, self._labels
            )
            implementation = fit.mesh_layout.placement(list(fit.devices))
            lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
            export = lowering.export_to_tf_tensor
            fetches = {
                "logits": export(built.logits),
                "total": export(built.token_loss.total),
                "cross_entropy": export(built.token_loss.cross_entropy),
            }
            return fetches, [mtf.MtfRestoreHook(lowering)]

        self._session = InferenceSession(build, fit.devices)
        if checkpoint is not None:
            self.load(checkpoint)

    def load(self, checkpoint: str) -> None:
        """Loads the weights of ``checkpoint``."""
        self._session.restore(checkpoint)

    def __call__(self, inputs: np.ndarray, labels: Optional[np.ndarray] = None) -> dict[str, Any]:
        """logits, total, cross_entropy of one batch; labels default to zeros."""
        given = np.zeros_like(inputs) if labels is None else labels
        feed = {self._inputs: inputs, self._labels: given}
        return self._session.run(self._session.fetches, feed)
