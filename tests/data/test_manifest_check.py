"""Records with a manifest are used by the configs that it fits, and refused by all others."""

import dataclasses
import logging

import pytest
import tokenizers as library

from configs.load import parse_config
from data.manifest import (
    Counts,
    Manifest,
    identify,
    manifest_path,
    read_manifest,
    write_manifest,
)
from data.manifest_check import ManifestCheck
from data.record_writer import RecordWriter
from data.sources import open_sources
from data.tokenizers import load_tokenizer
from inspection.dataset_check import check_datasets

WINDOW = 4
WORDS = ("<|endoftext|>", "one", "two", "three", "four")


def word_file(path, words=WORDS):
    model = library.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token=words[0])
    library.Tokenizer(model).save(str(path))
    return path


@pytest.fixture
def folder(tmp_path):
    """Two files of records, and their manifest, which `words.json` made."""
    tokenizer = load_tokenizer(str(word_file(tmp_path / "words.json")), is_pretrained=False)
    with RecordWriter(str(tmp_path), "train", files_per=4) as writer:
        for number in range(6):
            writer.write([number % 5] * (WINDOW + 1))
    manifest = Manifest(
        name="train",
        tokenizer=identify(tokenizer),
        mode="chunks",
        chunk_size=WINDOW,
        separator=(0,),
        options={},
        counts=Counts(6, 6, {}, 6, 30, 30, {}, 100),
        files={"train_0_4.tfrecords": 4, "train_1_2.tfrecords": 2},
    )
    write_manifest(manifest, str(tmp_path))
    return tmp_path


def rewrite(folder, **changes):
    manifest = read_manifest(manifest_path(str(folder), "train"))
    records = sum(changes.get("files", manifest.files).values())
    counts = Counts(6, 6, {}, records, records * 5, records * 5, {}, 100)
    write_manifest(dataclasses.replace(manifest, **{"counts": counts} | changes), str(folder))


def mask_last_record(folder):
    with RecordWriter(str(folder), "train", files_per=4) as writer:
        for number in range(6):
            ids = [number % 5] * (WINDOW + 1)
            writer.write(ids if number < 5 else [~ids[0], *ids[1:]])


def config_of(folder, tokenizer="words.json", pattern="train_*", scheme="", eos_id=0, **keys):
    dataset = {
        "id": "mine",
        "n_vocab": keys.get("n_vocab", 5),
        "path": f"{scheme}{folder}/{pattern}.tfrecords",
        "tokenizer_is_pretrained": tokenizer == "gpt2",
        "tokenizer_path": tokenizer if tokenizer == "gpt2" else str(folder / tokenizer),
        "eos_id": eos_id,
    }
    values = {
        "n_layer": 1,
        "n_embd": 4,
        "n_head": 1,
        "n_ctx": WINDOW,
        "n_vocab": 5,
        "eos_id": eos_id,
    }
    values |= {"train_batch_size": 2, "train_steps": 3, "model_path": str(folder / "run")}
    return parse_config(values | {"datasets": [[dataset, 1, None, 1.0]]} | keys)


def refused(config):
    with pytest.raises(ValueError) as caught:
        open_sources(config, training=True)
    return str(caught.value)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_records_are_used_with_their_tokenizer(folder, scheme, caplog):
    word_file(folder / "copy.json")
    for name in ("words.json", "copy.json"):  # another file, the same vocabulary
        [source] = open_sources(config_of(folder, name, scheme=scheme), training=True)
        assert source.records == 6
    assert not caplog.records


def test_another_tokenizer_is_refused(folder):
    word_file(folder / "other.json", (*WORDS[:3], "drei", "vier"))
    message = refused(config_of(folder, "other.json"))
    assert message.startswith("tokenizer of mine must be the one that made its records, ")
    made_with, here = message.split("; got ")
    assert f"{folder}/words.json (5 ids, fingerprint " in made_with
    assert f"{folder}/train.manifest.json" in made_with
    assert here.startswith(f"{folder}/other.json (5 ids, fingerprint ")
    assert "Set tokenizer_path" in here


def test_gpt2_in_place_of_a_file_is_refused(folder):
    message = refused(config_of(folder, "gpt2", n_vocab=50257))
    assert "words.json (5 ids" in message and "got gpt2 (50,257 ids" in message


def test_a_tokenizer_file_that_was_replaced_is_refused(folder):
    word_file(folder / "words.json", WORDS[::-1])
    assert refused(config_of(folder)).count("words.json (5 ids") == 2


def test_a_tokenizer_that_is_not_here_is_a_warning(folder, caplog):
    (folder / "words.json").unlink()
    open_sources(config_of(folder), training=True)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "tokenizer of mine made its records is not known: tokenizer file must" in record.message


def test_the_older_form_of_datasets_names_no_tokenizer(folder, caplog):
    entry = [f"{folder}/train_*.tfrecords", "", 1, None, 1.0]
    open_sources(config_of(folder, datasets=[entry], eos_id=0, padding_id=0), training=True)
    assert not caplog.records


def test_eos_id(folder):
    message = refused(config_of(folder, eos_id=3))
    assert message.startswith("eos_id must be 0, which ends a document in the records of mine")
    assert message.endswith("got 3. Set eos_id of the dataset config to 0.")
    rewrite(folder, separator=(1, 3))
    open_sources(config_of(folder, eos_id=3), training=True)
    rewrite(folder, separator=())
    assert refused(config_of(folder, eos_id=3)).startswith("eos_id must be 0")


def test_n_vocab(folder):
    message = refused(config_of(folder, n_vocab=4))
    assert message.startswith("n_vocab must cover all 5 ids of ")
    assert message.endswith("got 4. Set n_vocab to 5 or more.")
    open_sources(config_of(folder, n_vocab=8), training=True)


def test_documents_are_no_chunks(folder):
    rewrite(folder, mode="documents", chunk_size=None)
    message = refused(config_of(folder))
    assert message.startswith("records of mine must be chunks for input_fn sequential_input; got")
    open_sources(config_of(folder, input_fn="generic_text"), training=True)


def test_a_missing_file_is_named(folder):
    (folder / "train_1_2.tfrecords").unlink()
    message = refused(config_of(folder))
    assert (
        f"all that {folder}/train.manifest.json lists; got none named train_1_2.tfreco" in message
    )
    assert "remove the manifest" in message


def test_a_file_with_another_count_is_named(folder):
    (folder / "train_1_2.tfrecords").rename(folder / "train_1_1.tfrecords")
    message = refused(config_of(folder))
    assert "none named train_1_2.tfrecords (instead there is train_1_1.tfrecords)" in message


def test_many_missing_files_are_summed_up(folder):
    files = {f"train_{number}_1.tfrecords": 1 for number in range(2, 9)}
    rewrite(folder, files={"train_0_4.tfrecords": 4} | files)
    message = refused(config_of(folder))
    assert "train_2_1.tfrecords, train_3_1.tfrecords, train_4_1.tfrecords and 4 more." in message


def test_a_manifest_with_a_false_count(folder):
    rewrite(folder, files={"train_0_4.tfrecords": 4, "train_1_2.tfrecords": 3})
    assert "got 3 for train_1_2.tfrecords. Make the records again." in refused(config_of(folder))


def test_a_part_of_the_files_may_be_used(folder, caplog):
    [source] = open_sources(config_of(folder, pattern="train_1_*"), training=True)
    assert source.records == 2 and not caplog.records


def test_files_may_be_compressed_later(folder):
    files = []
    for path in folder.glob("*.tfrecords"):
        files.append(str(path.rename(f"{path}.gz")))
    findings = ManifestCheck(config_of(folder)).look("mine", files, "chunks")
    assert len(findings.found) == 1
    assert findings.problems == findings.warnings == ()


def test_files_left_over_are_a_warning(folder, caplog):
    with RecordWriter(str(folder), "train_old") as writer:
        writer.write([1] * (WINDOW + 1))
    open_sources(config_of(folder), training=True)
    [record] = caplog.records
    assert record.message.startswith("1 record file(s) of mine are in no manifest")
    assert f"{folder}/train_old_0_1.tfrecords" in record.message


def test_records_without_a_manifest_are_used(folder, caplog):
    (folder / "train.manifest.json").unlink()
    open_sources(config_of(folder, eos_id=3), training=True)
    assert not caplog.records


def test_a_manifest_of_another_data_set_does_not_count(folder):
    (folder / "eval.manifest.json").write_text("damaged")
    open_sources(config_of(folder), training=True)
    (folder / "train.manifest.json").write_text("damaged")
    assert refused(config_of(folder)).startswith("manifest must be a file of format_version 1")


def test_records_with_loss_masks_are_not_for_a_masked_model(folder):
    """The first record may be one without a mask."""
    mask_last_record(folder)
    rewrite(folder, loss_mask=True)
    open_sources(config_of(folder), training=True)
    assert refused(config_of(folder, mlm_training=True, mlm_mask_id=4)) == (
        "records must have no loss_mask with mlm_training; got one in those that "
        f"{folder}/train.manifest.json lists. Set mlm_training to false, or use other records."
    )


FALSE = "records of mine must be as {folder}/train.manifest.json says; got {got} in {where}. Make "


@pytest.mark.parametrize(
    ("changes", "got", "where"),
    [
        (
            {"chunk_size": 2, "counts": Counts(6, 6, {}, 6, 18, 18, {}, 9)},
            "chunk_size 2 and a record of 5 ids",
            "train_0_4.tfrecords",
        ),
        ({"loss_mask": True}, "loss_mask and no record with one", "train.manifest.json"),
    ],
)
def test_records_that_are_not_as_their_manifest_says(folder, changes, got, where):
    rewrite(folder, **changes)
    config = config_of(folder)
    message = refused(config)
    assert message.startswith(FALSE.format(folder=folder, got=got, where=folder / where))
    assert message in check_datasets(config, True)[0].problems


def test_a_mask_of_which_the_manifest_does_not_know(folder):
    mask_last_record(folder)
    [problem] = check_datasets(config_of(folder), True)[0].problems
    got, where = "no loss_mask and a record with one", folder / "train_1_2.tfrecords"
    assert problem.startswith(FALSE.format(folder=folder, got=got, where=where))


def test_a_glob_that_matches_another_data_set_is_a_warning(folder, caplog):
    """`train_*` matches `train_held_out_0_1.tfrecords`, too."""
    with RecordWriter(str(folder), "train_held_out") as writer:
        writer.write([1] * (WINDOW + 1))
    manifest = read_manifest(str(folder / "train.manifest.json"))
    held_out = {"name": "train_held_out", "files": {"train_held_out_0_1.tfrecords": 1}}
    counts = Counts(1, 1, {}, 1, 5, 5, {}, 9)
    write_manifest(dataclasses.replace(manifest, counts=counts, **held_out), str(folder))
    open_sources(config_of(folder), training=True)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith(
        "The glob of mine matches 2 data sets: train, train_held_out. If one of them is held out"
    )
