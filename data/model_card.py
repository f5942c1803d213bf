"""README.md of a folder with a model that is passed on: what it is, was made of, and scores."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Optional

from pydantic.fields import FieldInfo

from configs.model_keys import ArchitectureKeys, SizeKeys
from configs.schema import Config
from data.manifest import Manifest
from data.manifest_check import find_manifests
from data.record_globs import matching_files
from utils.files import names_in, read_bytes

CARD_FILE = "README.md"
_METRICS_FILE = "metrics.jsonl"
_TRAINING = ("step", "loss", "learning_rate", "tokens_per_second")


def title(name: str, step: int) -> str:
    """The heading."""
    return f"# {name}, step {step:,}"


def description(config: Config, parameters: int) -> list[str]:
    """What the model is, and every key of the network that is not at its default."""
    kind = "continues texts" if config.causal else "fills gaps in texts"
    padding = ""
    if config.vocab_padding:
        padding = f" (the last {config.vocab_padding} rows have no token)"
    lines = [
        f"A GPT of {parameters:,} parameters that {kind}: {config.n_layer} layers of width "
        f"{config.n_embd} with {config.n_head} heads, a window of {config.n_ctx} tokens, a "
        f"vocabulary of {config.n_vocab}{padding}. `config.json` has all settings.",
        "",
        "| key | value |",
        "| --- | --- |",
    ]
    shown = config.to_json_dict()
    for section in (SizeKeys, ArchitectureKeys):
        lines += [
            f"| `{key}` | `{json.dumps(shown[key])}` |"
            for key, field in section.model_fields.items()
            if key in shown and getattr(config, key) != _default(field)
        ]
    return lines


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True, validated_data={})


def data_lines(config: Config) -> list[str]:
    """The records of the config's datasets, as far as they are at hand and have a manifest."""
    lines: list[str] = []
    for source in config.sources:
        for use, pattern in (("training", source.train_glob), ("evaluation", source.eval_glob)):
            lines += [_data_row(source.id, use, item) for item in _manifests(source.id, pattern)]
    if not lines:
        return []
    return [
        "",
        "## Data",
        "",
        "| dataset | for | records | documents | tokens | tokenizer |",
        "| --- | --- | ---: | ---: | ---: | --- |",
        *lines,
    ]


def _manifests(dataset_id: str, pattern: Optional[str]) -> list[Manifest]:
    try:
        files = matching_files(pattern, dataset_id) if pattern else []
        return [found.manifest for found in find_manifests(files)]
    except (OSError, ValueError):  # records need not be where the model is passed on
        return []


def _data_row(dataset_id: str, use: str, manifest: Manifest) -> str:
    counts = manifest.counts
    cells = (
        f"{dataset_id} ({manifest.name})",
        use,
        f"{counts.records:,}",
        f"{counts.documents_kept:,}",
        f"{counts.tokens_kept:,}",
        f"{os.path.basename(manifest.tokenizer.name)}, {manifest.tokenizer.size:,} ids",
    )
    return f"| {' | '.join(cells)} |"


def result_lines(run_folder: str, step: int) -> list[str]:
    """Scores and training loss of a run at a step, or the last ones before it.

    Args:
        run_folder: of the run; one without results has no lines.
        step: of the checkpoint that is passed on.
    """
    rows: list[str] = []
    for name in names_in(run_folder):
        if name.startswith("eval_") and name.endswith(".jsonl"):
            scores = _last_entry(os.path.join(run_folder, name), "global_step", step)
            rows += _score_rows(f"evaluation ({name})", "global_step", scores, tuple(scores))
    metrics = os.path.join(run_folder, _METRICS_FILE)
    if _METRICS_FILE in names_in(run_folder):
        entry = _last_entry(metrics, "step", step)
        rows += _score_rows("training", "step", entry, _TRAINING)
    if not rows:
        return []
    heading = ["", "## Results", "", "| of | step | score | value |", "| --- | ---: | --- | ---: |"]
    return heading + rows


def _score_rows(
    origin: str, step_key: str, entry: dict[str, Any], keys: Sequence[str]
) -> list[str]:
    return [
        f"| {origin} | {entry[step_key]} | {key} | {entry[key]:.6g} |"
        for key in keys
        if key != step_key and isinstance(entry.get(key), (int, float))
    ]


def _last_entry(path: str, step_key: str, step: int) -> dict[str, Any]:
    """The last line of a file of results that is of a step up to ``step``; {} if there is none."""
    found: dict[str, Any] = {}
    for line in read_bytes(path).decode("utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # a line that a killed run has begun
            continue
        if isinstance(entry, dict) and isinstance(entry.get(step_key), int):
            found = entry if entry[step_key] <= step else found
    return found
