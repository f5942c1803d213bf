"""The processors of a run and the TensorFlow sessions on them.

TensorFlow is imported by the functions that need it: a mesh that does not fit is refused at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

from configs.errors import ConfigError
from configs.rules import mesh_size_problems
from configs.schema import Config
from utils.cluster import Cluster
from utils.tpu import Tpu, check_files, check_mesh, connect

if TYPE_CHECKING:
    from utils.mesh import MeshLayout


def check_devices(devices: Sequence[str]) -> None:
    """Refuses a GPU that is not there, so that no run falls back to the CPU in silence.

    Args:
        devices: such as ``device:GPU:0``; CPUs are virtual and always there.

    Raises:
        ValueError: a named GPU does not exist.
    """
    wanted = [device for device in devices if ":GPU:" in device.upper()]
    if not wanted:
        return
    import tensorflow as tf

    found = len(tf.config.list_physical_devices("GPU"))
    missing = [device for device in wanted if int(device.rsplit(":", 1)[1]) >= found]
    if missing:
        raise ValueError(
            f"--gpu_ids must name devices that TensorFlow sees; got {', '.join(missing)} where "
            f"it sees {found} GPU(s). Install tensorflow[and-cuda] and a driver, name other "
            "devices, or leave the flag out to run on the CPU."
        )


def session_config(devices: Sequence[str]) -> Any:
    """Session options for ``devices``: as many virtual CPUs as they name, GPUs only if named."""
    import tensorflow as tf

    has_gpu = any(":GPU:" in device.upper() for device in devices)
    device_count = {} if has_gpu else {"GPU": 0}
    cpus = [int(device.rsplit(":", 1)[1]) for device in devices if ":CPU:" in device.upper()]
    device_count["CPU"] = max(cpus, default=0) + 1
    options = tf.compat.v1.ConfigProto(allow_soft_placement=True, device_count=device_count)
    options.gpu_options.allow_growth = True
    if not has_gpu:
        _shorten_optimization(options.graph_options.rewrite_options)
    return options


def _shorten_optimization(rewrites: Any) -> None:
    """Leaves out of TensorFlow's graph optimizer what changes nothing in our graphs on CPUs.

    The rest makes half as many nodes of them in one round. With everything, a training graph of
    125M parameters takes five seconds instead of two.
    """
    rewrites.meta_optimizer_iterations = rewrites.ONE
    rewrites.memory_optimization = rewrites.NO_MEM_OPT
    for name in ("layout_optimizer", "remapping", "loop_optimization", "implementation_selector"):
        setattr(rewrites, name, rewrites.OFF)


@dataclass(frozen=True)
class Fit:
    """A mesh with one device per processor.

    Attributes:
        mesh_layout: what is run; it may be smaller than what the config says.
        devices: one per processor; "" lets TensorFlow place a run on the only CPU.
        notices: what was changed, one line each.
        tpu: whose cores are the processors, in place of devices.
    """

    mesh_layout: MeshLayout
    devices: tuple[str, ...]
    notices: tuple[str, ...] = ()
    tpu: Optional[Tpu] = None


def place_training(
    config: Config,
    devices: Sequence[str],
    cluster: Optional[Cluster] = None,
    tpu: Optional[str] = None,
) -> Fit:
    """The devices of a training run, which must be exactly those of the mesh.

    Args:
        config: mesh_shape and layout.
        devices: named by the user; empty for the CPU.
        cluster: hosts that bring ``devices`` each; None for this one alone.
        tpu: name of a TPU to run on, in place of devices.

    Raises:
        ValueError: the mesh has another number of processors, or a device is not there.
    """
    if tpu is not None:
        return place_on_tpu(config, tpu, training=True)
    check_devices(devices)
    if cluster is not None:
        return _place_on_hosts(config, devices, cluster)
    count = max(len(devices), 1)
    if config.mesh_size != count:
        here = ", ".join(devices) or "the CPU"
        raise ValueError(
            f"mesh_shape must have as many processors as there are devices; got "
            f"{config.mesh_shape} = {config.mesh_size} on {count} ({here}). Add --fit_mesh to fit "
            f"the mesh to the devices, name {config.mesh_size} with --gpu_ids, or look at the job "
            "with --dry_run."
        )
    from utils.mesh import MeshLayout

    return Fit(MeshLayout.from_config(config), _single_cpu(devices))


def _place_on_hosts(config: Config, devices: Sequence[str], cluster: Cluster) -> Fit:
    names = cluster.devices(devices)
    if config.mesh_size != len(names):
        raise ValueError(
            f"mesh_shape must have as many processors as there are devices; got "
            f"{config.mesh_shape} = {config.mesh_size} on {len(cluster.hosts)} hosts with "
            f"{len(names) // len(cluster.hosts)} each ({', '.join(devices) or 'the CPU'}). Add "
            "--fit_mesh to fit the mesh to the devices, or change the hosts or the devices that "
            "--gpu_ids names on every host."
        )
    from utils.mesh import MeshLayout

    return Fit(MeshLayout.from_config(config), names)


def place_on_tpu(config: Config, name: str, training: bool) -> Fit:
    """The cores of a TPU, which must be as many as the mesh has processors.

    Args:
        config: mesh_shape, layout and paths.
        name: of the TPU; see utils/tpu.py.
        training: whether training records are read.

    Raises:
        ValueError: there is no such TPU, it has another number of cores, or it cannot read files.
    """
    check_files(config, name, training)  # first: a connection takes time
    tpu = connect(name)
    check_mesh(config, tpu)
    from utils.mesh import MeshLayout

    notices: tuple[str, ...] = ()
    if training and (config.eval_steps or config.eval_tasks or config.predict_steps):
        notices = (
            "evaluation, tasks and samples at checkpoints are made on the CPU of this machine, "
            "while the TPU waits; eval_steps and predict_steps 0 and eval_tasks [] turn them off, "
            "--eval --tpu and --predict --tpu make evaluation and samples on the TPU",
        )
    return Fit(replace(MeshLayout.from_config(config), compiled=True), ("",), notices, tpu)


def place_inference(
    config: Config,
    devices: Sequence[str],
    batch_size: int,
    batch_key: str,
    whole_dims: Sequence[str] = (),
    tpu: Optional[str] = None,
) -> Fit:
    """The devices of evaluation or generation: a mesh that does not fit is shrunk to one.

    Args:
        config: mesh_shape and layout.
        devices: named by the user; empty for the CPU.
        batch_size: sequences; the layout's rule for the batch is dropped if it does not divide.
        batch_key: config key of the batch size, for the notice.
        whole_dims: dimensions that this work cannot split; the layout's rules for them are
            dropped.
        tpu: name of a TPU to run on, whose cores must be as many as the mesh has processors.

    Raises:
        ValueError: a device is not there, or the mesh does not divide what it splits.
    """
    from utils.mesh import MeshLayout

    check_devices(devices)
    on_tpu = None if tpu is None else place_on_tpu(config, tpu, training=False)
    mesh_layout = on_tpu.mesh_layout if on_tpu else MeshLayout.from_config(config)
    count = max(len(devices), 1)
    notices = []
    if on_tpu is None and mesh_layout.size != count:
        notices.append(
            f"mesh_shape {config.mesh_shape} = {mesh_layout.size} processors does not fit "
            f"{count} device(s); running on one"
        )
        axes = tuple((name, 1) for name, _ in mesh_layout.axes)
        mesh_layout = MeshLayout(axes, mesh_layout.rules)
        devices = devices[:1]
    pieces = dict(mesh_layout.axes).get(dict(mesh_layout.rules).get("batch", ""), 1)
    if batch_size % pieces:
        notices.append(
            f"{batch_key} {batch_size} is not a multiple of {pieces}; the batch is not split"
        )
        mesh_layout = mesh_layout.without(("batch",))
    whole = [dim for dim, axis in mesh_layout.rules if dim in whole_dims]
    if whole:
        if mesh_layout.size > 1:
            notices.append(f"layout: {', '.join(whole)} cannot be split here; left out")
        mesh_layout = mesh_layout.without(whole)
    _check_splits(config, mesh_layout)
    return Fit(mesh_layout, _single_cpu(devices), tuple(notices), on_tpu.tpu if on_tpu else None)


def _check_splits(config: Config, mesh_layout: MeshLayout) -> None:
    """Applies the rules about the sizes of the mesh, but for the batch, which may stay whole."""
    rules = [rule for rule in config.layout_rules if rule in mesh_layout.rules]
    used = {
        "mesh_shape": ",".join(f"{name}:{size}" for name, size in mesh_layout.axes),
        "layout": ",".join(f"{dim}:{axis}" for dim, axis in rules if dim != "batch"),
    }
    found = mesh_size_problems(config.model_copy(update=used))
    if found:
        raise ConfigError(found)


def _single_cpu(devices: Sequence[str]) -> tuple[str, ...]:
    """Leaves the only CPU unnamed, so that no second copy of the weights is kept on it."""
    if len(devices) <= 1 and all(":CPU:0" in device.upper() for device in devices):
        return ("",)
    return tuple(devices)
