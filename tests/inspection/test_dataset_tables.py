"""Histograms and summaries of manifests."""

import dataclasses

import pytest

from data.manifest import Counts, Manifest, TokenizerIdentity
from data.manifest_check import FoundManifest
from inspection.dataset_tables import histogram, manifest_lines


def test_classes_double():
    assert histogram([0, 1, 2, 3, 4, 7, 7, 16]) == [
        "       0  1  ██████████",
        "       1  1  ██████████",
        "  2 to 3  2  ████████████████████",
        "  4 to 7  3  ██████████████████████████████",
        " 8 to 15  0",
        "16 to 31  1  ██████████",
    ]


def test_only_classes_that_are_there():
    lines = histogram([1024] * 1000 + [2048])
    assert lines[0] == "1,024 to 2,047  1,000  " + "█" * 30
    assert lines[1] == "2,048 to 4,095      1  █"
    assert histogram([0, 1]) == [f"0  1  {'█' * 30}", f"1  1  {'█' * 30}"]


@pytest.mark.parametrize("lengths", [[], [5], [0, 0], [9] * 7])
def test_equal_lengths_need_no_histogram(lengths):
    assert histogram(lengths) == []


MANIFEST = Manifest(
    name="train",
    tokenizer=TokenizerIdentity("my.json", 8192, 0, "0123456789abcdef" * 4),
    mode="chunks",
    chunk_size=1024,
    separator=(0,),
    options={"seed": 3, "ftfy": True, "minimum_size": 1, "suffix": [], "text_key": None},
    counts=Counts(10, 7, {"too small": 2, "bad": 1}, 4, 4200, 4100, {"tail": 100}, 16_800),
    files={"train_0_3.tfrecords": 3, "train_1_1.tfrecords": 1},
    loss_mask=True,
)


def test_summary_of_a_manifest():
    assert manifest_lines([FoundManifest("x/train.manifest.json", MANIFEST, frozenset())]) == [
        "manifest   x/train.manifest.json: chunks of 1,024 + 1 ids in 2 file(s), 4 records, "
        "separator 0, loss mask",
        "tokenizer  my.json, 8,192 ids, end of text 0, fingerprint 01234567",
        "documents  10 read = 7 kept + 3 dropped (2 too small, 1 bad)",
        "tokens     4,200 read = 4,100 kept + 100 dropped (100 tail); 16,800 bytes of text, "
        "4.00 per token",
        "options    seed=3 ftfy=True minimum_size=1",
    ]


def test_summary_of_documents():
    manifest = dataclasses.replace(
        MANIFEST, mode="documents", chunk_size=None, separator=(), options={}, loss_mask=False
    )
    first, *_, last = manifest_lines([FoundManifest("m", manifest, frozenset())])
    assert first == "manifest   m: whole documents in 2 file(s), 4 records, separator none"
    assert last == "options    none"


def test_records_without_a_manifest():
    [line] = manifest_lines([])
    assert line.startswith("manifest   none")
