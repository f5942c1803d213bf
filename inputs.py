"""Config to input functions: which tokens are in which batch.

The stream of training sequences is a function of the config alone: sequence number ``r`` is the
same in every run. A run that resumes begins at the first sequence that it has not read
(utils/batch_sizes.py), whichever epoch that is in, and parses no record before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from configs.names import CHUNKS
from configs.schema import Config
from data.masking import EVALUATION_SEED, masked_example
from data.mixing import choices_from, drawn_before
from data.record_parsing import (
    check_lengths,
    inputs_and_labels,
    parse_records,
    record_names,
    refuse_unless,
)
from data.record_streams import epoch_of_records, records_from
from data.sources import Source, open_sources
from utils.host_rows import HostRows

__all__ = [
    "Source",
    "epoch_of_step",
    "evaluation_input",
    "hosts_training_input",
    "open_sources",
    "training_input",
]

InputFn = Callable[[dict[str, Any]], Any]
"""From the params of an Estimator to (features, labels), or to a dataset of these."""

SHUFFLE_BUFFER_DOCUMENTS = 1000  # times stitch, as in GPT-Neo


def _as_written(input_fn: InputFn) -> InputFn:
    """``input_fn`` with its functions as they are: none branches on tensors.

    TensorFlow would rewrite each as if it did, and look for what it calls, which takes seconds.
    """
    plain = tf.autograph.experimental.do_not_convert(input_fn)
    return lambda params: plain(params)  # an Estimator looks for an argument of this name


def epoch_of_step(
    sources: Sequence[Source], sequences_before: Callable[[int], int]
) -> Callable[[int], float]:
    """The function from updates made to epochs read (over all sources together).

    Args:
        sources: of ``open_sources``.
        sequences_before: sequences read by so many updates.
    """
    sequences = sum(source.sequences for source in sources)
    return lambda step: sequences_before(step) / sequences


def _names_in(source: Source, files: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    return record_names(tf.gather(tf.constant(source.files), files), numbers)


def _chunks_from(source: Source, start: int, config: Config) -> tf.data.Dataset:
    """The records from number ``start`` of an endless repetition on."""

    def windows(serialized: tf.Tensor, files: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
        names = _names_in(source, files, numbers)
        return check_lengths(
            parse_records(serialized, names, source.id, config), names, source.id, config
        )

    return records_from(source, start).map(windows).unbatch()


def _window(documents: tf.Tensor, number: tf.Tensor, source: Source, config: Config) -> tf.Tensor:
    """Cuts one window of at most n_ctx + 1 ids out of stitched documents [ids]."""
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
        shuffled = (
            epoch_of_records(source)
            .unbatch()
            .shuffle(buffer, seed=number + config.seed, reshuffle_each_iteration=False)
        )
        return shuffled.batch(source.stitch, drop_remainder=True)

    def join(number: tf.Tensor, record: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        serialized, files, numbers = record
        names = _names_in(source, files, numbers)
        ids = parse_records(serialized, names, source.id, config)
        eos = tf.fill([source.stitch, 1], config.eos_id)
        window = _window(tf.concat([ids, eos], 1).flat_values, number, source, config)
        enough = refuse_unless(
            tf.equal(tf.size(window), config.n_ctx + 1),
            f"{source.stitch} stitched documents of {source.id} must hold n_ctx + 1 = "
            f"{config.n_ctx + 1} ids; got ",
            tf.strings.as_string(tf.size(window)),
            ", the shortest in ",
            names[tf.argmin(ids.row_lengths())],
            ". Raise the stitch of this dataset.",
        )
        with tf.control_dependencies([enough]):
            return tf.ensure_shape(tf.identity(window), [config.n_ctx + 1])

    first_epoch, skipped = divmod(start, source.sequences)
    epochs = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
    return epochs.flat_map(epoch).skip(skipped).enumerate(start).map(join)


def _sequences_from(source: Source, start: int, config: Config) -> tf.data.Dataset:
    """Sequences of one source from number ``start`` on, without end.

    Each is [n_ctx + 1] int32, with the ids that are no labels as their complement.
    """
    if source.mode == CHUNKS:
        return _chunks_from(source, start, config)
    return _documents_from(source, start, config)


def _mixture(sources: Sequence[Source], start: int, config: Config) -> tf.data.Dataset:
    """The training stream from sequence number ``start`` on."""
    if len(sources) == 1:
        return _sequences_from(sources[0], start, config)
    weights = [source.weight for source in sources]
    begins = drawn_before(weights, config.seed, start)
    streams = [_sequences_from(source, begin, config) for source, begin in zip(sources, begins)]
    choices = choices_from(weights, config.seed, start)
    return tf.data.Dataset.choose_from_datasets(streams, choices)


def _batches(
    stream: tf.data.Dataset, first: int, seed: int, batch_size: int, whole: bool, config: Config
) -> tf.data.Dataset:
    """Batches of (inputs, labels), each [batch, n_ctx] int32.

    Args:
        stream: sequences [n_ctx + 1] of ``_sequences_from``.
        first: number of the first of them, for the masks of ``mlm_training``.
        seed: of these masks.
        batch_size: sequences.
        whole: whether a last batch of fewer is left out.
        config: a checked config.
    """
    if config.causal:
        return stream.batch(batch_size, drop_remainder=whole).map(inputs_and_labels)
    numbered = stream.enumerate(first)
    examples = numbered.map(lambda number, ids: masked_example(ids, number, seed, config))
    return examples.batch(batch_size, drop_remainder=whole)


def _training_batches(config: Config, sources: Sequence[Source], first: int) -> tf.data.Dataset:
    """All of ``training_input``, as (inputs, labels)."""
    stream = _mixture(sources, first, config)
    return _batches(stream, first, config.seed, config.train_batch_size, True, config)


def training_input(config: Config, sources: Sequence[Source], first: int) -> InputFn:
    """The input function of training.

    Args:
        config: a checked config.
        sources: of ``open_sources``.
        first: number of the first sequence, which is how many were read before.

    Returns:
        Input function of ({"inputs": [batch, n_ctx] int32}, labels [batch, n_ctx] int32). With
        ``mlm_training`` inputs and labels are those of data/masking.py, else labels are the
        inputs shifted by one, and NOT_PREDICTED where the record's ``loss_mask`` is 0.
    """

    @_as_written
    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        batches = _training_batches(config, sources, first)
        pairs = batches.map(lambda inputs, labels: ({"inputs": inputs}, labels))
        return pairs.prefetch(tf.data.AUTOTUNE)

    return input_fn


def hosts_training_input(
    config: Config, sources: Sequence[Source], first: int, hosts: Sequence[HostRows]
) -> InputFn:
    """As ``training_input``, but every host reads the rows that its processors work on.

    All hosts are in the same stream at the same place, and each drops the rows of the others. They
    compare hashes of every batch, and a difference stops the run.

    Args:
        config: a checked config.
        sources: of ``open_sources``; every host must have the same files.
        first: number of the first sequence.
        hosts: of the mesh.

    Returns:
        Input function of ({"inputs": slices}, label slices): of each batch one slice per
        processor, on its host.
    """

    @_as_written
    def input_fn(params: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        inputs: dict[int, tf.Tensor] = {}
        labels: dict[int, tf.Tensor] = {}
        digests = []
        for host in hosts:
            with tf.device(host.device):
                batches = _training_batches(config, sources, first).map(_own_rows(host.rows))
                batches = batches.prefetch(tf.data.AUTOTUNE)
                iterator = tf.compat.v1.data.make_initializable_iterator(batches)
                # What a session runs before its first step.
                tf.compat.v1.add_to_collection(
                    tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer
                )
                host_inputs, host_labels, digest = iterator.get_next()
                digests.append(digest)
                inputs |= host.slices(host_inputs)
                labels |= host.slices(host_labels)
        with tf.device(hosts[0].device), tf.control_dependencies([_same_batch(digests, hosts)]):
            # No step comes to its end without the slices of the first processor.
            inputs[0], labels[0] = tf.identity(inputs[0]), tf.identity(labels[0])
        return {"inputs": _in_order(inputs)}, _in_order(labels)

    return input_fn


def _own_rows(rows: Sequence[int]) -> Callable[..., tuple[tf.Tensor, ...]]:
    """From a whole batch to (inputs and labels of some rows, hash of the whole)."""

    def own(inputs: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, ...]:
        digest = tf.strings.to_hash_bucket_fast(
            tf.io.serialize_tensor(tf.stack([inputs, labels])), np.iinfo(np.int64).max
        )
        return tf.gather(inputs, rows), tf.gather(labels, rows), digest

    return own


def _same_batch(digests: Sequence[tf.Tensor], hosts: Sequence[HostRows]) -> tf.Operation:
    other = tf.not_equal(tf.stack(digests), digests[0])
    device = tf.gather(tf.constant([host.device for host in hosts]), tf.argmax(other))
    return refuse_unless(
        ~tf.reduce_any(other),
        "all hosts must read the same records; got another batch on ",
        device,
        " than on the first host. Give all hosts the same files, and go on from the last "
        "checkpoint.",
    )


def _in_order(slices: dict[int, tf.Tensor]) -> tuple[tf.Tensor, ...]:
    return tuple(slices[processor] for processor in sorted(slices))


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

    @_as_written
    def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        stream = _sequences_from(sources[0], 0, config).take(sources[0].sequences)
        for source in sources[1:]:
            more = _sequences_from(source, 0, config).take(source.sequences)
            stream = stream.concatenate(more)
        batches = _batches(stream, 0, EVALUATION_SEED, batch_size, False, config).map(filled)
        return (batches.take(max_batches) if max_batches else batches).prefetch(2)

    return input_fn


def _fill(part: tf.Tensor, batch_size: int) -> tf.Tensor:
    """Fills a batch [rows, ...] up to ``batch_size`` rows with zeros, and so with weights of 0."""
    lacking = [[0, batch_size - tf.shape(part)[0]]] + [[0, 0]] * (part.shape.rank - 1)
    return tf.ensure_shape(tf.pad(part, lacking), [batch_size, *part.shape[1:]])
