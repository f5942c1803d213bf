"""Records without a single label are refused before training, and named by --check_dataset."""

import logging

import numpy as np
import pytest

from data import label_check, sources
from inputs import open_sources
from inspection.dataset_check import check_datasets
from tests.input_support import LENGTH, N_CTX, config_of, numbered, write

NONE = "must predict at least one token of tiny; got none in "


def problems_of_check(config):
    return [line for check in check_datasets(config, True) for line in check.problems]


def refused_for(config):
    with pytest.raises(ValueError, match=NONE) as caught:
        open_sources(config, training=True)
    return str(caught.value)


def prompts_of(lengths, size=LENGTH):
    """A record per length, whose first so many ids are masked."""
    records = []
    for length in lengths:
        ids = np.arange(size, dtype=np.int32)
        records.append(np.where(np.arange(size) < length, ~ids, ids))
    return records


def test_chunks_without_labels_are_refused(tmp_path):
    write(tmp_path / "tiny", "train", prompts_of([LENGTH] * 3))
    config = config_of(tmp_path)
    message = refused_for(config)
    assert f"{NONE}3 records. Add data whose loss_mask is not 0 everywhere" in message
    assert message in problems_of_check(config)


def test_the_first_id_of_a_window_is_no_label(tmp_path):
    masks = [np.where(np.arange(LENGTH) == 0, record, ~record) for record in numbered(3)]
    write(tmp_path / "tiny", "train", masks)
    refused_for(config_of(tmp_path))


def test_one_label_is_enough(tmp_path):
    write(tmp_path / "tiny", "train", prompts_of([LENGTH, LENGTH, LENGTH - 1]))
    open_sources(config_of(tmp_path), training=True)


def test_more_records_than_are_looked_at_are_a_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(label_check, "RECORDS_SEARCHED", 2)
    monkeypatch.setattr(sources, "RECORDS_SEARCHED", 2)
    write(tmp_path / "tiny", "train", prompts_of([LENGTH, LENGTH, 3]))
    open_sources(config_of(tmp_path), training=True)
    [record] = caplog.records
    assert record.levelno == logging.WARNING and f"{NONE}2 of 3 records" in record.message


@pytest.mark.parametrize(
    ("mode", "length", "refused"),
    [
        ("documents_fixed", N_CTX + 1, True),
        ("documents_fixed", N_CTX, False),  # the end of text is a label
        ("documents_random", N_CTX + 1, False),  # so it is in some windows
    ],
)
def test_documents(tmp_path, mode, length, refused):
    write(tmp_path / "tiny", "train", prompts_of([length] * 6, length))
    entries = [["tiny", 2, mode, 1.0]]
    config = config_of(tmp_path, entries, input_fn="generic_text")
    if refused:
        refused_for(config)
    else:
        open_sources(config, training=True)


def test_ids_that_a_masked_model_never_chooses(tmp_path):
    write(tmp_path / "tiny", "train", [[5] * LENGTH] * 3)
    keys = {"mlm_training": True, "mlm_mask_id": 7}
    open_sources(config_of(tmp_path, **keys), training=True)
    message = refused_for(config_of(tmp_path, mlm_mask_ignore_ids=[5], **keys))
    assert message.endswith("name fewer in mlm_mask_ignore_ids.")
