"""The dry run: what a training run would need, as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from configs.schema import Config
from inspection.communication import Collective
from inspection.measure import DryRun, VariableCost, measure
from update_rules import adafactor, adam
from utils.mesh import SLOT_PART

_LAYER = re.compile(r"(?<=/)h(\d+)(?=/)")
_UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_LARGEST_SHOWN = 5
_PHASES = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "update": "in the update",
}
_METHOD = """\
Weights, slots and gradients are exact; 1 GB = 10^9 bytes. Activations are estimated from the
graph: each tensor lives from the operation that makes it to the last that reads it, kernels are
looked into, and what a gradient kernel would compute again is kept, as TensorFlow does. Not in
it: workspace of single operations, buffers of collectives, TensorFlow itself (about 0.45 GB).
FLOPs are those of matrix products, 2 per multiply-add, attention included. Communication is exact
in number and size of tensors; what is sent is that of a ring: of S bytes among n processors an
all-reduce sends 2 (n-1)/n S from each, an all-gather or all-to-all (n-1)/n S."""


def with_unit(value: float, unit: str) -> str:
    """A number with three or four significant digits, for instance ``12.35 GB``."""
    for factor, prefix in _UNITS:
        if abs(value) >= factor:
            return f"{value / factor:,.2f} {prefix}{unit}"
    return f"{value:,.0f} {unit}"


def table(rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    """Aligns columns.

    Args:
        rows: cells; the first row is the heading.
        right: numbers of the columns that are aligned to the right.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _layers_text(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"h{numbers[0]}"
    if len(numbers) == 2:
        return f"h{numbers[0]},h{numbers[1]}"
    return f"h{numbers[0]}…h{numbers[-1]}"


def _dims_text(variable: VariableCost) -> str:
    axes = dict(variable.split)
    return " x ".join(
        f"{name}:{axes[name]} {size}" if name in axes else f"{name} {size}"
        for name, size in variable.dims
    )


def variable_rows(variables: Sequence[VariableCost]) -> list[list[str]]:
    """One row per variable; those that differ by the number of the layer alone share a row."""
    groups: dict[tuple[str, ...], list[VariableCost]] = {}
    for variable in variables:
        key = (_LAYER.sub("h*", variable.name), _dims_text(variable))
        groups.setdefault(key, []).append(variable)
    rows = [["variable", "count", "dimensions (:axis = split)", "elements", "per processor"]]
    for (name, dims), members in groups.items():
        layers = [int(match[1]) for v in members if (match := _LAYER.search(v.name))]
        rows.append(
            [
                _LAYER.sub("h*", name).replace("h*", _layers_text(layers)) if layers else name,
                f"x{len(members)}" if layers else "",
                dims,
                f"{members[0].size:,}",
                f"{members[0].slice_size:,}",
            ]
        )
    return rows


def _slot_suffix(name: str) -> str:
    return next(suffix for suffix in adam.SLOTS + adafactor.SLOTS if name.endswith(suffix))


def _slot_rows(run: DryRun) -> list[list[str]]:
    """As ``variable_rows``; slots of one weight that have the same dims share a row."""
    groups: dict[tuple[object, ...], list[VariableCost]] = {}
    for slot in run.slots:
        weight = slot.name.removesuffix(_slot_suffix(slot.name))
        groups.setdefault((weight, slot.dims), []).append(slot)
    return variable_rows(
        [
            replace(slots[0], name=f"{weight} {_slots_text(slots)}")
            for (weight, _), slots in groups.items()
        ]
    )


def _slots_text(slots: Sequence[VariableCost]) -> str:
    return ", ".join(dict.fromkeys(_slot_suffix(slot.name).strip("/_") for slot in slots))


def _shard_lines(run: DryRun) -> list[str]:
    axis = run.config.optimizer_shard_axis
    if axis is None:
        return []
    parts = [slot.size for slot in run.slots if SLOT_PART in dict(slot.split)]
    share = sum(parts) / sum(slot.size for slot in run.slots)
    return [
        "",
        *table(_slot_rows(run), right=[1, 3, 4]),
        "",
        f"Optimizer slots: {len(parts)} of {len(run.slots)}, with {share:.1%} of all elements, are "
        f"split over {axis} beside layout",
    ]


def _memory_lines(run: DryRun) -> list[str]:
    memory = run.memory
    rows = [
        ["weights", with_unit(run.weight_bytes, "B"), ""],
        ["optimizer slots", with_unit(run.slot_bytes, "B"), _slots_text(run.slots)],
        ["gradients", with_unit(memory.gradients, "B"), "all of them, when the update begins"],
        ["activations", with_unit(memory.activations, "B"), "estimate, at their fullest"],
        [
            "peak",
            with_unit(run.peak_bytes, "B"),
            f"estimate: weights, slots and {with_unit(memory.peak, 'B')} more, "
            f"{_PHASES[memory.phase]}",
        ],
    ]
    lines = ["Memory of one processor", *("  " + line for line in table(rows, right=[1]))]
    lines.append("  the most of it:")
    shown = [[what, with_unit(size, "B")] for what, size in memory.largest[:_LARGEST_SHOWN]]
    lines += ["    " + line for line in table(shown, right=[1])]
    if run.master_bytes:
        lines.append(
            f"  and on the host of the first processor {with_unit(run.master_bytes, 'B')}: the "
            "whole variables, for checkpoints"
        )
    return lines


def _arithmetic_lines(run: DryRun) -> list[str]:
    flops, tokens = run.flops, run.tokens_per_step
    total = flops.forward + flops.backward
    ratio = total / tokens / (6 * run.parameters)
    repeated = flops.per_processor * run.config.mesh_size / total - 1
    rows = [
        ["forward", with_unit(flops.forward / tokens, "FLOP"), "per token"],
        [
            "forward and backward",
            with_unit(total / tokens, "FLOP"),
            f"per token, {ratio:.3f} x 6N (N = parameters)",
        ],
        [
            "one processor",
            with_unit(flops.per_processor, "FLOP"),
            f"per step, {repeated:.1%} of it repeated by other processors",
        ],
    ]
    return ["Arithmetic", *("  " + line for line in table(rows, right=[1]))]


def _communication_lines(run: DryRun) -> list[str]:
    if not run.communication:
        return ["Communication of one step: none"]
    groups: dict[str, list[Collective]] = {}
    for collective in run.communication:
        groups.setdefault(_exchange(collective), []).append(collective)
    rows = [
        [exchange, f"{sum(one.count for one in members):,} times", _sent_text(members), ""]
        for exchange, members in groups.items()
    ]
    rows.append(["all", "", _sent_text(run.communication), "sent by one processor"])
    lines = ["Communication of one step", *("  " + line for line in table(rows, right=[1, 2]))]
    lines.append("  the most of it:")
    largest = sorted(run.communication, key=lambda one: -one.sent_bytes)[:_LARGEST_SHOWN]
    shown = [
        [
            _exchange(one),
            one.source,
            f"{one.count:,} x {with_unit(one.size_bytes, 'B')}",
            _sent_text([one]),
        ]
        for one in largest
    ]
    return lines + ["    " + line for line in table(shown, right=[2, 3])]


def _exchange(collective: Collective) -> str:
    return f"{collective.kind} over {','.join(collective.axes)}"


def _sent_text(collectives: Sequence[Collective]) -> str:
    return with_unit(sum(one.sent_bytes for one in collectives), "B")


def _split_text(config: Config) -> str:
    count = config.microbatches
    if count == 1:
        return ""
    rows = config.train_batch_size // config.batch_pieces // count
    return f", in {count:,} microbatches of {rows:,} x {config.n_ctx} on each replica"


def _run_lines(run: DryRun) -> list[str]:
    config, tokens = run.config, run.tokens_per_step
    rows = [
        [
            "tokens per step",
            f"{tokens:,}",
            f"{config.train_batch_size} x {config.n_ctx}{_split_text(config)}",
        ],
        ["steps", f"{config.train_steps:,}", ""],
        ["tokens", f"{tokens * config.train_steps:,}", ""],
    ]
    return ["Run", *("  " + line for line in table(rows, right=[1]))]


def dry_run_text(run: DryRun) -> str:
    """The whole report."""
    config = run.config
    many = "processors" if config.mesh_size > 1 else "processor"
    lines = [
        f"{config.model_path}: {config.n_layer} layers, width {config.n_embd:,}, "
        f"{config.n_head} heads, window {config.n_ctx:,} tokens, vocabulary {config.n_vocab:,}",
        f"mesh {config.mesh_shape} = {config.mesh_size:,} {many}, layout {config.layout or 'none'}",
        "",
        *table(variable_rows(run.weights), right=[1, 3, 4]),
        "",
        f"Parameters: {run.parameters:,} in {len(run.weights)} variables, "
        f"{run.parameters_per_processor:,} per processor",
        *_shard_lines(run),
    ]
    sections = (_memory_lines, _arithmetic_lines, _communication_lines, _run_lines)
    for section in sections:
        lines += ["", *section(run)]
    return "\n".join([*lines, "", _METHOD])


def dry_run_report(config: Config) -> str:
    """Builds the training graph in named dimensions and tells what the run would need.

    Nothing is laid out on devices or executed.

    Args:
        config: a checked config.

    Returns:
        Variables with dimensions and layout, memory, arithmetic, communication and tokens, in
        lines.

    Raises:
        ValueError: the layout splits what an operation needs whole.
    """
    return dry_run_text(measure(config))
