"""Pictures of runs: loss, learning rate and throughput, as PNG and as a page of its own."""

from __future__ import annotations

import html
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracking.metrics import METRICS_FILE as LINES_FILE
from tracking.metrics import RunMetrics
from tracking.record import METRICS_FILE, RUN_FILE, read_json
from utils.files import write_atomically

Curves = Mapping[str, Mapping[str, Sequence[Any]]]
"""By name of the metric: steps and values."""

_COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#f58518", "#b279a2", "#72b7b2", "#9d755d", "#79706e")
_INK = "#333333"
_PANELS = (
    ("loss", "loss per token (nats)"),
    ("learning_rate", "learning rate"),
    ("tokens_per_second", "tokens/s"),
)
_EVALUATION_FILE = re.compile(r"eval_(.+)\.jsonl")


def read_curves(folder: str) -> dict[str, Any]:
    """The curves of a run.

    Args:
        folder: of the run (its model_path), or of its record.

    Raises:
        ValueError: there is no loss.
    """
    if os.path.exists(os.path.join(folder, RUN_FILE)):
        curves = read_json(os.path.join(folder, METRICS_FILE))
    else:
        curves = {}
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        evaluations = [match[1] for name in names if (match := _EVALUATION_FILE.fullmatch(name))]
        for run_id in evaluations or ["none"]:
            metrics = RunMetrics(folder, run_id)
            metrics.refresh()
            curves |= {name: curve.as_json() for name, curve in metrics.curves.items()}
    if "loss" not in curves:
        raise ValueError(
            f"a run must hold {LINES_FILE} with at least one loss, or be a record with curves; got "
            f"{folder}. Train the model first."
        )
    return curves


def draw(runs: Mapping[str, Curves], title: str) -> Any:
    """Draws the panels, one below the other, with a colour for each run.

    Args:
        runs: curves by the name of the run.
        title: of the whole.

    Returns:
        A figure of matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, sharex=True, height_ratios=(2, 1, 1))
    for axes, (metric, label) in zip(panels, _PANELS):
        for number, (name, curves) in enumerate(runs.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            _plot(axes, curves, metric, colour, name if len(runs) > 1 else "training")
            held_out = name + ", held out" if len(runs) > 1 else "held out"
            if metric == "loss":
                _plot(axes, curves, "val_loss", colour, held_out, marker="o", linestyle="--")
        axes.set_ylabel(label, color=_INK)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
    # Names are shown as they are: a dollar sign in one begins no formula.
    panels[0].set_title(title, loc="left", color=_INK, fontweight="bold", parse_math=False)
    for text in panels[0].legend(frameon=False).get_texts():
        text.set_parse_math(False)
    panels[-1].set_xlabel("step", color=_INK)
    return figure


def _plot(axes: Any, curves: Curves, metric: str, colour: str, label: str, **style: Any) -> None:
    if metric not in curves:
        return
    steps, values = curves[metric]["steps"], curves[metric]["values"]
    if len(steps) == 1:
        style |= {"marker": "o"}  # a line of one point is not seen
    axes.plot(steps, values, color=colour, label=label, linewidth=1.4, markersize=4, **style)


def write_png(runs: Mapping[str, Curves], title: str, path: str) -> None:
    """Writes the picture.

    Raises:
        OSError: it cannot be written.
    """
    picture = io.BytesIO()
    draw(runs, title).savefig(picture, format="png")
    write_atomically(path, picture.getvalue())


def write_page(runs: Mapping[str, Curves], title: str, path: str) -> None:
    """Writes a page that holds the picture as vectors, and a table of last values.

    Raises:
        OSError: it cannot be written.
    """
    picture = io.StringIO()
    draw(runs, title).savefig(picture, format="svg")
    svg = picture.getvalue()
    text = (
        '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title>"
        "<style>body{font:15px sans-serif;color:#333;margin:2em auto;max-width:60em}"
        "svg{width:100%;height:auto}td,th{padding:.2em .8em;text-align:right}"
        "th:first-child,td:first-child{text-align:left}</style>\n"
        f"{svg[svg.index('<svg') :]}\n{_table(runs)}\n</html>\n"
    )
    write_atomically(path, text.encode("utf-8"))


def _table(runs: Mapping[str, Curves]) -> str:
    """The last value of every metric of every run, as HTML."""
    metrics = sorted({metric for curves in runs.values() for metric in curves})
    head = "".join(f"<th>{html.escape(metric)}</th>" for metric in ("run", "step", *metrics))
    rows = []
    for run, curves in runs.items():
        last = [
            f"{curves[metric]['values'][-1]:.4g}" if metric in curves else "" for metric in metrics
        ]
        cells = [html.escape(run), f"{curves['loss']['steps'][-1]:,}", *last]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def names_of(folders: Sequence[str]) -> list[str]:
    """Short names of runs: the last parts of their paths, as many as tell them apart."""
    parts = [Path(folder).resolve().parts for folder in folders]
    count = 1
    while len({part[-count:] for part in parts}) < len(parts) and count < max(map(len, parts)):
        count += 1
    names = ["/".join(part[-count:]) for part in parts]
    # Matplotlib leaves names with an underscore in front out of a legend.
    return [f"./{name}" if name.startswith("_") else name for name in names]
