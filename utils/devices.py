"""The processors of a run and the TensorFlow sessions on them.

TensorFlow is imported by the functions that need it: a mesh that does not fit is refused at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from configs.schema import Config

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

    device_count = {} if any(":GPU:" in device.upper() for device in devices) else {"GPU": 0}
    cpus = [int(device.rsplit(":", 1)[1]) for device in devices if ":CPU:" in device.upper()]
    device_count["CPU"] = max(cpus, default=0) + 1
    options = tf.compat.v1.ConfigProto(allow_soft_placement=True, device_count=device_count)
    options.gpu_options.allow_growth = True
    return options


@dataclass(frozen=True)
class Fit:
    """A mesh with one device per processor.

    Attributes:
        mesh_layout: what is run; it may be smaller than what the config says.
        devices: one per processor; "" lets TensorFlow place a run on the only CPU.
        notices: what was changed, one line each.
    """

    mesh_layout: MeshLayout
    devices: tuple[str, ...]
    notices: tuple[str, ...] = ()


def place_training(config: Config, devices: Sequence[str]) -> Fit:
    """The devices of a training run, which must be exactly those of the mesh.

    Args:
        config: mesh_shape and layout.
        devices: named by the user; empty for the CPU.

    Raises:
        ValueError: the mesh has another number of processors, or a device is not there.
    """
    check_devices(devices)
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


def place_inference(
    config: Config,
    devices: Sequence[str],
    batch_size: int,
    batch_key: str,
    whole_dims: Sequence[str] = (),
) -> Fit:
    """The devices of evaluation or generation: a mesh that does not fit is shrunk to one.

    Args:
        config: mesh_shape and layout.
        devices: named by the user; empty for the CPU.
        batch_size: sequences; the layout's rule for the batch is dropped if it does not divide.
        batch_key: config key of the batch size, for the notice.
        whole_dims: dimensions that this work cannot split; the layout's rules for them are
            dropped.

    Raises:
        ValueError: a device is not there.
    """
    from utils.mesh import MeshLayout

    check_devices(devices)
    mesh_layout = MeshLayout.from_config(config)
    count = max(len(devices), 1)
    notices = []
    if mesh_layout.size != count:
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
    return Fit(mesh_layout, _single_cpu(devices), tuple(notices))


def _single_cpu(devices: Sequence[str]) -> tuple[str, ...]:
    """Leaves the only CPU unnamed, so that no second copy of the weights is kept on it."""
    if len(devices) <= 1 and all(":CPU:0" in device.upper() for device in devices):
        return ("",)
    return tuple(devices)
