"""The glob that a dataset config is given matches the files of its data set and no others."""

import logging

import pytest

from data.record_globs import glob_of_data_set, matching_files
from inputs import open_sources
from inspection.dataset_check import dataset_report
from tests.input_support import config_of, numbered, write


def files_of(folder, name, compressed=False, scheme=""):
    pattern = glob_of_data_set(f"{scheme}{folder}", name, compressed)
    return [path.rpartition("/")[2] for path in matching_files(pattern, "mine")]


@pytest.fixture
def folder(tmp_path):
    for name in (
        *("train_0_5.tfrecords", "train_10_5.tfrecords", "train_2_5.tfrecords"),
        *("train_0_7_5.tfrecords", "train_0_5.tfrecords.gz"),  # 7 is a process
        *("train_eval_0_5.tfrecords", "train_3_0_5.tfrecords", "train_3_4_0_5.tfrecords"),
        *("train_3.manifest.json", "train_3_4.manifest.json", "train.manifest.json"),
        *("tr[a]in_0_5.tfrecords",),
    ):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_only_files_of_the_name(folder, scheme):
    assert files_of(folder, "train", scheme=scheme) == [
        "train_0_5.tfrecords",
        "train_0_7_5.tfrecords",
        "train_2_5.tfrecords",
        "train_10_5.tfrecords",
    ]
    assert files_of(folder, "train_3", scheme=scheme) == ["train_3_0_5.tfrecords"]
    assert files_of(folder, "train_3_4") == ["train_3_4_0_5.tfrecords"]
    assert files_of(folder, "train_eval") == ["train_eval_0_5.tfrecords"]
    assert files_of(folder, "tr[a]in") == ["tr[a]in_0_5.tfrecords"]
    assert files_of(folder, "train", compressed=True) == ["train_0_5.tfrecords.gz"]


def test_globs_of_gpt_neo_match_all(folder):
    names = sorted(path.name for path in folder.glob("train_*.tfrecords"))
    assert len(names) == 7
    found = matching_files(f"{folder}/train_*.tfrecords", "mine")
    assert sorted(path.rpartition("/")[2] for path in found) == names


def test_training_on_what_is_held_out_is_a_warning(tmp_path, caplog):
    write(tmp_path / "tiny", "train", numbered(5))
    write(tmp_path / "tiny", "eval", numbered(5))
    config = config_of(tmp_path)
    open_sources(config, training=True)
    assert not caplog.records and "WARNING" not in dataset_report(config).text
    dataset = config.sources[0].dataset.model_dump() | {"path": f"{tmp_path}/tiny/*.tfrecords"}
    config = config_of(tmp_path, datasets=[[dataset, None, None, None]])
    open_sources(config, training=True)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith(
        "1 of 1 record file(s) of the eval_path of tiny are trained on, too, so its scores tell"
    )
    assert f"WARNING    {record.message}" in dataset_report(config).text
