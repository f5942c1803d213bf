"""Records with a loss mask: which labels count, in every way of reading, and what is refused."""

import re

import numpy as np
import pytest
import tensorflow as tf

from data.masking import NOT_PREDICTED
from inputs import evaluation_input, open_sources, training_input
from tests.data.test_labelled_records import write_examples
from tests.input_support import (
    BATCH,
    EOS,
    LENGTH,
    MODES,
    batches_of,
    config_in_mode,
    config_of,
)
from tests.support import Forward, large_weights, make_config, train
from utils.errors import reason

RECORDS = 9


def make_records(count, first, length, masked):
    """(ids, mask or None) of records of which every id is in one record only."""
    random = np.random.default_rng(first)
    made = []
    for number in range(first, first + count):
        ids = np.arange(number * length, (number + 1) * length)
        # Some records of a masked dataset count whole and say so, others have no mask.
        mask = (random.random(length) < 0.5).astype(int) if masked and number % 4 else None
        made.append((ids, np.ones(length, int) if masked and number % 8 == 4 else mask))
    return made


RECORDS_OF = {
    (name, kind): make_records(RECORDS, RECORDS * number, length, masked=number == 0)
    for number, name in enumerate(["masked", "plain"])
    for kind, length in (("chunks", LENGTH), ("documents", 7))
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset with masks and one without, each in two files, as chunks and as documents."""
    folder = tmp_path_factory.mktemp("labelled")
    for (name, kind), records in RECORDS_OF.items():
        (folder / kind / name).mkdir(parents=True)
        for split in ("train", "eval"):
            write_examples(folder / kind / name / f"{split}_0_4.tfrecords", *records[:4])
            write_examples(folder / kind / name / f"{split}_1_5.tfrecords", *records[4:])
    return folder


def kind_of(mode):
    return "chunks" if mode == "chunks" else "documents"


def counts_by_id(mode):
    """Whether an id counts as a label, by the id; separators do."""
    counts = {EOS: True}
    for (_, kind), records in RECORDS_OF.items():
        if kind == kind_of(mode):
            for ids, mask in records:
                flags = np.ones(len(ids), int) if mask is None else mask
                counts |= dict(zip(ids.tolist(), flags.astype(bool).tolist()))
    return counts


def check(inputs, labels, mode):
    """Inputs hide nothing; each label is the id that follows, if that counts."""
    assert inputs.min() >= 0
    counts = counts_by_id(mode)
    following = inputs[:, 1:]
    flags = np.vectorize(counts.get)(following)
    np.testing.assert_array_equal(labels[:, :-1], np.where(flags, following, NOT_PREDICTED))
    assert 0 < flags.sum() < flags.size
    assert (labels[:, -1] == NOT_PREDICTED).any() and (labels[:, -1] >= 0).any()


def rows(pairs):
    return (np.concatenate([f["inputs"] for f, _ in pairs]), np.concatenate([b for _, b in pairs]))


@pytest.mark.parametrize("mode", MODES)
def test_labels_count_by_the_mask_in_a_mix_with_records_without_one(folder, mode):
    config = config_in_mode(folder / kind_of(mode), mode, ("masked", "plain"), stitch=3)
    sources = open_sources(config, training=True)
    inputs, labels = rows(batches_of(training_input(config, sources, 0), config.seed, 12))
    check(inputs, labels, mode)
    if mode == "chunks":  # the last label is of the record's last id
        last = inputs[:, -1] + 1
        expected = np.where(np.vectorize(counts_by_id(mode).get)(last), last, NOT_PREDICTED)
        np.testing.assert_array_equal(labels[:, -1], expected)
    again = rows(batches_of(training_input(config, sources, 5 * BATCH), config.seed, 7))
    np.testing.assert_array_equal(again, [inputs[5 * BATCH :], labels[5 * BATCH :]])


@pytest.mark.parametrize("mode", ["chunks", "documents_fixed"])
def test_labels_count_by_the_mask_in_evaluation(folder, mode):
    config = config_in_mode(folder / kind_of(mode), mode, ("masked", "plain"), stitch=3)
    sources = open_sources(config, training=False)
    pairs = batches_of(evaluation_input(config, sources, 0), config.seed)
    kept = np.concatenate([features["row_weights"] for features, _ in pairs]) > 0
    inputs, labels = rows(pairs)
    assert kept.sum() == (18 if mode == "chunks" else 6)
    check(inputs[kept], labels[kept], mode)


def test_the_training_loss_is_the_mean_over_labels_that_count(tmp_path):
    """Against numpy, with a batch in which rows have different numbers of labels, and none."""
    random = np.random.default_rng(6)
    ids = random.integers(0, 22, (6, 11))
    masks = (random.random((6, 11)) < 0.4).astype(int)
    masks[2], masks[4] = 0, 1
    write_examples(tmp_path / "train_0_6.tfrecords", *zip(ids, masks))
    config = make_config(
        datasets=[[str(tmp_path / "train_*"), "", 1, None, 1.0]],
        model_path=str(tmp_path / "run"),
        train_steps=1,
        eval_batch_size=6,
        z_loss=0.0,
    )
    input_fn = training_input(config, open_sources(config, training=True), 0)
    [(features, labels)] = batches_of(input_fn, config.seed, 1)
    trained = train(config, [(features["inputs"], labels)], large_weights)
    logits = Forward(config, str(tmp_path / "run" / "model.ckpt-0"))(ids[:, :-1])["logits"]
    logits = logits.astype(np.float64)
    losses = (
        np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
    )
    expected = losses[masks[:, 1:] == 1].mean()
    assert trained.metrics[0]["loss"] == pytest.approx(expected, rel=1e-5)
    assert abs(expected - losses.mean()) > 1e-2


# ---- refusals ----------------------------------------------------------------------------------


def masked_config(folder):
    return config_of(folder, mlm_training=True, mlm_mask_id=2)


def write_one(folder, masks):
    (folder / "tiny").mkdir()
    records = [(np.arange(LENGTH), mask) for mask in masks]
    write_examples(folder / "tiny" / f"train_0_{len(masks)}.tfrecords", *records)
    return folder / "tiny" / f"train_0_{len(masks)}.tfrecords"


def test_masked_language_models_take_no_masked_records(tmp_path):
    file = write_one(tmp_path, [[1] * LENGTH] * 3)
    with pytest.raises(ValueError) as caught:
        open_sources(masked_config(tmp_path), training=True)
    assert str(caught.value) == (
        f"records must have no loss_mask with mlm_training; got one in record 1 of {file}. Set "
        "mlm_training to false, or use other records."
    )


@pytest.mark.parametrize(
    ("mask", "masked_model", "message"),
    [
        ([1] * LENGTH, True, "records must have no loss_mask with mlm_training; got one in"),
        ([0, 1], False, f"0 or 1 for each of its {LENGTH} ids; got 2 numbers in"),
        ([0, 1, 2] * 4, False, "0 or 1 for each of its ids; got 2 in"),
        ([0, 1, -1] * 4, False, "0 or 1 for each of its ids; got -1 in"),
    ],
)
def test_later_masks_that_do_not_fit_are_named_while_reading(tmp_path, mask, masked_model, message):
    file = write_one(tmp_path, [None, None, None, None, mask, None])
    config = masked_config(tmp_path) if masked_model else config_of(tmp_path)
    input_fn = training_input(config, open_sources(config, training=True), 0)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        batches_of(input_fn, config.seed, 2)
    assert re.search(re.escape(f"{message} record 5 of {file}. "), reason(caught.value))
