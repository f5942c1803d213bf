"""The manifest: what it says comes back, and a tokenizer is known again wherever it comes from."""

import dataclasses
import json
import subprocess
import sys

import pytest
import tokenizers as library

from data.manifest import (
    Counts,
    Manifest,
    identify,
    manifest_path,
    read_manifest,
    tokenizer_fingerprint,
    write_manifest,
)
from data.tokenizers import load_tokenizer


@pytest.fixture(scope="module")
def gpt2():
    return load_tokenizer()


def make_manifest(tokenizer):
    return Manifest(
        name="train",
        tokenizer=identify(tokenizer),
        mode="chunks",
        chunk_size=16,
        separator=(7, tokenizer.eos_id),
        options={"seed": None, "minimum_size": 1, "suffix": [".py"], "ftfy": True},
        counts=Counts(
            documents_read=5,
            documents_kept=3,
            documents_dropped={"below minimum_size": 2},
            records=4,
            tokens_read=80,
            tokens_kept=68,
            tokens_dropped={"below minimum_size": 5, "tail": 7},
            text_bytes=320,
        ),
        files={"train_0_3.tfrecords": 3, "train_1_1.tfrecords": 1},
        loss_mask=True,
    )


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_was_written_is_read(tmp_path, gpt2, scheme):
    manifest = make_manifest(gpt2)
    path = write_manifest(manifest, f"{scheme}{tmp_path}")
    assert path == manifest_path(f"{scheme}{tmp_path}", "train")
    assert path.endswith("/train.manifest.json")
    assert read_manifest(path) == manifest
    assert list(read_manifest(path).files) == list(manifest.files)


def test_derived_values(gpt2):
    manifest = make_manifest(gpt2)
    assert manifest.counts.bytes_per_token == 4.0
    assert manifest.eos_id == 50256
    without = dataclasses.replace(manifest, separator=())
    assert without.eos_id == manifest.tokenizer.eos_id


def test_identity_of_gpt2(gpt2):
    identity = identify(gpt2)
    assert (identity.name, identity.size, identity.eos_id) == ("gpt2", 50257, 50256)
    # Frozen: manifests that people have hold it.
    assert identity.fingerprint.startswith("30daf8dbb6f0c892") and len(identity.fingerprint) == 64


def test_the_same_tokenizer_from_elsewhere_has_the_same_fingerprint(tmp_path, gpt2):
    content = json.loads(gpt2.to_json())
    model = content["model"]
    model["merges"] = [" ".join(pair) for pair in model["merges"]]  # the older form
    model["vocab"] = dict(reversed(list(model["vocab"].items())))
    del model["vocab"]["<|endoftext|>"]  # it is among the added tokens, too
    path = tmp_path / "other.json"
    path.write_text(json.dumps(content))
    other = load_tokenizer(str(path), is_pretrained=False, treat_eot_as_text=True)
    assert tokenizer_fingerprint(other) == tokenizer_fingerprint(gpt2)


def change_merges(model):
    model["merges"][0], model["merges"][1] = model["merges"][1], model["merges"][0]


def change_vocabulary(model):
    vocabulary = model["vocab"]
    vocabulary["!"], vocabulary['"'] = vocabulary['"'], vocabulary["!"]


@pytest.mark.parametrize("change", [change_merges, change_vocabulary])
def test_a_change_of_the_vocabulary_changes_the_fingerprint(tmp_path, gpt2, change):
    content = json.loads(gpt2.to_json())
    change(content["model"])
    path = tmp_path / "other.json"
    path.write_text(json.dumps(content))
    other = load_tokenizer(str(path), is_pretrained=False)
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(gpt2)


def test_a_special_token_changes_the_fingerprint(tmp_path, gpt2):
    content = json.loads(gpt2.to_json())
    content["added_tokens"][0]["special"] = False
    path = tmp_path / "other.json"
    path.write_text(json.dumps(content))
    other = load_tokenizer(str(path), is_pretrained=False)
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(gpt2)


def test_scores_of_a_unigram_model_count(tmp_path):
    found = []
    for score in (-1.0, -2.0):
        model = library.models.Unigram([("<unk>", 0.0), ("a", score)], unk_id=0)
        library.Tokenizer(model).save(str(tmp_path / "unigram.json"))
        tokenizer = load_tokenizer(str(tmp_path / "unigram.json"), is_pretrained=False)
        found.append(tokenizer_fingerprint(tokenizer))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("files"), r"\(files: Field required\)"),
        (lambda values: values["counts"].update(records="4"), r"\(counts\.records: .*integer"),
        (lambda values: values.update(colour=1), r"\(colour: Unexpected"),
        (lambda values: values.update(format_version=2), "format_version 2, made by a later"),
        (lambda values: values.update(format_version=0), r"\(format_version: 0\)"),
        (lambda values: values.update(format_version=True), r"\(format_version: .*integer"),
        (lambda values: values.update(mode="lines"), r"\(mode: .*'chunks' or 'documents'"),
        (lambda values: values.update(mode="documents"), r"mode: documents, chunk_size: 16"),
        (lambda values: values.update(chunk_size=None), r"mode: chunks, chunk_size: None"),
        (lambda values: values.update(chunk_size=8), r"tokens_kept: 68, in chunks .*: 36"),
        (lambda values: values.update(files={}), r"\(files: none\)"),
        (lambda values: values.update(files={"a/b_0_4.tfrecords": 4}), r"b_0_4.* in a folder"),
        (lambda values: values["counts"].update(records=5), r"counts.records: 5, files: 4"),
        (lambda values: values["counts"].update(records=-1), r"counts.records: .*greater"),
        (lambda values: values["counts"].update(documents_read=9), r"9 documents read, 5 kept"),
        (lambda values: values["counts"].update(tokens_read=9), r"9 tokens read, 80 kept"),
    ],
)
def test_a_manifest_that_is_none_is_named(tmp_path, gpt2, change, message):
    values = json.loads(make_manifest(gpt2).to_json())
    change(values)
    path = tmp_path / "train.manifest.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=rf"manifest must be .*got {path} .*{message}.*Make"):
        read_manifest(str(path))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no JSON"),
        (b"[]", "the whole"),
        (b"{", "no JSON"),
        ('{"name": "\u00e9"}'.encode("latin-1"), "no UTF-8"),
        ("{}".encode("utf-16"), "no UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_damage_is_named(tmp_path, content, why):
    path = tmp_path / "train.manifest.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"got {path} \([^\n]*{why}[^\n]*remove the manifest"):
        read_manifest(str(path))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_missing_manifest(tmp_path, scheme):
    with pytest.raises(ValueError, match=r"none\.manifest\.json .*No such file"):
        read_manifest(f"{scheme}{tmp_path}/none.manifest.json")


def test_no_tensorflow_is_imported(repo_root):
    code = "import sys, data.manifest; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=repo_root).returncode == 0
