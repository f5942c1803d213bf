"""What --check_dataset says of good and of bad records."""

import dataclasses
import functools
import os

import pytest

from configs.load import load_config
from data.manifest import Counts, Manifest, identify, write_manifest
from data.record_writer import RecordWriter
from data.tokenizers import load_tokenizer
from inputs import open_sources
from inspection.dataset_check import check_datasets, dataset_report
from tests.data.test_labelled_records import write_examples

N_CTX = 128
EOS = 50256


def write(folder, name, records):
    with RecordWriter(str(folder), name) as writer:
        for ids in records:
            writer.write(ids)


@functools.cache
def tokenizer():
    return load_tokenizer()


def text_record(text, length=N_CTX + 1):
    ids = tokenizer().encode(text)
    return (ids * (length // len(ids) + 1))[:length]


@pytest.fixture
def data(tmp_path):
    first = [*text_record("One line.\nAnother one", 20), EOS, *text_record(" After it", N_CTX - 20)]
    late = [*text_record("word", 100), EOS, EOS, *text_record(" late", N_CTX - 101)]
    write(tmp_path, "train", [first, late] + [text_record("fill")] * 15)
    write(tmp_path, "eval", [text_record("held out")] * 5)
    return tmp_path


def config_of(folder, *overrides, entry="[{dataset},1,null,1.0]"):
    dataset = (
        f'{{"id":"mine","n_vocab":50257,"path":"{folder}/train_*.tfrecords",'
        f'"eval_path":"{folder}/eval_*.tfrecords"}}'
    )
    datasets = f"datasets=[{entry.replace('{dataset}', dataset)}]"
    sizes = [f"n_ctx={N_CTX}", "train_batch_size=8", "eval_batch_size=2", "train_steps=400"]
    return load_config("tiny", [datasets, *sizes, *overrides])


def problems(config, training=True):
    return [line for check in check_datasets(config, training) for line in check.problems]


def test_good_records(data):
    report = dataset_report(config_of(data)).text
    assert "1 of " in report and "17 records by their names" in report
    assert "129 to 129 ids, mean 129.0, in 17 records read" in report
    assert "to 50256; n_vocab 50,257" in report
    assert "17 sequences; 100.0% of the mix, so seen once in 2.1 steps of 8" in report
    assert "5 sequences, 3 batches" in report
    assert "17 training sequences, 2.1 steps in all; train_steps 400" in report
    assert report.endswith("all OK") and "ERROR" not in report


def test_samples_show_separators(data):
    report = dataset_report(config_of(data)).text
    assert "One line.⏎Another one" in report
    assert "⟦eos⟧ After it" in report
    assert "word⟦eos x2⟧ late" in report  # far behind the start, shown all the same


def test_lengths_of_documents_are_drawn(data):
    write(data, "train_doc", [text_record("one", 200)] * 2 + [text_record("two", 600)])
    report = dataset_report(config_of(data, "input_fn=generic_text")).text
    assert "\n               128 to 255  19  ███" in report
    assert "\n             512 to 1,023   1  ██\n" in report


def test_parts_without_labels_are_marked(data, tmp_path):
    ids = text_record("word")
    mask = [0] * 29 + [1] * 100
    write_examples(tmp_path / "train_masked_0_1.tfrecords", (ids, mask))
    for path in data.glob("train_0_*"):
        path.unlink()
    report = dataset_report(config_of(data)).text
    assert f"sample 1   ⟨{'word' * 29}⟩wordword" in report
    assert "labels     77.5% of the ids count; 1 of 1 records have a loss_mask" in report
    assert "⟨…⟩ no labels" in report
    layers = 'attention_types=[[["global"],4]]'
    [problem] = problems(config_of(data, "mlm_training=true", "mlm_mask_id=5", layers))
    assert problem.startswith("records must have no loss_mask with mlm_training; got one in ")


def test_records_with_a_manifest(data):
    values = {"name": "train", "mode": "chunks", "chunk_size": N_CTX, "separator": (EOS,)}
    counts = Counts(9, 9, {}, 17, 2193, 2193, {}, 8772)
    more = {"files": {"train_0_17.tfrecords": 17}, "options": {}}
    manifest = Manifest(tokenizer=identify(tokenizer()), counts=counts, **values, **more)
    path = write_manifest(manifest, str(data))
    report = dataset_report(config_of(data))
    assert f"manifest   {path}: chunks of 128 + 1 ids in 1 file(s), 17 records" in report.text
    assert "tokenizer  gpt2, 50,257 ids, end of text 50256" in report.text
    assert "8,772 bytes of text, 4.00 per token" in report.text
    assert report.text.count("manifest   none") == 1  # the evaluation's
    assert report.problems == 0
    write(data, "train_old", [text_record("fill")])
    write_manifest(dataclasses.replace(manifest, separator=(11,)), str(data))
    report = dataset_report(config_of(data))
    assert "ERROR      eos_id must be 11, which ends a document" in report.text
    assert "WARNING    1 record file(s) of mine are in no manifest" in report.text
    assert report.problems == 1


def test_ids_beyond_the_vocabulary(data):
    bad = text_record("fill")
    bad[7] = 60000
    write(data, "train_more", [bad])
    [problem] = problems(config_of(data))
    assert problem.startswith("ids of mine must lie in [0, n_vocab = 50257); got ")
    assert "to 60000 in" in problem and "train_more_0_1.tfrecords" in problem
    report = dataset_report(config_of(data)).text
    assert "ERROR      ids of mine must lie" in report and report.endswith("1 ERROR line(s) above")


def test_records_of_another_length(data):
    write(data, "train_short", [text_record("fill", 65)])
    [problem] = problems(config_of(data))
    assert problem.startswith("records of mine must hold n_ctx + 1 = 129 ids; got 65 in ")
    assert problem.endswith("Set n_ctx to 64, or make the records again with --chunk_size 128.")


def test_a_file_name_that_lies(data):
    [name] = [name for name in os.listdir(data) if name.startswith("train")]
    os.rename(data / name, data / "train_0_99.tfrecords")
    [problem] = problems(config_of(data))
    assert problem == (
        f"record file {data}/train_0_99.tfrecords must hold as many records as its name says; got "
        "17 instead of 99. Make the records again, or correct the number if the file is whole."
    )


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_every_file_name_that_lies_is_found(data, scheme):
    write(data, "train_more", [text_record("more")] * 2)
    os.rename(data / "train_more_0_2.tfrecords", data / "train_more_0_1.tfrecords")
    config = config_of(f"{scheme}{data}")
    [check] = check_datasets(config, training=True)
    if scheme:  # far away: counting would mean reading all
        assert "counted    17 records in 1 file(s)" in check.lines
    else:
        assert "counted    19 records in 2 file(s)" in check.lines
        [problem] = check.problems
        assert "train_more_0_1.tfrecords must hold as many records" in problem
        assert "got 2 instead of 1." in problem


def test_many_file_names_that_lie_are_summed_up(data):
    for number in range(8):
        (data / f"train_{number}_3.tfrecords").write_bytes(b"")
    lines = problems(config_of(data))
    assert len(lines) == 6 and lines[-1].startswith("3 more record file(s)")


def test_damage_behind_the_records_that_are_shown(data, monkeypatch):
    monkeypatch.setattr("inspection.dataset_check.RECORDS_READ", 2)
    [name] = [name for name in os.listdir(data) if name.startswith("train")]
    content = bytearray((data / name).read_bytes())
    content[-20] ^= 255
    (data / name).write_bytes(content)
    [problem] = problems(config_of(data))
    assert problem.startswith("record file must exist and be whole; got ")


def test_a_file_without_a_number_in_its_name(data):
    os.rename(data / "train_0_17.tfrecords", data / "train_a.tfrecords")
    [problem] = problems(config_of(data))
    assert problem.startswith("record file name must end with _<number of records>.tfrecords; got")


def test_fewer_sequences_than_a_batch_are_an_error_as_in_training(data):
    config = config_of(data, "train_batch_size=18")
    report = dataset_report(config)
    with pytest.raises(ValueError) as caught:
        open_sources(config, training=True)
    assert f"ERROR      {caught.value}" in report.text.splitlines()
    assert report.problems == 1 and report.text.endswith("1 ERROR line(s) above")
    assert dataset_report(config_of(data, "train_batch_size=17")).problems == 0


def test_a_missing_dataset_is_not_called_too_small_as_well(data):
    assert dataset_report(config_of(data / "nowhere")).problems == 2  # training and evaluation


def test_records_without_ids(tmp_path):
    write(tmp_path, "train", [[]] * 9)
    [problem] = problems(config_of(tmp_path))
    assert problem.endswith("_9.tfrecords. Make the records again with --chunk_size 128.")


def test_a_missing_and_a_damaged_file(data):
    [problem] = problems(config_of(data / "nowhere"))
    assert problem.startswith("dataset mine must match at least one record file; got none for ")
    [name] = [name for name in os.listdir(data) if name.startswith("train")]
    content = (data / name).read_bytes()
    (data / name).write_bytes(content[: len(content) // 2])
    [problem] = problems(config_of(data))
    assert problem.startswith("record file must exist and be whole; got ")


def test_empty_records(tmp_path):
    (tmp_path / "train_0_0.tfrecords").write_bytes(b"")
    [problem] = problems(config_of(tmp_path))
    assert problem.startswith("dataset mine must hold records; got 0.")


def test_documents_too_short_for_a_window(data):
    write(data, "train_doc", [[5, 6, 7]])
    options = ("input_fn=generic_text",)
    config = config_of(data, *options, entry='[{dataset},4,"documents_random",1.0]')
    [problem] = problems(config)
    assert problem == (
        "4 stitched documents of mine must hold n_ctx + 1 = 129 ids; got 3 in the shortest. "
        "Raise stitch to 33."
    )
    [check] = check_datasets(config, training=True)
    assert check.sequences == 18 // 4


def test_shares_of_the_mix(data):
    config = config_of(data, entry="[{dataset},1,null,3.0],[{dataset},1,null,1.0]")
    report = dataset_report(config).text
    assert "75.0% of the mix, so seen once in 2.8 steps of 8" in report
    assert "25.0% of the mix, so seen once in 8.5 steps of 8" in report
    assert "34 training sequences" in report


def test_no_dataset():
    with pytest.raises(ValueError, match="datasets must name at least one dataset; got none"):
        dataset_report(load_config("tiny", ["datasets=[]", "eval_steps=0", "n_vocab=50257"]))
