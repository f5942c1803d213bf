"""Orders, epochs and bad documents of data/create_tfrecords.py, end to end."""

import itertools
import os

import numpy as np
import pytest

from data.create_tfrecords import main
from data.manifest import manifest_path, read_manifest
from data.shuffle import DOCUMENTS, SEQUENCES, order_hash
from data.tokenizers import load_tokenizer
from tests.data.preparation_support import (
    CHUNKS,
    TEXTS,
    WINDOW,
    arguments,
    complaint,
    encoded,
    files_of,
    make,
    prompt_of,
)

pytestmark = pytest.mark.usefixtures("small")

REFERENCE_CASES = {
    "documents": (["--mode", "documents"], None, 1, "in"),
    "documents shuffled": (["--seed", "3"], 3, 1, "in"),
    "chunks": ([*CHUNKS], None, 1, "in"),
    "chunks shuffled": ([*CHUNKS, "--seed", "3"], 3, 1, "in"),
    "epochs": ([*CHUNKS, "--repack_epochs", "3"], 10, 3, "in"),
    "epochs with a seed": ([*CHUNKS, "--n-repack-epochs", "2", "--seed", "0"], 0, 2, "in"),
    "epochs in order": ([*CHUNKS, "--repack_epochs", "3", "--preserve_data_order"], None, 3, "in"),
    "prompts": ([*CHUNKS], None, 1, "prompts.jsonl"),
    "prompts as documents": ([], None, 1, "prompts.jsonl"),
    "prompts shuffled": ([*CHUNKS, "--seed", "4"], 4, 1, "prompts.jsonl"),
}


def reference(folder, mode, seed, epochs, source):
    """The records by the definition: sorts of everything in memory."""
    documents = list(encoded(folder, source))
    stream, made = [], []
    for epoch in range(epochs):
        if seed is not None:
            hashes = {
                key: int(order_hash(seed, epoch, DOCUMENTS, [key[0]], [key[1]])[0])
                for key, _ in documents
            }
            documents.sort(key=lambda document: (hashes[document[0]], document[0]))
        if mode == "documents":
            return [ids for _, ids in documents]
        for _, ids in documents:
            stream += [*ids, 0]
        before = len(list(itertools.chain(*made))) // WINDOW
        after = len(stream) // WINDOW
        numbers = range(before, after)
        if seed is not None:
            sequence_hashes = order_hash(seed, epoch, SEQUENCES, [0] * len(numbers), numbers)
            numbers = [before + i for i in np.argsort(sequence_hashes, kind="stable")]
        made += [stream[n * WINDOW : (n + 1) * WINDOW] for n in numbers]
    return made


@pytest.mark.parametrize("case", REFERENCE_CASES)
def test_records_are_those_of_the_definition(folder, tmp_path, case, capsys):
    options, seed, epochs, source = REFERENCE_CASES[case]
    mode = "chunks" if "chunks" in options else "documents"
    expected = reference(folder, mode, seed, epochs, source)
    assert make(folder, tmp_path, *options, source=source) == expected
    manifest = read_manifest(manifest_path(str(tmp_path), "set"))
    counts = manifest.counts
    assert counts.records == len(expected) == sum(manifest.files.values())
    assert counts.tokens_kept == sum(map(len, expected))
    assert counts.tokens_read == counts.tokens_kept + sum(counts.tokens_dropped.values())
    assert counts.documents_read == counts.documents_kept == 60
    assert manifest.loss_mask == (source == "prompts.jsonl")
    assert manifest.options["seed"] == seed
    texts = [t for _, t in sorted(encoded(folder, source))]
    separators = 60 if mode == "chunks" else 0
    assert counts.tokens_read == epochs * (sum(map(len, texts)) + separators)
    size = sum(len(text.encode()) for text in TEXTS)
    if source == "prompts.jsonl":
        size += sum(len(prompt_of(n)["prompt"]) for n in range(60) if n % 3)
    assert counts.text_bytes == epochs * size
    assert set(os.listdir(tmp_path)) == {"set.manifest.json", *manifest.files}


def test_orders_of_epochs_differ_and_hold_the_same(folder, tmp_path):
    """In orders of their own, and cut elsewhere."""
    options = [*CHUNKS, "--repack_epochs", "2"]
    made = make(folder, tmp_path, *options)
    half = len(made) // 2
    first, second = made[:half], made[half:]
    assert first != sorted(first)
    common = {tuple(r) for r in first} & {tuple(r) for r in second}
    assert len(common) < 0.5 * half


@pytest.mark.parametrize("mode", ["chunks", "documents"])
def test_processes_do_not_change_shuffled_records(folder, tmp_path, mode):
    options = ["--seed", "1", *(CHUNKS if mode == "chunks" else ())]
    make(folder, tmp_path / "one", *options)
    make(folder, tmp_path / "two", *options, "--processes", "2")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_repetitive_records_are_dropped_from_the_shuffled(folder, tmp_path, capsys):
    options = [*CHUNKS, "--seed", "3"]
    every = make(folder, tmp_path / "all", *options)
    made = make(folder, tmp_path / "some", *options, "--min-unique-tokens", "5")
    kept = [record for record in every if len(set(record)) >= 5]
    assert made == kept
    assert 0 < len(kept) < len(every)
    dropped = len(every) - len(kept)
    assert (
        f"records: {len(kept)} ({dropped} of few different ids dropped)" in capsys.readouterr().out
    )
    manifest = read_manifest(manifest_path(str(tmp_path / "some"), "set"))
    assert manifest.counts.tokens_dropped["few_unique"] == dropped * WINDOW


BAD = [
    *('{"text": "one"}', '{"text": ', '{"other": 1}', '{"text": "two"}'),
    *("[1]", '{"text": "three"}', '{"text": "\\ud800"}'),
]


def test_bad_documents_are_left_out_when_asked(folder, tmp_path, capsys, caplog):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(BAD))
    (tmp_path / "in" / "b.txt").write_text("four")
    (tmp_path / "own.json").write_bytes((folder / "own.json").read_bytes())
    assert main(arguments(tmp_path, tmp_path / "out")) == 2
    assert "a.jsonl (line 2: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    made = make(tmp_path, tmp_path / "out", "--skip_bad")
    decode = load_tokenizer(str(tmp_path / "own.json"), is_pretrained=False).decode
    assert [decode(ids) for ids in made] == ["one", "two", "three", "four"]
    assert [f"line {n}: " in caplog.text for n in range(1, 8)] == [
        n in (2, 3, 5, 7) for n in range(1, 8)
    ]
    out = capsys.readouterr().out
    assert "8 read = 4 kept + 4 dropped (0 below the minimum size, 4 that cannot be read)" in out
    counts = read_manifest(manifest_path(str(tmp_path / "out"), "set")).counts
    assert counts.documents_dropped == {"too_small": 0, "bad": 4}


def test_names_of_bad_documents_are_few(folder, tmp_path, caplog):
    (tmp_path / "own.json").write_bytes((folder / "own.json").read_bytes())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "x"}\n' + "{\n" * 100)
    make(tmp_path, tmp_path / "out", "--skip_bad")
    assert caplog.text.count("left out: ") == 20
    assert "more documents are left out and counted" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "1", "--preserve_data_order"], "--seed must not be given with --preserve_data"),
        (["--repack_epochs", "2"], "--repack_epochs must be 1 in --mode documents"),
        ([*CHUNKS, "--repack_epochs", "0"], "--repack_epochs must be at least 1; got 0"),
        ([*CHUNKS, "--min_unique_tokens", "7"], "must be at most the 6 ids of a record; got 7"),
        (["--seed", "-1"], "--seed must be at least 0; got -1"),
        (["--seed", str(2**63)], "--seed must be below 2^63"),
        (["--min_unique_tokens", "90"], "at least one record must have 90 different ids; got 60"),
        (
            ["--text_key", "x"],
            "a.jsonl (line 1: an entry without the key 'x'; its keys are",
        ),
    ],
)
def test_refusals(folder, tmp_path, capsys, options, message):
    assert message in complaint(capsys, arguments(folder, tmp_path / "out", *options))
    assert not (tmp_path / "out").exists()


def test_manifest_says_how_the_records_were_made(folder, tmp_path):
    options = [*CHUNKS, "--separator", "[5,7]", "--minimum_size", "20", "--treat-eot-as-text"]
    make(folder, tmp_path, *options)
    manifest = read_manifest(manifest_path(str(tmp_path), "set"))
    assert (manifest.mode, manifest.chunk_size) == ("chunks", WINDOW - 1)
    assert (manifest.separator, manifest.eos_id) == ((5, 7), 7)
    assert manifest.tokenizer.name == str(folder / "own.json")
    assert manifest.options == {
        "text_key": "text",
        "minimum_size": 20,
        "min_unique_tokens": 0,
        "seed": None,
        "repack_epochs": 1,
        "treat_eot_as_text": True,
        "normalize_with_ftfy": False,
        "normalize_with_wikitext_detokenize": False,
        "skip_bad": False,
    }
    small = sum(len(ids) < 20 for _, ids in encoded(folder))
    assert 0 < small < 60
    assert manifest.counts.documents_dropped == {"too_small": small, "bad": 0}
