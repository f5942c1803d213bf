"""data/create_tfrecords.py --compress: what is written, and that it is read as it is."""

import gzip
import json
import os

import pytest

from configs.load import parse_config
from data import record_writer
from data.create_tfrecords import main
from data.manifest import manifest_path, read_manifest
from inputs import evaluation_input, open_sources, training_input
from inspection.dataset_check import dataset_report
from tests.data.preparation_support import CHUNKS, WINDOW, arguments, files_of, make, records
from tests.input_support import batches_of

pytestmark = pytest.mark.usefixtures("small")
MANIFEST = "set.manifest.json"


def test_files_are_those_without_compression_compressed(folder, tmp_path):
    options = [*CHUNKS, "--seed", "1"]
    plain = make(folder, tmp_path / "plain", *options)
    assert make(folder, tmp_path / "small", *options, "--compress") == plain
    expected, written = files_of(tmp_path / "plain"), files_of(tmp_path / "small")
    made = read_manifest(manifest_path(str(tmp_path / "small"), "set"))
    assert len(made.files) > 2
    assert written.keys() == {MANIFEST, *made.files}
    for name in made.files:
        assert gzip.decompress(written[name]) == expected[name.removesuffix(".gz")]
        assert len(written[name]) < 0.6 * len(expected[name.removesuffix(".gz")])
        assert written[name][3:8] == bytes(5)  # neither a name nor a time
    assert expected.keys() == {MANIFEST, *(name.removesuffix(".gz") for name in made.files)}


def test_bytes_do_not_depend_on_processes_or_an_interruption(folder, tmp_path, monkeypatch):
    options = [*CHUNKS, "--compress"]
    make(folder, tmp_path / "one", *options)
    make(folder, tmp_path / "two", *options, "--processes", "2")
    compress, calls = record_writer.RecordWriter._compress_file, []

    def stop(self, i):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(compress(self, i))

    with monkeypatch.context() as patches:
        patches.setattr(record_writer.RecordWriter, "_compress_file", stop)
        assert main(arguments(folder, tmp_path / "stopped", *options)) == 130
    assert files_of(tmp_path / "stopped") == {}
    make(folder, tmp_path / "stopped", *options, "--resume")
    assert not (tmp_path / "stopped" / ".set.unfinished").exists()
    one, two, stopped = (files_of(tmp_path / name) for name in ("one", "two", "stopped"))
    assert one == two == stopped


def test_records_of_either_kind_are_replaced(folder, tmp_path, capsys):
    output = tmp_path / "out"
    plain = make(folder, output)
    before = files_of(output)
    for option in (["--compress"], []):
        argv = arguments(folder, output, *option)
        assert main(argv) == 2
        assert "must hold no records of the name 'set'; got" in capsys.readouterr().err
        assert main([*argv, "--overwrite"]) == 0
        ending = ".tfrecords.gz" if option else ".tfrecords"
        names = set(os.listdir(output)) - {MANIFEST}
        assert names and all(name.endswith(ending) for name in names)
        assert records(output) == plain
    assert files_of(output) == before


def test_the_dataset_config_leads_to_the_compressed_files(folder, tmp_path, monkeypatch):
    """Beside others, which have been left by a run without a manifest, say."""
    monkeypatch.chdir(tmp_path)
    config_path, output = tmp_path / "mine.json", tmp_path / "out"
    expected = make(folder, output, *CHUNKS, "--compress", "--write_dataset_config", "mine.json")
    (output / "set_9_9.tfrecords").write_bytes(b"")
    dataset = json.loads(config_path.read_text())
    assert dataset["path"] == f"{output}/set_[0-9]*.tfrecords.gz"
    dataset |= {"id": "mine", "eval_path": dataset["path"]}
    keys = {"model_path": "run", "n_layer": 1, "n_embd": 4, "n_head": 1, "n_ctx": WINDOW - 1}
    keys |= {"n_vocab": dataset["n_vocab"], "train_steps": 1, "train_batch_size": 1}
    config = parse_config(keys | {"datasets": [dataset], "shuffle_input_filenames": False})
    report = dataset_report(config)
    assert report.problems == 0, report.text
    assert f"{output}/{MANIFEST}: chunks of 5 + 1 ids" in report.text
    for training in (True, False):
        sources = open_sources(config, training)
        input_fn = training_input if training else evaluation_input
        read = batches_of(input_fn(config, sources, 0), 0, len(expected))
        rows = [[*features["inputs"][0], labels[0, -1]] for features, labels in read]
        assert rows == expected
