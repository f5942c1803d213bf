"""Scores of a task, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

METRIC_NAMES = {
    "acc": "accuracy",
    "acc_norm": "accuracy, length-normalised",
    "exact_match": "exact match",
    "perplexity": "perplexity per last word",
    "token_perplexity": "perplexity per token",
    "word_perplexity": "perplexity per word",
    "byte_perplexity": "perplexity per byte",
    "bits_per_byte": "bits per byte",
}
"""What the harness's metrics are: ``perplexity`` is that of LAMBADA's tasks alone, whose last word
is one item however many tokens it has; ``acc_norm`` divides log-probabilities of choices by their
length in characters."""

PERCENT = ("acc", "acc_norm", "exact_match")

PUBLISHED_COLUMNS = (
    ("Wikitext PPL per word", "wikitext", "word_perplexity"),
    ("LAMBADA (OpenAI) PPL per word", "lambada_openai", "perplexity"),
    ("LAMBADA (OpenAI) acc", "lambada_openai", "acc"),
    ("LAMBADA (standard) PPL per word", "lambada_standard", "perplexity"),
    ("LAMBADA (standard) acc", "lambada_standard", "acc"),
    ("Winogrande acc", "winogrande", "acc"),
    ("HellaSwag acc", "hellaswag", "acc"),
    ("HellaSwag acc_norm", "hellaswag", "acc_norm"),
    ("PIQA acc", "piqa", "acc"),
    ("PIQA acc_norm", "piqa", "acc_norm"),
    ("MathQA acc", "mathqa", "acc"),
    ("PubMedQA acc", "pubmedqa", "acc"),
)
"""Of the tables of GPT-Neo (HellaSwag and PIQA: acc) and of GPT-J (the same: acc_norm)."""


@dataclass(frozen=True)
class TaskResult:
    """Scores of one task.

    Attributes:
        task: its name; LAMBADA's tells the variant.
        scores: by the names of the harness's metrics, ``metric (filter)`` where a task filters
            answers in several ways.
        standard_errors: of those scores that have one.
        items: that were scored; None for a group.
        shots: solved examples before each item; None for a group.
        version: of the task; None for one that has none.
    """

    task: str
    scores: dict[str, float]
    standard_errors: dict[str, float]
    items: Optional[int]
    shots: Optional[int]
    version: Any

    @classmethod
    def from_harness(cls, task: str, found: Mapping[str, Any], **counts: Any) -> TaskResult:
        """From the harness's ``metric,filter`` and ``metric_stderr,filter``."""
        scores, errors = {}, {}
        for key, value in found.items():
            metric, comma, chosen = key.partition(",")
            if not comma or not isinstance(value, (int, float)):
                continue
            suffix = "" if chosen == "none" else f" ({chosen})"
            if metric.endswith("_stderr"):
                errors[metric.removesuffix("_stderr") + suffix] = float(value)
            else:
                scores[metric + suffix] = float(value)
        errors = {name: value for name, value in errors.items() if math.isfinite(value)}
        return cls(task, scores, errors, **counts)

    def as_json(self) -> dict[str, Any]:
        """All of it, with the metrics' full names."""
        return {
            "scores": self.scores,
            "standard_errors": self.standard_errors,
            "metrics": {name: full_name(name) for name in self.scores},
            "items": self.items,
            "shots": self.shots,
            "version": self.version,
        }


def full_name(metric: str) -> str:
    """What a metric is."""
    name, space, chosen = metric.partition(" ")
    return METRIC_NAMES.get(name, name) + space + chosen


def tables(model: str, results: Sequence[TaskResult]) -> str:
    """Two tables in Markdown: every score, and those of published tables in their columns."""
    rows = [
        [
            result.task,
            full_name(metric),
            _shown(metric, value),
            _shown(metric, result.standard_errors[metric])
            if metric in result.standard_errors
            else "",
            "" if result.items is None else f"{result.items:,}",
            "" if result.shots is None else str(result.shots),
        ]
        for result in results
        for metric, value in result.scores.items()
    ]
    everything = _table(["Task", "Metric", "Value", "±", "Items", "Shots"], rows)
    by_name = {result.task: result.scores for result in results}
    columns = [
        (title, _shown(metric, by_name[task][metric]))
        for title, task, metric in PUBLISHED_COLUMNS
        if metric in by_name.get(task, {})
    ]
    if not columns:
        return everything
    published = _table(
        ["Model", *(title for title, _ in columns)], [[model, *(value for _, value in columns)]]
    )
    return f"{everything}\n{published}"


def _shown(metric: str, value: float) -> str:
    if metric.partition(" ")[0] in PERCENT:
        return f"{100 * value:.2f} %"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3e}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in x) + " |\n" for x in lines
    )
