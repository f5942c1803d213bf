"""A mesh for the devices at hand: the config's axes and layout, with other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from configs.errors import ConfigError
from configs.load import parse_config
from configs.rules import mesh_size_problems
from configs.schema import Config

_SAME = 1.01  # predictions within 1 % count as equal
_MOST_REASONS = 3


class MeshFit(NamedTuple):
    """A mesh that fits.

    Attributes:
        config: the config with the mesh.
        notices: what was chosen and why, and warnings that come with it; one line each.
    """

    config: Config
    notices: tuple[str, ...]


def _fit(config: Config, fitting: Config, why: str) -> MeshFit:
    """``config`` with the mesh of ``fitting``, and with all that the run's flags decided."""
    chosen = config.model_copy(update={"mesh_shape": fitting.mesh_shape})
    new = [text for text in fitting.warnings if text not in config.warnings]
    chosen.keep_warnings(fitting.warnings)
    return MeshFit(chosen, (why, *new))


def axis_sizes(axes: int, processors: int) -> Iterator[tuple[int, ...]]:
    """All sizes of ``axes`` mesh axes whose product is ``processors``, the first the largest."""
    if axes == 1:
        yield (processors,)
        return
    for first in range(processors, 0, -1):
        if processors % first == 0:
            for rest in axis_sizes(axes - 1, processors // first):
                yield (first, *rest)


def _meshes(config: Config, processors: int) -> list[str]:
    names = [name for name, _ in config.mesh_axes]
    return [
        ",".join(f"{name}:{size}" for name, size in zip(names, sizes))
        for sizes in axis_sizes(len(names), processors)
    ]


def _checked(config: Config, processors: int) -> tuple[list[Config], dict[str, str]]:
    """Configs of the meshes that obey all rules; of the others, the first rule that they break."""
    values, valid, refused = config.to_json_dict(), [], {}
    for mesh_shape in _meshes(config, processors):
        try:
            valid.append(parse_config(values | {"mesh_shape": mesh_shape}))
        except ConfigError as error:
            refused[mesh_shape] = error.problems[0]
    return valid, refused


def _no_mesh(config: Config, processors: int, refused: Mapping[str, str]) -> ValueError:
    fewer = next(count for count in range(processors - 1, 0, -1) if _checked(config, count)[0])
    reasons = [f"{mesh} ({text})" for mesh, text in list(refused.items())[:_MOST_REASONS]]
    if len(refused) > _MOST_REASONS:
        reasons.append(f"and {len(refused) - _MOST_REASONS} more")
    return ValueError(
        f"--fit_mesh must find sizes for the axes of mesh_shape {config.mesh_shape} on "
        f"{processors} devices; got none that the config allows: {'; '.join(reasons)}. Name "
        f"{fewer} device(s) with --gpu_ids, or change layout."
    )


def fit_mesh(config: Config, processors: int) -> MeshFit:
    """Chooses sizes for the axes of the config's mesh.

    Of all sizes whose product is the number of processors and that the config's rules allow, it
    takes those with which a processor needs the least memory in training; if several need the
    same, those with the most pieces of the batch.

    Args:
        config: a checked config, but for the rules about the sizes of its mesh.
        processors: devices at hand.

    Raises:
        ValueError: no sizes are allowed.
    """
    if config.mesh_size == processors and not mesh_size_problems(config):
        return _fit(
            config,
            config,
            f"--fit_mesh changes nothing: mesh_shape {config.mesh_shape} has as many processors "
            f"as there are devices, {processors}",
        )
    valid, refused = _checked(config, processors)
    if not valid:
        raise _no_mesh(config, processors, refused)
    before = f"mesh_shape {config.mesh_shape} = {config.mesh_size} processors becomes"
    devices = f"on {processors} device{'s' * (processors > 1)}"
    if len(valid) == 1:
        why = f"{before} {valid[0].mesh_shape} {devices}, the only mesh that the config allows"
        return _fit(config, valid[0], why)

    from inspection.dry_run import with_unit  # TensorFlow: only a choice needs it
    from inspection.prediction import predict_need

    needs = {item.mesh_shape: predict_need(item).peak_bytes for item in valid}
    near = [item for item in valid if needs[item.mesh_shape] <= _SAME * min(needs.values())]
    chosen = max(near, key=lambda item: item.batch_pieces)
    need = with_unit(needs.pop(chosen.mesh_shape), "B")
    others = ", ".join(f"{mesh} {with_unit(other, 'B')}" for mesh, other in needs.items())
    why = "least memory per processor in training"
    return _fit(
        config,
        chosen,
        f"{before} {chosen.mesh_shape} {devices}: {why}, {need} (estimates; {others})",
    )
