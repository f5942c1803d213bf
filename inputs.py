"""Config to input functions: which tokens are in which batch.

The stream of training sequences is a function of the config alone: sequence number ``r`` is the
same in every run. A run that resumes at step ``s`` begins at sequence ``s * train_batch_size``,
whichever epoch that is in, and reads no record before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from configs.datasets import DatasetSource
from configs.schema import Config
from data.records import FEATURE, natural_sorted, read_records, record_count

InputFn = Callable[[dict[str, Any]], tf.data.Dataset]

SHUFFLE_BUFFER_DOCUMENTS = 1000  # times stitch, as in GPT-Neo
_MIX_BLOCK = 1 << 16


@dataclass(frozen=True)
class Source:
    """The record files of one entry of ``datasets``.

    Attributes:
        id: name of the dataset.
        files: paths in reading order.
        counts: records of each file.
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
        return self.records if self.mode == "chunks" else self.records // self.stitch


def _count(path: str) -> int:
    try:
        return record_count(path)
    except ValueError:  # made elsewhere: no number in the name, so its records are counted
        return sum(1 for _ in read_records(path))


def _open_source(source: DatasetSource, pattern: str, config: Config, shuffled: bool) -> Source:
    files = natural_sorted(tf.io.gfile.glob(pattern))
    if not files:
        raise ValueError(
            f"dataset {source.id} must match at least one record file; got none for {pattern}. "
            "Make records with data/create_tfrecords.py or correct the dataset config's path."
        )
    if shuffled:
        order = np.random.Generator(np.random.PCG64(config.seed)).permutation(len(files))
        files = [files[number] for number in order]
    counts = tuple(_count(path) for path in files)
    return Source(source.id, tuple(files), counts, source.mode, source.stitch, source.weight)


def _check_first_record(source: Source, config: Config) -> None:
    """Looks at one record, so that wrong data is named before anything is built."""
    for path, count in zip(source.files, source.counts):
        if count == 0:
            continue
        ids = next(read_records(path), None)
        if ids is None:
            raise ValueError(
                f"record file {path} must hold as many records as its name says; got 0 instead of "
                f"{count}. Make the records again."
            )
        if source.mode == "chunks" and len(ids) != config.n_ctx + 1:
            raise ValueError(
                f"records of {source.id} must hold n_ctx + 1 = {config.n_ctx + 1} ids; got "
                f"{len(ids)} in {path}. Set n_ctx to {len(ids) - 1}, or make the records again "
                f"with --chunk_size {config.n_ctx}."
            )
        if len(ids) and (ids.max() >= config.n_vocab or ids.min() < 0):
            raise ValueError(
                f"ids of {source.id} must lie in [0, n_vocab = {config.n_vocab}); got "
                f"{ids.min()} to {ids.max()} in {path}. Set n_vocab to the tokenizer's size."
            )
        return
    raise ValueError(f"dataset {source.id} must hold records; got 0. Make the records again.")


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
    kind = "path" if training else "eval_path"
    found = [
        (source, pattern)
        for source in config.sources
        if (pattern := source.train_glob if training else source.eval_glob)
    ]
    if not found:
        raise ValueError(
            f"datasets must name at least one dataset with a {kind}; got none. Add one to the "
            "config."
        )
    sources = [
        _open_source(source, pattern, config, training and config.shuffle_input_filenames)
        for source, pattern in found
    ]
    for source in sources:
        _check_first_record(source, config)
    sequences = sum(source.sequences for source in sources)
    if training and sequences < config.train_batch_size:
        raise ValueError(
            f"train_batch_size must not exceed the sequences of the data; got "
            f"{config.train_batch_size} with {sequences} sequence(s). Lower train_batch_size or "
            "add data."
        )
    return sources


def epoch_of_step(sources: Sequence[Source], batch_size: int) -> Callable[[int], float]:
    """Returns the function from updates made to epochs read (over all sources together)."""
    sequences = sum(source.sequences for source in sources)
    return lambda step: step * batch_size / sequences


def _parse(serialized: tf.Tensor) -> tf.Tensor:
    features = {FEATURE: tf.io.VarLenFeature(tf.int64)}
    parsed = tf.io.parse_single_example(serialized, features)
    return tf.cast(tf.sparse.to_dense(parsed[FEATURE]), tf.int32)


def _check_ids(ids: tf.Tensor, config: Config, name: str) -> tf.Tensor:
    """[n_ctx + 1] int32, refused when it has another length or an id that is out of range."""
    wrong_length = tf.debugging.assert_equal(
        tf.size(ids),
        config.n_ctx + 1,
        message=f"sequences of {name} must hold n_ctx + 1 ids. Make the records again with "
        f"--chunk_size {config.n_ctx}, or stitch more documents",
    )
    too_large = tf.debugging.assert_less(
        ids,
        config.n_vocab,
        message=f"ids of {name} must be below n_vocab. Set n_vocab to the tokenizer's size",
    )
    negative = tf.debugging.assert_non_negative(
        ids, message=f"ids of {name} must be at least 0. Make the records again"
    )
    with tf.control_dependencies([wrong_length, too_large, negative]):
        return tf.ensure_shape(tf.identity(ids), [config.n_ctx + 1])


def _chunks_from(source: Source, start: int) -> tf.data.Dataset:
    """Serialized records from number ``start`` of an endless repetition of the files."""
    position = start % source.records
    number = 0
    while position >= source.counts[number]:
        position -= source.counts[number]
        number += 1
    rest = tf.data.TFRecordDataset(list(source.files[number:])).skip(position)
    return rest.concatenate(tf.data.TFRecordDataset(list(source.files)).repeat())


def _window(documents: tf.Tensor, number: tf.Tensor, source: Source, config: Config) -> tf.Tensor:
    """Cuts one window of n_ctx + 1 ids out of stitched documents [ids]."""
    size = config.n_ctx + 1
    if source.mode == "documents_random":
        last = tf.maximum(tf.size(documents) - size, 0)
        seed = tf.stack([tf.cast(config.seed, tf.int64), number])
        begin = tf.random.stateless_uniform([], seed, 0, last + 1, tf.int32)
        return documents[begin : begin + size]
    return documents[:size]


def _documents_from(source: Source, start: int, config: Config) -> tf.data.Dataset:
    """Windows from sequence number ``start`` on: ``stitch`` shuffled documents, joined by eos."""

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        files = tf.data.TFRecordDataset(list(source.files))
        buffer = SHUFFLE_BUFFER_DOCUMENTS * source.stitch
        shuffled = files.shuffle(buffer, seed=number + config.seed, reshuffle_each_iteration=False)
        return shuffled.batch(source.stitch, drop_remainder=True)

    def join(number: tf.Tensor, serialized: tf.Tensor) -> tf.Tensor:
        features = {FEATURE: tf.io.VarLenFeature(tf.int64)}
        parsed = tf.io.parse_example(serialized, features)[FEATURE]
        ids = tf.cast(tf.RaggedTensor.from_sparse(parsed), tf.int32)
        eos = tf.fill([source.stitch, 1], config.eos_id)
        joined = tf.concat([ids, eos], 1).flat_values
        return _window(joined, number, source, config)

    first_epoch, skipped = divmod(start, source.sequences)
    epochs = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
    return epochs.flat_map(epoch).skip(skipped).enumerate(start).map(join)


def _sequences_from(source: Source, start: int, config: Config) -> tf.data.Dataset:
    """Sequences [n_ctx + 1] int32 of one source from number ``start`` on, without end."""
    if source.mode == "chunks":
        dataset = _chunks_from(source, start).map(_parse)
    else:
        dataset = _documents_from(source, start, config)
    return dataset.map(lambda ids: _check_ids(ids, config, source.id))


def mixed_choices(weights: Sequence[float], seed: int, start: int, count: int) -> np.ndarray:
    """Which source sequence numbers ``start`` to ``start + count - 1`` come from.

    A function of seed and number alone, so that the mix can be entered anywhere.

    Args:
        weights: relative shares of the sources.
        seed: of the run.
        start: first number.
        count: numbers.

    Returns:
        [count] int64.

    Source: the mixing steps are those of SplitMix64 (Steele, Lea and Flood 2014).
    """
    value = np.arange(start, start + count, dtype=np.uint64)
    value += np.uint64(seed) << np.uint64(32)
    value *= np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform = (value ^ (value >> np.uint64(31))).astype(np.float64) / 2.0**64
    limits = np.cumsum(np.asarray(weights, np.float64)) / np.sum(weights)
    return np.minimum(np.searchsorted(limits, uniform, side="right"), len(weights) - 1)


def _blocks(start: int, end: Optional[int]) -> Iterator[tuple[int, int]]:
    while end is None or start < end:
        count = _MIX_BLOCK if end is None else min(_MIX_BLOCK, end - start)
        yield start, count
        start += count


def _mixture(sources: Sequence[Source], start: int, config: Config) -> tf.data.Dataset:
    """The training stream from sequence number ``start`` on."""
    if len(sources) == 1:
        return _sequences_from(sources[0], start, config)
    weights = [source.weight for source in sources]
    used = np.zeros(len(sources), np.int64)
    for begin, count in _blocks(0, start):
        choices = mixed_choices(weights, config.seed, begin, count)
        used += np.bincount(choices, minlength=len(sources))

    def choices_from() -> Iterator[np.ndarray]:
        for begin, count in _blocks(start, None):
            yield mixed_choices(weights, config.seed, begin, count)

    signature = tf.TensorSpec([None], tf.int64)
    choices = tf.data.Dataset.from_generator(choices_from, output_signature=signature).unbatch()
    streams = [_sequences_from(source, int(begin), config) for source, begin in zip(sources, used)]
    return tf.data.Dataset.choose_from_datasets(streams, choices)


def training_input(config: Config, sources: Sequence[Source], start_step: int) -> InputFn:
    """The input function of training.

    Args:
        config: a checked config.
        sources: of ``open_sources``.
        start_step: updates made so far.

    Returns:
        Input function of ({"inputs": [batch, n_ctx] int32}, labels [batch, n_ctx] int32).
    """
    batch_size = config.train_batch_size

    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        stream = _mixture(sources, start_step * batch_size, config)
        batches = stream.batch(batch_size, drop_remainder=True)
        pairs = batches.map(lambda ids: ({"inputs": ids[:, :-1]}, ids[:, 1:]))
        return pairs.prefetch(tf.data.AUTOTUNE)

    return input_fn


def evaluation_input(config: Config, sources: Sequence[Source], max_batches: int) -> InputFn:
    """The input function of evaluation: the sources one after another, once.

    Args:
        config: a checked config.
        sources: of ``open_sources``.
        max_batches: at most so many; 0 for all. The last batch is filled with rows of weight 0.

    Returns:
        Input function of ({"inputs": [batch, n_ctx] int32, "row_weights": [batch] float32},
        labels [batch, n_ctx] int32).
    """
    batch_size = config.eval_batch_size

    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        stream = _sequences_from(sources[0], 0, config).take(sources[0].sequences)
        for source in sources[1:]:
            more = _sequences_from(source, 0, config).take(source.sequences)
            stream = stream.concatenate(more)
        weighted = stream.map(lambda ids: (ids, 1.0))
        batches = weighted.padded_batch(batch_size)
        batches = batches.map(lambda ids, weights: _fill(ids, weights, batch_size))
        return (batches.take(max_batches) if max_batches else batches).prefetch(2)

    return input_fn


def _fill(ids: tf.Tensor, weights: tf.Tensor, batch_size: int) -> tuple[Any, tf.Tensor]:
    """Fills a batch [rows, n_ctx + 1] up to ``batch_size`` rows with rows of weight 0."""
    lacking = batch_size - tf.shape(ids)[0]
    ids = tf.pad(ids, [[0, lacking], [0, 0]])
    ids = tf.ensure_shape(ids, [batch_size, ids.shape[1]])
    weights = tf.ensure_shape(tf.pad(weights, [[0, lacking]]), [batch_size])
    return {"inputs": ids[:, :-1], "row_weights": weights}, ids[:, 1:]
