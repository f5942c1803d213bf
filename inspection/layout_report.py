"""What --auto_layout and --auto_layout_and_mesh_shape print: lines for the config, and why."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Optional

from configs.schema import Config
from inspection.dry_run import table, with_unit
from inspection.layout_search import SAME, Candidate, find_layouts, mesh_shapes
from inspection.prediction import one_of_each, predict_need
from models.dimensions import WHOLE_IN_GENERATION

_METHOD = (
    "Mesh TensorFlow's auto_mtf proposed layouts{on_a_model}. It looks at the tensors between "
    "operations alone; what is compared here is the estimate of --dry_run{of_models}, which looks "
    "into kernels too. Rules that save less than 1 % are left out; within 1 %, the layout that "
    "sends the least is chosen. Nothing was run or timed: a layout that needs less memory but "
    "sends or computes more may be slower."
)
_ONE_PROCESSOR = "Why: one processor holds everything whole, whatever the layout says."
_WIDTH = 98


def layout_report(config: Config) -> str:
    """The layout of the config's mesh that needs the least memory, and what speaks for it.

    Args:
        config: a checked config.

    Raises:
        RuntimeError: OR-Tools is not installed, or auto_mtf finds no layout.
    """
    if config.mesh_size == 1:
        return f'"layout": "{config.layout}"\n\n{_ONE_PROCESSOR}'
    own = Candidate(config, predict_need(config))
    best = _unless_own_is_as_good(find_layouts(config, [config.mesh_axes], own)[0], own)
    lines = [f'"layout": "{best.config.layout}"', "", _reason(best, own), ""]
    rows = [best] if best is own else [best, own]
    return "\n".join([*lines, *_comparison(rows, config), "", *_notes(best.config)])


def mesh_report(config: Config, processors: int) -> str:
    """As ``layout_report``, with a mesh of one or two axes for a number of processors.

    Args:
        config: a checked config.
        processors: of the mesh.

    Raises:
        RuntimeError: OR-Tools is not installed, or auto_mtf finds no layout.
        ValueError: no mesh of so many processors has a layout that the config's rules allow.
    """
    if processors == 1:
        axes = ",".join(f"{name}:1" for name, _ in config.mesh_axes)
        return "\n".join([*_lines_of(axes, config.layout), "", _ONE_PROCESSOR])
    meshes = mesh_shapes(config, processors)
    has_own = config.mesh_size == processors
    own = Candidate(config, predict_need(config)) if has_own else None
    found = find_layouts(config, meshes, own)
    best = _unless_own_is_as_good(found[0], own) if own is not None else found[0]
    rows: list[Candidate] = []
    for candidate in (best, *found, own):
        if candidate is not None and not any(candidate is row for row in rows):
            rows.append(candidate)
    pasted = _lines_of(best.config.mesh_shape, best.config.layout)
    lines = [*pasted, "", _reason(best, own), ""]
    return "\n".join([*lines, *_comparison(rows, config), "", *_notes(best.config)])


def _lines_of(mesh_shape: str, layout: str) -> list[str]:
    return [f'"mesh_shape": "{mesh_shape}",', f'"layout": "{layout}"']


def _unless_own_is_as_good(found: Candidate, own: Candidate) -> Candidate:
    return found if SAME * found.need.peak_bytes < own.need.peak_bytes else own


def _memory(candidate: Candidate) -> str:
    return with_unit(candidate.need.peak_bytes, "B")


def _reason(best: Candidate, own: Optional[Candidate]) -> str:
    if own is None:
        return f"Why: of what was found it needs the least memory, {_memory(best)} per processor."
    if best is own:
        return (
            "Why: it is the config's own; nothing that was found needs less than its "
            f"{_memory(own)} per processor by more than 1 %."
        )
    saved = 1 - best.need.peak_bytes / own.need.peak_bytes
    return (
        f"Why: it needs {_memory(best)} per processor, {saved:.0%} less than the config's own "
        f"{_memory(own)}."
    )


def _comparison(candidates: Sequence[Candidate], own: Config) -> list[str]:
    rows = [["mesh", "layout", "memory", "sent", "arithmetic", ""]]
    for number, (config, need) in enumerate(candidates):
        mine = config is own
        remarks = ["chosen"] * (number == 0) + ["the config's own"] * mine
        rows.append(
            [
                config.mesh_shape,
                config.layout or "none",
                with_unit(need.peak_bytes, "B"),
                with_unit(need.sent_bytes, "B"),
                with_unit(need.flops, "FLOP"),
                ", ".join(remarks),
            ]
        )
    heading = f"One processor of {own.model_path} in a training step:"
    return [heading, *("  " + line for line in table(rows, right=[2, 3, 4]))]


def _notes(config: Config) -> list[str]:
    kinds, layers = len(one_of_each(config)), config.n_layer
    texts = [
        _METHOD.format(
            on_a_model=f" for a model with {kinds} of the {layers} layers" * (layers > kinds),
            of_models=(
                f", extended from models with {kinds} and {kinds + 1} layers" * (layers > kinds + 1)
            ),
        )
    ]
    whole = [dim for dim, _ in config.layout_rules if dim in WHOLE_IN_GENERATION]
    if whole:
        texts.append(f"Generation cannot split {', '.join(whole)}: --predict leaves that out.")
    return [line for text in texts for line in textwrap.wrap(text, _WIDTH)]
