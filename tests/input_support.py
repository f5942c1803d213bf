"""What the tests of the input share: configs, numbered records, and reading what is read."""

import numpy as np
import tensorflow as tf

from configs.load import parse_config
from data.record_writer import RecordWriter
from inputs import evaluation_input, open_sources, training_input

N_CTX, N_VOCAB, BATCH = 11, 997, 3
LENGTH = N_CTX + 1
EOS = N_VOCAB - 1


def config_of(folder, entries=None, **values):
    """A config of data sets below `folder`, each a name or [name, stitch, mode, weight]."""
    entries = entries or ["tiny"]
    datasets = []
    for entry in entries:
        name, *options = entry if isinstance(entry, list) else [entry, None, None, None]
        dataset = {
            "id": name,
            "n_vocab": values.get("n_vocab", N_VOCAB),
            "path": str(folder / name / "train_*.tfrecords"),
            "eval_path": str(folder / name / "eval_*.tfrecords"),
            "tokenizer_is_pretrained": False,
            "tokenizer_path": "none.json",
            "eos_id": values.get("n_vocab", N_VOCAB) - 1,
        }
        datasets.append([dataset, *options])
    standard = {
        "model_path": str(folder / "run"),
        "n_layer": 2,
        "n_embd": 20,
        "n_head": 5,
        "n_ctx": N_CTX,
        "n_vocab": N_VOCAB,
        "train_steps": 100,
        "train_batch_size": BATCH,
        "shuffle_input_filenames": False,
        "seed": 0,
    }
    return parse_config(standard | {"datasets": datasets} | values)


MODES = ["chunks", "documents_fixed", "documents_random"]


def config_in_mode(folder, mode, names=("tiny",), stitch=1, weights=(1.0, 3.0), **values):
    """As `config_of`, all data sets in one of MODES."""
    if mode == "chunks":
        entries = [[name, None, None, weight] for name, weight in zip(names, weights)]
        return config_of(folder, entries, **values)
    entries = [[name, stitch, mode, weight] for name, weight in zip(names, weights)]
    return config_of(folder, entries, input_fn="generic_text", **values)


def write(folder, name, records, files_per=100_000):
    with RecordWriter(str(folder), name, files_per) as writer:
        for record in records:
            writer.write(record)


def numbered(count, first=0):
    """Records that show their number: record r holds r * 12 ... r * 12 + 11."""
    return (np.arange(first * LENGTH, (first + count) * LENGTH)).reshape(count, LENGTH)


def batches_of(input_fn, seed, count=None):
    """Runs an input function as an Estimator does: in a graph with the seed of the run."""
    read = []
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(seed)
        following = input_fn({})
        initializers = []
        if isinstance(following, tf.data.Dataset):
            iterator = tf.compat.v1.data.make_initializable_iterator(following)
            initializers, following = iterator.initializer, iterator.get_next()
        with tf.compat.v1.Session() as session:
            session.run([initializers, tf.compat.v1.tables_initializer()])
            while count is None or len(read) < count:
                try:
                    read.append(session.run(following))
                except tf.errors.OutOfRangeError:
                    assert count is None, f"the stream ended after {len(read)} batches"
                    break
    return read


def sequences(config, start_step, steps):
    """The training sequences [steps * batch, n_ctx + 1] from `start_step` on."""
    first = start_step * config.train_batch_size
    input_fn = training_input(config, open_sources(config, training=True), first)
    rows = []
    for features, labels in batches_of(input_fn, config.seed, steps):
        assert features["inputs"].shape == labels.shape == (config.train_batch_size, N_CTX)
        assert features["inputs"].dtype == labels.dtype == np.int32
        np.testing.assert_array_equal(features["inputs"][:, 1:], labels[:, :-1])
        rows.append(np.concatenate([features["inputs"], labels[:, -1:]], 1))
    return np.concatenate(rows)


def evaluated(config, max_batches=0):
    input_fn = evaluation_input(config, open_sources(config, training=False), max_batches)
    read = batches_of(input_fn, config.seed)
    for features, labels in read:
        assert features["inputs"].shape == labels.shape == (config.eval_batch_size, N_CTX)
        np.testing.assert_array_equal(features["inputs"][:, 1:], labels[:, :-1])
    weights = np.stack([features["row_weights"] for features, _ in read])
    rows = np.stack([np.concatenate([f["inputs"], ls[:, -1:]], 1) for f, ls in read])
    return rows, weights
