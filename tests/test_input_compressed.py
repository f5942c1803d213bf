"""Record files that are compressed, or in another file system."""

import gzip
import json
import re
import zlib

import numpy as np
import pytest
import tensorflow as tf

from data.records import count_records, read_records, record_files
from inputs import open_sources
from inspection.dataset_check import dataset_report
from tests.input_support import (
    BATCH,
    config_in_mode,
    config_of,
    evaluated,
    numbered,
    sequences,
    write,
)
from utils.batch_sizes import BatchSizes, read_batch_sizes
from utils.errors import reason

COMPRESS = {".gz": gzip.compress, ".zlib": zlib.compress}


def compress(path, suffix):
    """Puts a compressed file in the place of a record file."""
    target = path.with_name(path.name + suffix)
    target.write_bytes(COMPRESS[suffix](path.read_bytes()))
    path.unlink()
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """17 numbered records: two gzip files of 5, a plain one, one of 2 by zlib."""
    folder = tmp_path_factory.mktemp("compressed")
    for name in ("train", "eval"):
        write(folder / "tiny", name, numbered(17), files_per=5)
        compress(folder / "tiny" / f"{name}_0_5.tfrecords", ".gz")
        compress(folder / "tiny" / f"{name}_1_5.tfrecords", ".gz")
        compress(folder / "tiny" / f"{name}_3_2.tfrecords", ".zlib")
    return folder


def config_for(folder, mode="chunks", **values):
    config = config_in_mode(folder, mode, **values).to_json_dict()
    [dataset, *rest] = config["datasets"][0]
    dataset |= {key: f"{dataset[key]}*" for key in ("path", "eval_path")}
    return config_of(folder, **(values | {"datasets": [[dataset, *rest]]}))


def test_compressed_files_are_read_and_resumed_as_others_are(folder):
    config = config_for(folder)
    [source] = open_sources(config, training=True)
    assert source.counts == (5, 5, 5, 2)
    whole = np.tile(numbered(17), (4, 1))
    np.testing.assert_array_equal(sequences(config, 0, 12), whole[:36])
    for start in (1, 5, 16, 17):  # in the first file, the last, the second and plain ones
        np.testing.assert_array_equal(sequences(config, start, 3), whole[start * BATCH :][:9])
    rows, weights = evaluated(config)
    np.testing.assert_array_equal(rows[weights > 0], numbered(17))


def test_compressed_files_are_looked_at_and_listed(folder):
    files = record_files(str(folder / "tiny"), "train")
    assert [count_records(file) for file in files] == [5, 5, 5, 2]
    assert [file.rpartition("tfrecords")[2] for file in files] == [".gz", ".gz", "", ".zlib"]
    np.testing.assert_array_equal(list(read_records(files[3])), numbered(17)[15:])
    report = dataset_report(config_for(folder, n_vocab=50257)).text
    assert "counted    17 records in 4 file(s)" in report


@pytest.mark.parametrize("count", [3, 5])
def test_a_false_number_of_a_compressed_file_stops_the_run_there(tmp_path, count):
    write(tmp_path / "tiny", "train", numbered(8), files_per=4)
    file = compress(tmp_path / "tiny" / "train_1_4.tfrecords", ".gz")
    claimed = file.rename(tmp_path / "tiny" / f"train_1_{count}.tfrecords.gz")
    config = config_for(tmp_path, train_batch_size=1)
    np.testing.assert_array_equal(sequences(config, 0, 4), numbered(4))
    got = "more" if count == 3 else "none that can be read after record 4"
    message = f"record file {claimed} must be whole and hold {count} records, .* got {got}. Make"
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        sequences(config, 5, 5)
    assert re.match(message, reason(caught.value))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_that_is_not_compressed_as_its_name_says_is_named(tmp_path, suffix):
    write(tmp_path / "tiny", "train", numbered(8))
    file = tmp_path / "tiny" / "train_0_8.tfrecords"
    file = file.rename(tmp_path / "tiny" / f"train_0_8.tfrecords{suffix}")
    with pytest.raises(ValueError, match=rf"^record file must exist and be whole; got {file} \("):
        open_sources(config_for(tmp_path), training=True)


# ---- another file system -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["chunks", "documents_fixed"])
def test_all_goes_through_the_file_systems_of_tensorflow(tmp_path, mode):
    """`ram://` knows nothing of local paths, as `gs://` does not."""
    write(tmp_path / "tiny", "train", numbered(17), files_per=5)
    compress(tmp_path / "tiny" / "train_1_5.tfrecords", ".gz")
    place = f"ram://bucket/{tmp_path.name}_{mode}"
    for file in (tmp_path / "tiny").iterdir():
        tf.io.gfile.makedirs(place)
        with tf.io.gfile.GFile(f"{place}/{file.name}", "wb") as copy:
            copy.write(file.read_bytes())
    config = config_in_mode(tmp_path, mode).to_json_dict()
    [dataset, *rest] = config["datasets"][0]
    dataset |= {"path": f"{place}/train_*", "eval_path": f"{place}/train_*"}
    values = {"datasets": [[dataset, *rest]], "input_fn": config["input_fn"]}
    far = config_of(tmp_path, **values)
    assert all(file.startswith(place) for file in open_sources(far, training=True)[0].files)
    dataset |= {"path": f"{tmp_path}/tiny/train_*"}
    near = config_of(tmp_path, **values | {"datasets": [[dataset, *rest]]})
    np.testing.assert_array_equal(sequences(far, 4, 5), sequences(near, 4, 5))
    assert len(evaluated(far)[0]) == 6


def test_batch_sizes_are_kept_in_another_file_system():
    place = "ram://bucket/runs/mine"
    sizes = BatchSizes(((0, 4), (7, 8)))
    sizes.write(place)
    assert read_batch_sizes(place, None, 1) == sizes
    assert json.loads(tf.io.gfile.GFile(f"{place}/batch_sizes.json").read()) == [[0, 4], [7, 8]]
