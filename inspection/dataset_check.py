"""What is in the records: counts, lengths, ids and samples of every dataset of a config."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from configs.datasets import DatasetSource
from configs.names import CHUNKS
from configs.schema import Config
from data.records import natural_sorted, read_records, record_count
from data.tokenizers import GPT2_NAME, Tokenizer, load_tokenizer
from utils.errors import reason

RECORDS_READ = 2000
_FILES_READ = 20
_SAMPLES = 2
_SAMPLE_TOKENS = 60
_AROUND_SEPARATOR_TOKENS = 12


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


@dataclass(frozen=True)
class _Files:
    """Record files that match a glob, with the number of records in each name."""

    paths: tuple[str, ...]
    counts: tuple[int, ...]


def _find(pattern: str) -> _Files:
    """Lists the record files.

    Raises:
        ValueError: there is none, the folder cannot be read, or a name carries no number.
    """
    try:
        paths = natural_sorted(tf.io.gfile.glob(pattern))
    except tf.errors.OpError as error:
        raise ValueError(
            f"record files must be readable; got {reason(error)} for {pattern}. Correct the "
            "dataset config's path."
        ) from error
    if not paths:
        raise ValueError(
            f"path must match at least one record file; got none for {pattern}. Make records "
            "with data/create_tfrecords.py or correct the dataset config's path."
        )
    return _Files(tuple(paths), tuple(record_count(path) for path in paths))


def _count_records(path: str) -> int:
    """Counts the records of a file by reading it once.

    Raises:
        ValueError: the file is damaged.
    """
    graph = tf.Graph()
    with graph.as_default():
        one, none = tf.constant(1, tf.int64), tf.constant(0, tf.int64)
        count = tf.data.TFRecordDataset(path).reduce(none, lambda total, _: total + one)
    try:
        with tf.compat.v1.Session(graph=graph) as session:
            return int(session.run(count))
    except tf.errors.OpError as error:
        raise ValueError(
            f"record file must be whole; got {path} ({reason(error)}). Make the records again."
        ) from error


def _spread(files: _Files) -> list[tuple[str, np.ndarray]]:
    """(path, ids) of at most RECORDS_READ records, from files spread over the whole dataset."""
    step = max(len(files.paths) // _FILES_READ, 1)
    chosen = files.paths[::step][:_FILES_READ]
    per_file = -(-RECORDS_READ // len(chosen))
    return [(path, ids) for path in chosen for ids in islice(read_records(path), per_file)]


def _length_problem(
    records: Sequence[tuple[str, np.ndarray]], source: DatasetSource, config: Config
) -> Optional[str]:
    needed = config.n_ctx + 1
    if source.mode == CHUNKS:
        for path, ids in records:
            if len(ids) != needed:
                return (
                    f"records must hold n_ctx + 1 = {needed} ids; got {len(ids)} in {path}. Set "
                    f"n_ctx to {len(ids) - 1}, or make the records again with --chunk_size "
                    f"{config.n_ctx}."
                )
        return None
    shortest = min(len(ids) for _, ids in records)
    if source.stitch * (shortest + 1) < needed:
        return (
            f"{source.stitch} stitched documents must hold n_ctx + 1 = {needed} ids; got "
            f"{shortest} in the shortest. Raise stitch to {-(-needed // (shortest + 1))}."
        )
    return None


def _id_problem(records: Sequence[tuple[str, np.ndarray]], config: Config) -> Optional[str]:
    for path, ids in records:
        if len(ids) and (ids.min() < 0 or ids.max() >= config.n_vocab):
            return (
                f"ids must lie in [0, n_vocab = {config.n_vocab}); got {ids.min()} to "
                f"{ids.max()} in a record of {path}. Set n_vocab to the tokenizer's size."
            )
    return None


# Most datasets of a config share one.
_load_once = lru_cache(maxsize=4)(load_tokenizer)


def _tokenizer(source: DatasetSource) -> Tokenizer:
    if source.dataset is None:
        return _load_once(GPT2_NAME, True)
    return _load_once(source.dataset.tokenizer_path, source.dataset.tokenizer_is_pretrained)


def _visible(tokenizer: Tokenizer, ids: Sequence[int], config: Config) -> str:
    """Text on one line; the ids that separate and fill are shown as ⟦eos⟧ and ⟦pad⟧."""
    names = {config.padding_id: "pad", config.eos_id: "eos"}
    pieces = []
    for name, run in groupby(ids, key=lambda token: names.get(token)):
        tokens = list(run)
        if name is None:
            pieces.append(tokenizer.decode(tokens).replace("\n", "⏎").replace("\t", "⇥"))
        else:
            pieces.append(f"⟦{name}⟧" if len(tokens) == 1 else f"⟦{name} x{len(tokens)}⟧")
    return "".join(pieces)


def _sample(tokenizer: Tokenizer, record: np.ndarray, config: Config) -> str:
    """The start of a record, and the surroundings of its first separator if that comes later."""
    ids = [int(token) for token in record]
    text = _visible(tokenizer, ids[:_SAMPLE_TOKENS], config)
    if len(ids) <= _SAMPLE_TOKENS:
        return text
    separators = [place for place, token in enumerate(ids) if token == config.eos_id]
    if separators and separators[0] >= _SAMPLE_TOKENS:
        begin = max(separators[0] - _AROUND_SEPARATOR_TOKENS, _SAMPLE_TOKENS)
        end = separators[0] + _AROUND_SEPARATOR_TOKENS
        text += " … " + _visible(tokenizer, ids[begin:end], config)
    return text + " …"


def _content(
    records: Sequence[tuple[str, np.ndarray]], source: DatasetSource, config: Config
) -> tuple[list[str], list[str]]:
    """(lines, problems) of records that were read."""
    lengths = [len(ids) for _, ids in records]
    filled = [ids for _, ids in records if len(ids)]
    lines = [
        f"length     {min(lengths):,} to {max(lengths):,} ids, mean {np.mean(lengths):,.1f}, in "
        f"{len(records):,} records read"
    ]
    if filled:
        low, high = min(ids.min() for ids in filled), max(ids.max() for ids in filled)
        lines.append(f"ids        {low} to {high}; n_vocab {config.n_vocab:,}")
    found = (_length_problem(records, source, config), _id_problem(records, config))
    problems = [problem for problem in found if problem is not None]
    try:
        tokenizer = _tokenizer(source)
        for number, (_, ids) in enumerate(records[:_SAMPLES], start=1):
            lines.append(f"sample {number}   {_sample(tokenizer, ids, config)}")
    except ValueError as error:
        problems.append(str(error))
    return lines, problems


def _check_source(source: DatasetSource, pattern: str, kind: str, config: Config) -> SourceCheck:
    name = f"{source.id}, {kind}"
    try:
        files = _find(pattern)
        real = _count_records(files.paths[0])
        records = _spread(files)
    except ValueError as error:
        return SourceCheck(name, (f"files      {pattern}",), (str(error),), 0, source.weight)
    total = sum(files.counts)
    lines = [f"files      {len(files.paths):,} of {pattern}, {total:,} records by their names"]
    problems = []
    if real != files.counts[0]:
        problems.append(
            f"the number in a file name must be that of its records; got {real:,} in "
            f"{files.paths[0]}. Rename it to end with _{real}.tfrecords."
        )
    if not records:
        problems.append(
            f"a dataset must hold records; got 0 in {os.path.basename(files.paths[0])} and those "
            "after it. Make the records again."
        )
        return SourceCheck(name, tuple(lines), tuple(problems), 0, source.weight)
    content, wrong = _content(records, source, config)
    sequences = total if source.mode == CHUNKS else total // source.stitch
    return SourceCheck(name, (*lines, *content), (*problems, *wrong), sequences, source.weight)


def check_datasets(config: Config, training: bool) -> list[SourceCheck]:
    """Looks at the records of each dataset.

    Args:
        config: a checked config.
        training: True for the training records, False for the evaluation records.

    Returns:
        One check per entry of ``datasets`` that has such records.
    """
    kind = "training" if training else "evaluation"
    return [
        _check_source(source, pattern, kind, config)
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
        Per dataset: files, records, lengths, ids, samples and sequences; each problem is a line
        that begins with ERROR, and the last line counts them.

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
    sequences = sum(check.sequences for check in training)
    problems = sum(len(check.problems) for check in (*training, *evaluation))
    lines.append(
        f"{sequences:,} training sequences, {sequences / config.train_batch_size:,.1f} steps in "
        f"all; train_steps {config.train_steps:,}"
    )
    lines.append("all OK" if not problems else f"{problems} ERROR line(s) above")
    return DatasetReport("\n".join(lines), problems)
