"""Config to input functions: which tokens are in which batch.

The stream of training sequences is a function of the config alone: sequence number ``r`` is the
same in every run. A run that resumes at step ``s`` begins at sequence ``s * train_batch_size``,
whichever epoch that is in, and reads no record before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional, Union

import numpy as np
import tensorflow as tf

from configs.names import CHUNKS
from configs.schema import Config
from data.masking import EVALUATION_SEED, masked_example
from data.records import FEATURE, wrong_count
from data.sources import Source, open_sources

__all__ = [
    "Source",
    "epoch_of_step",
    "evaluation_input",
    "mixed_choices",
    "open_sources",
    "training_input",
]

InputFn = Callable[[dict[str, Any]], tf.data.Dataset]

SHUFFLE_BUFFER_DOCUMENTS = 1000  # times stitch, as in GPT-Neo
_MIX_BLOCK = 1 << 16
_COUNTED_TOGETHER = 64  # records


def epoch_of_step(sources: Sequence[Source], batch_size: int) -> Callable[[int], float]:
    """Returns the function from updates made to epochs read (over all sources together)."""
    sequences = sum(source.sequences for source in sources)
    return lambda step: step * batch_size / sequences


def _parse(serialized: tf.Tensor) -> tf.Tensor:
    features = {FEATURE: tf.io.VarLenFeature(tf.int64)}
    parsed = tf.io.parse_single_example(serialized, features)
    return tf.cast(tf.sparse.to_dense(parsed[FEATURE]), tf.int32)


def _refuse_unless(holds: tf.Tensor, *message: Union[str, tf.Tensor]) -> tf.Operation:
    """Stops the run with a message, the parts of which may be known only while reading."""
    return tf.debugging.Assert(holds, [tf.strings.join(message)])


def _check_ids(ids: tf.Tensor, source: Source, config: Config) -> tf.Tensor:
    """[n_ctx + 1] int32, refused when it has another length or an id that is out of range."""
    if source.mode == CHUNKS:
        what, remedy = "records", f"Make the records again with --chunk_size {config.n_ctx}."
    else:
        what, remedy = f"{source.stitch} stitched documents", "Raise the stitch of this dataset."
    wrong_length = _refuse_unless(
        tf.equal(tf.size(ids), config.n_ctx + 1),
        f"{what} of {source.id} must hold n_ctx + 1 = {config.n_ctx + 1} ids; got ",
        tf.strings.as_string(tf.size(ids)),
        f". {remedy}",
    )
    with tf.control_dependencies([wrong_length]):
        lowest, highest = tf.reduce_min(ids), tf.reduce_max(ids)
    wrong_id = _refuse_unless(
        (lowest >= 0) & (highest < config.n_vocab),
        f"ids of {source.id} must lie in [0, n_vocab = {config.n_vocab}); got ",
        tf.strings.as_string(lowest),
        " to ",
        tf.strings.as_string(highest),
        ". Set n_vocab to the size of the tokenizer.",
    )
    with tf.control_dependencies([wrong_id]):
        return tf.ensure_shape(tf.identity(ids), [config.n_ctx + 1])


def _records_of(
    path: tf.Tensor, count: tf.Tensor, skipped: tf.Tensor, message: tf.Tensor
) -> tf.data.Dataset:
    """Serialized records of one file, behind the first ``skipped``; refuses a false ``count``.

    Where a run resumes follows from the numbers in the file names, so a false one would go on
    with other data than a run without a break. Counting on the way costs nothing to speak of and
    covers files of any size and place; those looked at before the run are only the first.
    """
    batches = tf.data.TFRecordDataset(path).skip(skipped).batch(_COUNTED_TOGETHER)
    # An empty batch marks the end, and is gone again after unbatch.
    ended = batches.concatenate(tf.data.Dataset.from_tensors(tf.constant([], tf.string)))

    def step(number: tf.Tensor, batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        following = number + tf.size(batch, tf.int64)
        right = tf.where(tf.size(batch) > 0, following <= count, tf.equal(number, count))
        with tf.control_dependencies([tf.debugging.Assert(right, [message])]):
            return following, tf.identity(batch)

    return ended.scan(skipped, step).unbatch()


def _files_from(source: Source, number: int, skipped: int) -> tf.data.Dataset:
    """Serialized records of the files from ``number`` on, behind ``skipped`` of the first one."""
    files, counts = source.files[number:], source.counts[number:]
    skips = [skipped] + [0] * (len(files) - 1)
    messages = [wrong_count(path, "fewer or more") for path in files]
    int64s = [tf.constant(values, tf.int64) for values in (counts, skips)]
    return tf.data.Dataset.from_tensor_slices((list(files), *int64s, messages)).flat_map(
        _records_of
    )


def _chunks_from(source: Source, start: int) -> tf.data.Dataset:
    """Serialized records from number ``start`` of an endless repetition of the files."""
    position = start % source.records
    number = 0
    while position >= source.counts[number]:
        position -= source.counts[number]
        number += 1
    rest = _files_from(source, number, position)
    return rest.concatenate(_files_from(source, 0, 0).repeat())


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
        buffer = SHUFFLE_BUFFER_DOCUMENTS * source.stitch
        shuffled = _files_from(source, 0, 0).shuffle(
            buffer, seed=number + config.seed, reshuffle_each_iteration=False
        )
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
    if source.mode == CHUNKS:
        dataset = _chunks_from(source, start).map(_parse)
    else:
        dataset = _documents_from(source, start, config)
    return dataset.map(lambda ids: _check_ids(ids, source, config))


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


def _examples(stream: tf.data.Dataset, first: int, seed: int, config: Config) -> tf.data.Dataset:
    """Sequences [n_ctx + 1], numbered from ``first``, to (inputs, labels), each [n_ctx] int32."""
    if config.causal:
        return stream.map(lambda ids: (ids[:-1], ids[1:]))
    numbered = stream.enumerate(first)
    return numbered.map(lambda number, ids: masked_example(ids, number, seed, config))


def training_input(config: Config, sources: Sequence[Source], start_step: int) -> InputFn:
    """The input function of training.

    Args:
        config: a checked config.
        sources: of ``open_sources``.
        start_step: updates made so far.

    Returns:
        Input function of ({"inputs": [batch, n_ctx] int32}, labels [batch, n_ctx] int32). With
        ``mlm_training`` inputs and labels are those of data/masking.py, else labels are the
        inputs shifted by one.
    """
    batch_size = config.train_batch_size

    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        first = start_step * batch_size
        stream = _mixture(sources, first, config)
        examples = _examples(stream, first, config.seed, config)
        batches = examples.batch(batch_size, drop_remainder=True)
        pairs = batches.map(lambda inputs, labels: ({"inputs": inputs}, labels))
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
        labels [batch, n_ctx] int32); see ``training_input``. The masks of ``mlm_training`` are the
        same in every evaluation.
    """
    batch_size = config.eval_batch_size

    def filled(inputs: tf.Tensor, labels: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        weights = tf.ones([tf.shape(inputs)[0]])
        features = {"inputs": _fill(inputs, batch_size), "row_weights": _fill(weights, batch_size)}
        return features, _fill(labels, batch_size)

    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        stream = _sequences_from(sources[0], 0, config).take(sources[0].sequences)
        for source in sources[1:]:
            more = _sequences_from(source, 0, config).take(source.sequences)
            stream = stream.concatenate(more)
        examples = _examples(stream, 0, EVALUATION_SEED, config)
        batches = examples.batch(batch_size).map(filled)
        return (batches.take(max_batches) if max_batches else batches).prefetch(2)

    return input_fn


def _fill(part: tf.Tensor, batch_size: int) -> tf.Tensor:
    """Fills a batch [rows, ...] up to ``batch_size`` rows with zeros, and so with weights of 0."""
    lacking = [[0, batch_size - tf.shape(part)[0]]] + [[0, 0]] * (part.shape.rank - 1)
    return tf.ensure_shape(tf.pad(part, lacking), [batch_size, *part.shape[1:]])
