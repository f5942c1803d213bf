"""What is in the records: counts, lengths, ids and samples of every dataset of a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, Optional

import numpy as np

from configs.datasets import DatasetSource
from configs.names import CHUNKS
from configs.schema import Config
from data.label_check import Record, label_problem
from data.manifest_check import FoundManifest, ManifestCheck, content_problem
from data.records import (
    count_records,
    is_local,
    read_labelled_records,
    read_lengths,
    record_count,
    wrong_count,
)
from data.sources import (
    Source,
    batch_problem,
    chunk_problem,
    find_source,
    id_problem,
    mask_problem,
    overlap_warnings,
    shortest_document,
    size_problem,
    stitch_problem,
)
from data.tokenizers import GPT2_NAME, Tokenizer, load_tokenizer
from inspection.dataset_samples import LEGEND, sample
from inspection.dataset_tables import histogram, manifest_lines
from inspection.fine_tuning import suggestion_lines

RECORDS_READ = 2000
_FILES_READ = 20
_PROBLEMS_SHOWN = 5
_SAMPLES = 2


@dataclass(frozen=True)
class SourceCheck:
    """What was found in one dataset, for training or for evaluation.

    Attributes:
        name: of the dataset and what it is for.
        lines: findings, one per line.
        problems: why training or evaluation would fail or go wrong, one per line.
        sequences: of one epoch; 0 if unknown.
        weight: relative share in the mix.
    """

    name: str
    lines: tuple[str, ...]
    problems: tuple[str, ...]
    sequences: int
    weight: float


def _counted(source: Source) -> tuple[int, int, list[str]]:
    """(files counted, their records, problems of their names).

    The first file is read whole, which finds damage too; the others are counted by jumps from
    record to record, which needs a local file.

    Raises:
        ValueError: a file is damaged.
    """
    first, *others = source.files
    counts = {first: sum(len(lengths) for lengths in read_lengths([first]))}
    counts |= {path: count_records(path) for path in others if is_local(path)}
    problems = [
        wrong_count(path, f"{count}")
        for path, count in counts.items()
        if count != record_count(path)
    ]
    if len(problems) > _PROBLEMS_SHOWN:
        more = len(problems) - _PROBLEMS_SHOWN
        problems[_PROBLEMS_SHOWN:] = [f"{more} more record file(s) with a false number of records"]
    return len(counts), sum(counts.values()), problems


def _spread(source: Source) -> list[Record]:
    """At most RECORDS_READ records, from files spread over the whole dataset."""
    step = max(len(source.files) // _FILES_READ, 1)
    chosen = source.files[::step][:_FILES_READ]
    per_file = -(-RECORDS_READ // len(chosen))
    return [
        (path, ids, mask)
        for path in chosen
        for ids, mask in islice(read_labelled_records(path), per_file)
    ]


def _length_problem(
    records: Sequence[tuple[str, np.ndarray]], source: Source, config: Config
) -> Optional[str]:
    if source.mode == CHUNKS:
        return chunk_problem(records, source, config)
    shortest = min(shortest_document(source), *(len(ids) for _, ids in records))
    return stitch_problem(shortest, source, config)


# Most datasets of a config share one.
_load_once = lru_cache(maxsize=4)(load_tokenizer)


def _tokenizer(source: DatasetSource) -> Tokenizer:
    if source.dataset is None:
        return _load_once(GPT2_NAME, True)
    return _load_once(source.dataset.tokenizer_path, source.dataset.tokenizer_is_pretrained)


def _labels_line(records: Sequence[Record]) -> list[str]:
    """How many ids count, if some record says that not all do."""
    masks = [mask for _, _, mask in records if mask is not None]
    if not masks:
        return []
    everything = sum(len(ids) for _, ids, _ in records)
    hidden = sum(len(mask) - int(mask.sum()) for mask in masks)
    share = (everything - hidden) / max(everything, 1)
    return [
        f"labels     {share:.1%} of the ids count; {len(masks):,} of {len(records):,} records have "
        "a loss_mask"
    ]


def _content(
    records: Sequence[Record],
    source: Source,
    tokenizer_of: DatasetSource,
    config: Config,
    manifests: Sequence[FoundManifest],
) -> tuple[list[str], list[str]]:
    """(lines, problems) of records that were read."""
    lengths = [len(ids) for _, ids, _ in records]
    filled = [ids for _, ids, _ in records if len(ids)]
    lines = [
        f"length     {min(lengths):,} to {max(lengths):,} ids, mean {np.mean(lengths):,.1f}, in "
        f"{len(records):,} records read",
        *(f"           {line}" for line in histogram(lengths)),
    ]
    if filled:
        low, high = min(ids.min() for ids in filled), max(ids.max() for ids in filled)
        lines.append(f"ids        {low} to {high}; n_vocab {config.n_vocab:,}")
    lines += _labels_line(records)
    unmasked = [(path, ids) for path, ids, _ in records]
    masked = [record for record in records if record[2] is not None][:1]
    no_labels = label_problem(records, source, config)
    if no_labels is not None and len(records) < source.records:  # others may have some
        lines.append(f"WARNING    {no_labels}")
        no_labels = None
    found = (
        mask_problem(masked[0][0] if masked else None, config),
        _length_problem(unmasked, source, config),
        id_problem(unmasked, source, config),
        content_problem(manifests, [*masked, *records], source.id),
        no_labels,
    )
    problems = [problem for problem in found if problem is not None]
    try:
        tokenizer = _tokenizer(tokenizer_of)
        for number, (_, ids, mask) in enumerate(records[:_SAMPLES], start=1):
            lines.append(f"sample {number}   {sample(tokenizer, ids, mask, config)}")
    except ValueError as error:
        problems.append(str(error))
    return lines, problems


def _check_source(
    entry: DatasetSource, pattern: str, kind: str, manifests: ManifestCheck, config: Config
) -> SourceCheck:
    name = f"{entry.id}, {kind}"
    try:
        source = find_source(entry, pattern)
        findings = manifests.look(source.id, source.files, source.mode)
        counted, found, problems = _counted(source)
        records = _spread(source)
    except ValueError as error:
        return SourceCheck(name, (f"files      {pattern}",), (str(error),), 0, entry.weight)
    lines = [
        f"files      {len(source.files):,} of {pattern}, {source.records:,} records by their names",
        f"counted    {found:,} records in {counted:,} file(s)",
        *manifest_lines(findings.found),
        *(f"WARNING    {warning}" for warning in findings.warnings),
    ]
    problems += findings.problems
    no_sequence = size_problem(source)
    if no_sequence is not None:
        problems.append(no_sequence)
    if not records:
        return SourceCheck(name, tuple(lines), tuple(problems), 0, entry.weight)
    content, wrong = _content(records, source, entry, config, findings.found)
    return SourceCheck(
        name, (*lines, *content), (*problems, *wrong), source.sequences, entry.weight
    )


def check_datasets(config: Config, training: bool) -> list[SourceCheck]:
    """Looks at the records of each dataset.

    Args:
        config: a checked config.
        training: True for the training records, False for the evaluation records.

    Returns:
        One check per entry of ``datasets`` that has such records.
    """
    kind = "training" if training else "evaluation"
    manifests = ManifestCheck(config)
    return [
        _check_source(source, pattern, kind, manifests, config)
        for source in config.sources
        if (pattern := source.train_glob if training else source.eval_glob)
    ]


def _epoch_line(check: SourceCheck, share: float, batch_size: int) -> str:
    steps = check.sequences / (batch_size * share)
    return (
        f"epoch      {check.sequences:,} sequences; {share:.1%} of the mix, so seen once in "
        f"{steps:,.1f} steps of {batch_size}"
    )


def _section(check: SourceCheck, epoch_line: Optional[str]) -> list[str]:
    lines = [check.name, *check.lines]
    if epoch_line is not None:
        lines.append(epoch_line)
    lines += [f"ERROR      {problem}" for problem in check.problems] or ["all OK"]
    return [lines[0], *("  " + line for line in lines[1:]), ""]


class DatasetReport(NamedTuple):
    """The text that ``main.py --check_dataset`` prints, and how many problems it names."""

    text: str
    problems: int


def dataset_report(config: Config) -> DatasetReport:
    """Looks at all datasets of a config.

    Args:
        config: a checked config.

    Returns:
        Per dataset: files, records, manifest, lengths, ids, samples, sequences and share; each
        problem is a line that begins with ERROR, and the last line counts them.

    Raises:
        ValueError: the config names no dataset.
    """
    if not config.sources:
        raise ValueError(
            "datasets must name at least one dataset; got none. Add one to the config."
        )
    training = check_datasets(config, training=True)
    evaluation = check_datasets(config, training=False)
    total_weight = sum(check.weight for check in training)
    lines = []
    for check in training:
        share = check.weight / total_weight
        line = _epoch_line(check, share, config.train_batch_size) if check.sequences else None
        lines += _section(check, line)
    for check in evaluation:
        batches = -(-check.sequences // config.eval_batch_size)
        line = f"epoch      {check.sequences:,} sequences, {batches:,} batches"
        lines += _section(check, line if check.sequences else None)
    if all(check.sequences for check in (*training, *evaluation)):  # else some cannot be read
        lines += [f"WARNING    {warning}" for warning in overlap_warnings(config)]
    sequences = sum(check.sequences for check in training)
    problems = sum(len(check.problems) for check in (*training, *evaluation))
    known = all(check.sequences for check in training)  # else the reason is a line above
    too_few = batch_problem(sequences, config) if known else None
    if training and too_few is not None:
        lines.append(f"ERROR      {too_few}")
        problems += 1
    lines.append(f"In samples: {LEGEND}.")
    lines.append(
        f"{sequences:,} training sequences, {sequences / config.train_batch_size:,.1f} steps in "
        f"all; train_steps {config.train_steps:,}"
    )
    if training and known and not problems:
        lines += suggestion_lines(sequences, config)
    lines.append("all OK" if not problems else f"{problems} ERROR line(s) above")
    return DatasetReport("\n".join(lines), problems)
