"""Draws how a layout cuts the tensors of one block, as SVG pictures for docs/layouts.md.

Usage: python scripts/draw_layouts.py [--check]
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from configs.layout import parse_layout, parse_mesh_shape  # noqa: E402

FOLDER = ROOT / "docs" / "pictures"
LAYOUTS: dict[str, tuple[str, str]] = {
    "data_parallel": ("x:4", "batch:x"),
    "heads_and_vocab": ("x:2,y:2", "batch:x,heads:y,intermediate_expanded:y,vocab:y"),
    "width": ("x:2,y:2", "batch:x,memory_length:y,embd:y"),
}
# (what it is, rows, columns): two dimensions of each tensor are enough to see the cuts.
TENSORS: tuple[tuple[str, str, str], ...] = (
    ("residual stream", "batch", "embd"),
    ("query weights", "embd", "heads"),
    ("attention scores", "heads", "memory_length"),
    ("feed-forward weights", "embd", "intermediate_expanded"),
    ("hidden layer", "batch", "intermediate_expanded"),
    ("token embedding", "vocab", "embd"),
    ("logits", "batch", "vocab"),
)
_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52")
_WIDTH, _HEIGHT, _GAP, _TOP = 120, 72, 34, 58


def _pieces(dim: str, rules: dict[str, str], sizes: dict[str, int]) -> int:
    return sizes[rules[dim]] if dim in rules else 1


def _owners(
    row: int,
    column: int,
    dims: Sequence[str],
    rules: dict[str, str],
    axes: Sequence[str],
    sizes: dict[str, int],
) -> Iterator[int]:
    """Numbers of the processors that hold one piece: those whose coordinates agree with it."""
    place = {rules[dim]: piece for dim, piece in zip(dims, (row, column)) if dim in rules}
    for number, coordinates in enumerate(itertools.product(*(range(sizes[a]) for a in axes))):
        if all(coordinates[axes.index(axis)] == piece for axis, piece in place.items()):
            yield number


def _text(x: float, y: float, text: str, size: int = 11, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
        f'font-family="sans-serif">{text}</text>'
    )


def _tensor(
    left: float,
    name: str,
    dims: tuple[str, str],
    rules: dict[str, str],
    axes: Sequence[str],
    sizes: dict[str, int],
) -> list[str]:
    """One tensor: a box, cut into pieces, each with the numbers of the processors that hold it."""
    rows, columns = (_pieces(dim, rules, sizes) for dim in dims)
    labels = [f"{dim}:{rules[dim]}" if dim in rules else dim for dim in dims]
    lines = [
        _text(left + _WIDTH / 2, _TOP - 26, f"<tspan font-weight='bold'>{name}</tspan>"),
        _text(left + _WIDTH / 2, _TOP - 10, f"[{labels[0]}, {labels[1]}]", 9),
    ]
    width, height = _WIDTH / columns, _HEIGHT / rows
    for row, column in itertools.product(range(rows), range(columns)):
        owners = list(_owners(row, column, dims, rules, axes, sizes))
        x, y = left + column * width, _TOP + row * height
        colour = _COLOURS[owners[0]] if len(owners) < len(_COLOURS) else "#bbbbbb"
        lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'fill="{colour}" fill-opacity="0.35" stroke="#333333"/>'
        )
        lines.append(_text(x + width / 2, y + height / 2 + 4, " ".join(map(str, owners))))
    return lines


def picture(mesh_shape: str, layout: str) -> str:
    """SVG of all ``TENSORS`` under a mesh of four processors."""
    sizes, rules = dict(parse_mesh_shape(mesh_shape)), dict(parse_layout(layout))
    axes = list(sizes)
    total = len(TENSORS) * (_WIDTH + _GAP) + _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {_TOP + _HEIGHT + 16}">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(_GAP, 16, f"mesh_shape {mesh_shape} · layout {layout}", 12, "start"),
    ]
    for number, (name, *dims) in enumerate(TENSORS):
        left = _GAP + number * (_WIDTH + _GAP)
        lines += _tensor(left, name, (dims[0], dims[1]), rules, axes, sizes)
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> int:
    """Writes the pictures, or with --check says whether they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    stale = []
    for name, (mesh_shape, layout) in LAYOUTS.items():
        path, text = FOLDER / f"{name}.svg", picture(mesh_shape, layout)
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(path.name)
        elif not check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"out of date: {', '.join(stale)}. Run python scripts/draw_layouts.py.")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
