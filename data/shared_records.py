"""Whether all hosts of a run see the same record files, so that each can read for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np
import tensorflow as tf

from data.records import compression_of
from data.sources import Source
from utils.cluster import Cluster, Host
from utils.errors import reason

_TOGETHER = 16  # files that are opened at once


def _first_records(files: Sequence[str]) -> tf.Tensor:
    """A hash of each file's first record, 0 where there is none, [files] int64."""

    def first(path: tf.Tensor, compression: tf.Tensor) -> tf.Tensor:
        records = tf.data.TFRecordDataset(path, compression).take(1)
        nothing = tf.constant(0, tf.int64)
        return records.reduce(nothing, lambda _, record: _hash(record))

    compressions = [compression_of(path) for path in files]
    paths = tf.data.Dataset.from_tensor_slices((list(files), compressions))
    hashes = paths.map(first, num_parallel_calls=_TOGETHER).batch(len(files))
    return hashes.reduce(tf.zeros([len(files)], tf.int64), lambda _, found: found)


def _hash(record: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(record, np.iinfo(np.int64).max)


def _read_on(host: Host, files: Sequence[str], target: str, timeout_seconds: int) -> np.ndarray:
    config = tf.compat.v1.ConfigProto(
        device_filters=[host.task], operation_timeout_in_ms=1000 * timeout_seconds
    )
    with tf.Graph().as_default() as graph:
        with tf.device(host.device("device:CPU:0")):
            hashes = _first_records(files)
        with tf.compat.v1.Session(target, graph=graph, config=config) as session:
            return session.run(hashes)


def difference(sources: Sequence[Source], cluster: Cluster, target: str) -> Optional[str]:
    """Says which host does not see the chief's records, and what it sees instead.

    Args:
        sources: of ``open_sources``.
        cluster: of the run, all hosts of which serve.
        target: TensorFlow's server of the chief.

    Returns:
        None if every file is there on every host and begins with the same record.
    """
    files = [path for source in sources for path in source.files]
    expected = _read_on(cluster.chief, files, target, cluster.timeout_seconds)
    for host in cluster.hosts[1:]:
        try:
            found = _read_on(host, files, target, cluster.timeout_seconds)
        except tf.errors.OpError as error:
            return f"{host}: {reason(error)}"
        if (found != expected).any():
            path = files[int(np.argmax(found != expected))]
            return f"{host}: {path} begins with another record"
    return None
