"""The record files of a config's datasets: found, and checked before anything is built on them.

Training and ``--check_dataset`` ask the same functions, so that they agree on what is wrong.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from configs.architecture_rules import token_range
from configs.datasets import DatasetSource
from configs.names import CHUNKS
from configs.schema import Config
from data.label_check import RECORDS_SEARCHED, label_problem, labelled_records
from data.manifest_check import FoundManifest, ManifestCheck, content_problem
from data.record_globs import matching_files
from data.records import (
    MASK_FEATURE,
    compression_of,
    count_records,
    is_local,
    read_labelled_records,
    read_lengths,
    record_count,
    wrong_count,
)

LOGGER = logging.getLogger(__name__)

# What is looked at before each run, per dataset, so that it takes about a second however large
# the data are. What lies behind is checked while it is read, by `inputs`.
RECORDS_COUNTED = 200_000
DOCUMENTS_MEASURED = 10_000
IDS_MEASURED = 50_000_000


@dataclass(frozen=True)
class Source:
    """The record files of one entry of ``datasets``.

    Attributes:
        id: name of the dataset.
        files: paths in reading order.
        counts: records of each file, by its name.
        mode: ``chunks``, ``documents_fixed`` or ``documents_random``.
        stitch: documents that make one sequence.
        weight: share in the mix, relative to the others.
    """

    id: str
    files: tuple[str, ...]
    counts: tuple[int, ...]
    mode: str
    stitch: int
    weight: float

    @property
    def records(self) -> int:
        """Records of all files."""
        return sum(self.counts)

    @property
    def sequences(self) -> int:
        """Sequences of one epoch."""
        return self.records if self.mode == CHUNKS else self.records // self.stitch


def find_source(source: DatasetSource, pattern: str, seed: Optional[int] = None) -> Source:
    """Finds the record files of a dataset.

    Args:
        source: the entry of ``datasets``.
        pattern: glob of its files for training or for evaluation.
        seed: of the random order in which the files are read; None for natural order.

    Returns:
        The files and the numbers in their names.

    Raises:
        ValueError: there is none, the folder cannot be read, or a name carries no number.
    """
    files = matching_files(pattern, source.id)
    if not files:
        raise ValueError(
            f"dataset {source.id} must match at least one record file; got none for {pattern}. "
            "Make records with data/create_tfrecords.py or correct the dataset config's path."
        )
    if seed is not None:
        order = np.random.Generator(np.random.PCG64(seed)).permutation(len(files))
        files = [files[number] for number in order]
    counts = tuple(record_count(path) for path in files)
    return Source(source.id, tuple(files), counts, source.mode, source.stitch, source.weight)


def size_problem(source: Source) -> Optional[str]:
    """Says what is wrong if a dataset has no sequence."""
    if source.records == 0:
        return f"dataset {source.id} must hold records; got 0. Make the records again."
    if source.sequences == 0:
        return (
            f"dataset {source.id} must hold at least stitch = {source.stitch} documents; got "
            f"{source.records}. Lower stitch or add data."
        )
    return None


def batch_problem(sequences: int, config: Config) -> Optional[str]:
    """Says what is wrong if all training sequences together do not fill a batch."""
    if sequences >= config.train_batch_size:
        return None
    return (
        f"train_batch_size must not exceed the sequences of the data; got "
        f"{config.train_batch_size} with {sequences} sequence(s). Lower train_batch_size or "
        "add data."
    )


def _named(records: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """(record and file in words, ids); records are counted from 1 in each file."""
    numbers: Counter[str] = Counter()
    for path, ids in records:
        numbers[path] += 1
        yield f"record {numbers[path]} of {path}", ids


def chunk_problem(
    records: Iterable[tuple[str, np.ndarray]], source: Source, config: Config
) -> Optional[str]:
    """Says what is wrong if a record is no chunk of n_ctx + 1 ids.

    Args:
        records: (path, ids) of each file's records from its first on.
        source: in mode ``chunks``.
        config: n_ctx.

    Returns:
        The problem or None.
    """
    needed = config.n_ctx + 1
    for where, ids in _named(records):
        if len(ids) != needed:
            # A record of one id or none is a mistake, and no window.
            other_window = f"Set n_ctx to {len(ids) - 1}, or make" if len(ids) > 1 else "Make"
            return (
                f"records of {source.id} must hold n_ctx + 1 = {needed} ids; got {len(ids)} in "
                f"{where}. {other_window} the records again with --chunk_size {config.n_ctx}."
            )
    return None


def stitch_problem(shortest: int, source: Source, config: Config) -> Optional[str]:
    """Says what is wrong if stitched documents may be shorter than a window.

    Only the shortest document is a guarantee: any ``stitch`` documents may come together.

    Args:
        shortest: ids of the shortest document; when stitched, each gets an end of text.
        source: in one of the document modes.
        config: n_ctx.

    Returns:
        The problem or None.

    Source: GPT-Neo's rule, stitch * minimum document length >= n_ctx.
    """
    needed = config.n_ctx + 1
    if source.stitch * (shortest + 1) >= needed:
        return None
    if shortest:
        remedy = f"Raise stitch to {-(-needed // (shortest + 1))}."
    else:
        remedy = "Make the records again without empty documents."
    return (
        f"{source.stitch} stitched documents of {source.id} must hold n_ctx + 1 = {needed} ids; "
        f"got {shortest} in the shortest. {remedy}"
    )


def id_problem(
    records: Iterable[tuple[str, np.ndarray]], source: Source, config: Config
) -> Optional[str]:
    """Says what is wrong if a record holds an id without a token; arguments as chunk_problem."""
    for where, ids in _named(records):
        if len(ids) and (ids.min() < 0 or ids.max() >= config.token_count):
            plus = " plus vocab_padding" if config.vocab_padding else ""
            return (
                f"ids of {source.id} must lie in {token_range(config)}; got "
                f"{ids.min()} to {ids.max()} in {where}. Set n_vocab to the tokenizer's size{plus}."
            )
    return None


def shortest_document(source: Source) -> int:
    """Ids of the shortest of the first documents: those measured before a run.

    Raises:
        ValueError: a file is damaged.
    """
    shortest, documents, ids = np.iinfo(np.int64).max, 0, 0
    for lengths in read_lengths(source.files):
        shortest = min(shortest, int(lengths.min()))
        documents, ids = documents + len(lengths), ids + int(lengths.sum())
        if documents >= DOCUMENTS_MEASURED or ids >= IDS_MEASURED:
            break
    return shortest


def _refuse(problem: Optional[str]) -> None:
    if problem is not None:
        raise ValueError(problem)


def _check_counts(source: Source) -> None:
    counted = 0
    for path, count in zip(source.files, source.counts):
        # Far away, counting means fetching the whole file, and compressed ones must be read.
        if counted >= RECORDS_COUNTED or not is_local(path) or compression_of(path):
            return
        found = count_records(path)
        if found != count:
            raise ValueError(wrong_count(path, f"{found}"))
        counted += count


def mask_problem(masked_in: Optional[str], config: Config) -> Optional[str]:
    """Says what is wrong with a loss mask, found somewhere, if the config draws its own labels."""
    if masked_in is None or config.causal:
        return None
    return (
        f"records must have no {MASK_FEATURE} with mlm_training; got one in {masked_in}. Set "
        "mlm_training to false, or use other records."
    )


def _check_manifests(
    source: Source, check: ManifestCheck, config: Config
) -> tuple[FoundManifest, ...]:
    findings = check.look(source.id, source.files, source.mode)
    _refuse(next(iter(findings.problems), None))
    masked = next((item.path for item in findings.found if item.manifest.loss_mask), None)
    _refuse(mask_problem(masked and f"those that {masked} lists", config))
    for warning in findings.warnings:
        LOGGER.warning("%s", warning)
    return findings.found


def _check_labels(source: Source, config: Config) -> None:
    problem = label_problem(labelled_records(source), source, config)
    if source.records <= RECORDS_SEARCHED:
        _refuse(problem)
    elif problem is not None:
        LOGGER.warning("%s", problem)


def _check_source(source: Source, config: Config, found: Sequence[FoundManifest]) -> None:
    """Looks at the first records, so that wrong data is named before anything is built."""
    _refuse(size_problem(source))
    _check_counts(source)
    path = next(path for path, count in zip(source.files, source.counts) if count)
    record = next(read_labelled_records(path), None)
    if record is None:  # far away or compressed, so not counted
        raise ValueError(wrong_count(path, "0"))
    ids, mask = record
    first = [(path, ids)]
    _refuse(mask_problem(None if mask is None else f"record 1 of {path}", config))
    if source.mode == CHUNKS:
        _refuse(chunk_problem(first, source, config))
    _refuse(id_problem(first, source, config))
    if source.mode != CHUNKS:
        _refuse(stitch_problem(shortest_document(source), source, config))
    _refuse(content_problem(found, labelled_records(source), source.id))
    _check_labels(source, config)


def overlap_warnings(config: Config) -> list[str]:
    """Says which datasets are evaluated on files that are trained on, one line each."""
    trained = {
        file
        for source in config.sources
        if source.train_glob
        for file in matching_files(source.train_glob, source.id)
    }
    lines = []
    for source in config.sources:
        held_out = matching_files(source.eval_glob, source.id) if source.eval_glob else []
        both = [file for file in held_out if file in trained]
        if both:
            lines.append(
                f"{len(both)} of {len(held_out)} record file(s) of the eval_path of {source.id} "
                f"are trained on, too, so its scores tell nothing of new text: {both[0]}"
                f"{', …' if len(both) > 1 else ''}. Narrow the glob of one of the two."
            )
    return lines


def open_sources(config: Config, training: bool) -> list[Source]:
    """Finds and checks the record files.

    Args:
        config: a checked config.
        training: True for the training globs, False for the evaluation globs.

    Returns:
        One source per entry of ``datasets`` (for evaluation, per entry with an eval glob).

    Raises:
        ValueError: no dataset, no file, too few records, or records that do not fit the config.
    """
    found = [
        (source, pattern)
        for source in config.sources
        if (pattern := source.train_glob if training else source.eval_glob)
    ]
    if not found:
        kind = "a path" if training else "an eval_path"
        raise ValueError(
            f"datasets must name at least one dataset with {kind}; got none. Add one to the config."
        )
    seed = config.seed if training and config.shuffle_input_filenames else None
    sources = [find_source(source, pattern, seed) for source, pattern in found]
    manifests = ManifestCheck(config)
    for source in sources:
        found_manifests = _check_manifests(source, manifests, config)
        _check_source(source, config, found_manifests)
    if training:
        for warning in overlap_warnings(config):
            LOGGER.warning("%s", warning)
        _refuse(batch_problem(sum(source.sequences for source in sources), config))
    return sources


def mix_lines(sources: Sequence[Source], batch_size: int) -> list[str]:
    """Says what training reads of each dataset: its share, and when it is through with it.

    Args:
        sources: of ``open_sources``.
        batch_size: sequences of an update.

    Returns:
        One line per source.
    """
    total = sum(source.weight for source in sources)
    lines = []
    for source in sources:
        share = source.weight / total
        steps = source.sequences / (batch_size * share)
        lines.append(
            f"{source.id}: {share:.1%} of the training sequences; {source.records:,} records in "
            f"{len(source.files):,} file(s) give {source.sequences:,} sequences, an epoch of it "
            f"{steps:,.1f} steps"
        )
    return lines
