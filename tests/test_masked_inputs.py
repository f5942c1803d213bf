"""The stream of masked sequences: exact when resumed, other masks in each epoch, one evaluation."""

import numpy as np
import pytest
import tensorflow as tf

from data.masking import NOT_PREDICTED
from data.record_writer import RecordWriter
from inputs import evaluation_input, open_sources, training_input
from tests.support import make_config

N_CTX, N_VOCAB, RECORDS, BATCH = 24, 500, 7, 3
MASK, CLS = 2, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masked")
    for name in ("train", "eval"):
        with RecordWriter(str(folder), name, files_per=3) as writer:
            for record in records():
                writer.write(record.tolist())
    return folder


def records():
    return np.random.default_rng(0).integers(4, N_VOCAB, (RECORDS, N_CTX + 1))


def config_of(folder, **keys):
    entry = [str(folder / "train_*"), str(folder / "eval_*"), 1, "chunks", 1.0]
    standard = {"datasets": [entry], "train_batch_size": BATCH, "n_ctx": N_CTX}
    standard |= {"n_vocab": N_VOCAB, "shuffle_input_filenames": False, "seed": 5}
    standard |= {"mlm_training": True, "mlm_mask_id": MASK, "mlm_cls_token_id": CLS}
    return make_config(**(standard | keys))


def rows_of(input_fn, count):
    """(inputs, labels, weights or None) of ``count`` batches, one row each."""
    with tf.Graph().as_default():
        following = tf.compat.v1.data.make_one_shot_iterator(input_fn({})).get_next()
        with tf.compat.v1.Session() as session:
            read = [session.run(following) for _ in range(count)]
    inputs = np.concatenate([features["inputs"] for features, _ in read])
    labels = np.concatenate([labels for _, labels in read])
    assert inputs.shape == labels.shape
    weights = [features["row_weights"] for features, _ in read if "row_weights" in features]
    return inputs, labels, np.concatenate(weights) if weights else None


def trained_on(config, start_step, steps):
    sources = open_sources(config, training=True)
    return rows_of(training_input(config, sources, start_step * config.train_batch_size), steps)[:2]


def evaluated(config, batches):
    sources = open_sources(config, training=False)
    return rows_of(evaluation_input(config, sources, 0), batches)


def test_the_class_token_comes_first_and_what_is_hidden_are_the_records(folder):
    inputs, labels = trained_on(config_of(folder), 0, 5)
    shown = np.where(labels == NOT_PREDICTED, inputs, labels)
    assert (inputs[:, 0] == CLS).all()
    expected = np.tile(records(), (3, 1))[: 5 * BATCH, : N_CTX - 1]
    np.testing.assert_array_equal(shown[:, 1:], expected)
    assert (inputs[labels != NOT_PREDICTED] == MASK).mean() > 0.5


def test_without_a_class_token_the_first_n_ctx_ids_are_used(folder):
    inputs, labels = trained_on(config_of(folder, mlm_cls_token_id=None), 0, 2)
    shown = np.where(labels == NOT_PREDICTED, inputs, labels)
    np.testing.assert_array_equal(shown, records()[: 2 * BATCH, :N_CTX])


def test_a_resumed_stream_and_another_batch_size_see_the_same_masks(folder):
    whole = trained_on(config_of(folder), 0, 14)  # six epochs
    for start in (1, 6, 11):
        for got, expected in zip(trained_on(config_of(folder), start, 3), whole):
            np.testing.assert_array_equal(got, expected[start * BATCH :][:9])
    for got, expected in zip(trained_on(config_of(folder, train_batch_size=6), 2, 3), whole):
        np.testing.assert_array_equal(got, expected[12:30])


def test_every_epoch_hides_other_tokens(folder):
    _, labels = trained_on(config_of(folder), 0, 14)
    masks = (labels != NOT_PREDICTED).reshape(6, RECORDS, N_CTX)
    assert len(np.unique(masks, axis=0)) == 6
    assert len(np.unique(masks[:, 0], axis=0)) == 6
    _, other = trained_on(config_of(folder, seed=6), 0, 14)
    assert not np.array_equal(other, labels)


def test_an_evaluation_repeats_whatever_the_seed_and_the_batch_size(folder):
    inputs, labels, weights = evaluated(config_of(folder, eval_batch_size=4), 2)
    np.testing.assert_array_equal(weights, [1] * RECORDS + [0])
    again = evaluated(config_of(folder, eval_batch_size=7, seed=9), 1)
    np.testing.assert_array_equal(again[0], inputs[:RECORDS])
    np.testing.assert_array_equal(again[1], labels[:RECORDS])
    assert (labels[:RECORDS] != NOT_PREDICTED).sum(1).min() > 0
    assert len(np.unique(labels[:RECORDS] != NOT_PREDICTED, axis=0)) == RECORDS
