#!/usr/bin/env python3
"""Draws the loss of a run: `python scripts/plot_metrics.py MODEL_PATH`.

Reads `metrics.jsonl` (training) and `eval_*.jsonl` (evaluations, if any) in the
run's folder and writes `loss.png` there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

_TRAINING_COLOUR = "#4c78a8"
_EVALUATION_COLOUR = "#e45756"
_INK = "#333333"


def read_points(paths: Iterable[Path], step_key: str) -> np.ndarray:
    """Reads step and loss off files of JSON lines.

    A step that occurs twice, as after a run was stopped and resumed, counts
    with its last value. A last line cut short by a stop is left out.

    Args:
        paths: the files.
        step_key: key of the step.

    Returns:
        Points in order of the step, [points, 2]: step and loss, float64.

    Raises:
        ValueError: a line other than the last is no JSON.
    """
    losses: dict[int, float] = {}
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
            except json.JSONDecodeError as error:
                if number == len(lines):
                    continue
                raise ValueError(
                    f"metrics must be one JSON object per line; got {line[:40]!r} in {path}, "
                    f"line {number}. Remove the line."
                ) from error
            if step_key in entry and "loss" in entry:
                losses[int(entry[step_key])] = float(entry["loss"])
    return np.array(sorted(losses.items()), np.float64).reshape(-1, 2)


def draw(training: np.ndarray, evaluation: np.ndarray, title: str, path: Path) -> None:
    """Draws the curves.

    Args:
        training: step and loss, [points, 2].
        evaluation: step and loss, [points, 2], possibly without points.
        title: name of the run.
        path: PNG file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes.plot(*training.T, color=_TRAINING_COLOUR, linewidth=1.6, label="training")
    if len(evaluation):
        axes.plot(*evaluation.T, "o", color=_EVALUATION_COLOUR, markersize=6, label="evaluation")
        step, loss = evaluation[-1]
        axes.annotate(
            f"{loss:.2f}",
            (step, loss),
            xytext=(-6, 8),
            textcoords="offset points",
            horizontalalignment="right",
            color=_EVALUATION_COLOUR,
        )
    axes.set_title(f"Loss of {title}", loc="left", color=_INK, fontweight="bold")
    axes.set_xlabel("step", color=_INK)
    axes.set_ylabel("loss per token (nats)", color=_INK)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.02)
    axes.legend(frameon=False)
    figure.savefig(path)
    pyplot.close(figure)


def plot(model_path: Path) -> Path:
    """Draws the loss of a run.

    Args:
        model_path: folder of the run.

    Returns:
        The PNG file.

    Raises:
        ValueError: the run has logged no loss.
    """
    metrics = model_path / "metrics.jsonl"
    training = read_points([metrics] if metrics.is_file() else [], "step")
    if not len(training):
        raise ValueError(
            f"model_path must hold metrics.jsonl with at least one loss; got {model_path}. "
            "Train the model first."
        )
    evaluation = read_points(sorted(model_path.glob("eval_*.jsonl")), "global_step")
    path = model_path / "loss.png"
    draw(training, evaluation, model_path.resolve().name, path)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: arguments without the program name; those of the process if None.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser(description="Draws the loss of a run as a PNG file.")
    parser.add_argument("model_path", type=Path, help="folder of the run")
    try:
        print(plot(parser.parse_args(argv).model_path))
    except ValueError as error:
        print(f"plot_metrics.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
