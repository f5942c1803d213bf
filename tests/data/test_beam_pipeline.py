"""The pipeline makes the files of data/create_tfrecords.py, byte for byte, in every mode."""

import gzip
import importlib.metadata
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest
import tokenizers
import zstandard
from packaging.requirements import Requirement

from data import (
    beam_entries,
    beam_packing,
    beam_pipeline,
    beam_writing,
    create_tfrecords,
    create_tfrecords_beam,
    encoding,
)
from data.beam_reading import make_shards
from data.record_flags import parse_beam_arguments

TEXTS = [f"Document {n}: " + f"word{n * 7} " * (n % 9) + "é" * (n % 4) for n in range(90)]


def json_lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def tar(members, mode):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:
        for name, member in members:
            info = tarfile.TarInfo(name)
            info.size = len(member)
            archive.addfile(info, io.BytesIO(member))
    return content.getvalue()


def as_zip(texts):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for number, text in enumerate(texts):
            archive.writestr(f"{number}.txt", text)
    return content.getvalue()


def write_every_format(folder):
    zstd = zstandard.ZstdCompressor().compress
    parts = iter(TEXTS[start : start + 6] for start in range(0, 90, 6))
    named = [(f"{n}.txt", text.encode()) for n, text in enumerate(next(parts))]
    dat = b"".join(b"%016d" % len(t.encode()) + t.encode() for t in next(parts))
    contents = {
        "a.jsonl": json_lines(next(parts)),
        "b.jsonl.gz": gzip.compress(json_lines(next(parts))),
        "c.json.gz": gzip.compress(json_lines(next(parts))),
        "d.jsonl.zst": zstd(json_lines(next(parts))),
        "e.jsonl.zst.tar": tar([("x.jsonl.zst", zstd(json_lines(next(parts))))], "w"),
        "f.json.zst": zstd(json.dumps(next(parts)).encode()),
        "g.gz": gzip.compress("\n".join(next(parts)).encode()),
        "h.tar.gz": tar(named, "w:gz"),
        "i.tar.xz": tar(named[::-1], "w:xz"),
        "j.dat.zst": zstd(dat),
        "k.zip": as_zip(next(parts)),
        "sub/l.jsonl": json_lines([t for part in parts for t in part]),
        "m.txt": TEXTS[7].encode(),
        "n.txt": b"",
    }
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer of 270 ids, documents in files of every kind, prompts, and bad documents."""
    folder = tmp_path_factory.mktemp("beam")
    own = tokenizers.ByteLevelBPETokenizer()
    own.train_from_iterator(
        TEXTS, vocab_size=270, special_tokens=["<|endoftext|>"], show_progress=False
    )
    own.save(str(folder / "own.json"))
    write_every_format(folder / "in")
    prompts = [{"prompt": f"What is {n}? ", "completion": TEXTS[n]} for n in range(60)]
    lines = [prompts[n] if n % 3 else {"text": TEXTS[n]} for n in range(60)]
    (folder / "prompts").mkdir()
    for name, some in (("a", lines[:23]), ("b", lines[23:])):
        (folder / "prompts" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
    (folder / "bad").mkdir()
    (folder / "bad" / "a.jsonl").write_text('{"text": "one"}\n' + '[1]\n[1]\n{"text": \n' * 10)
    (folder / "bad" / "b.jsonl").write_bytes(json_lines(TEXTS[:9]) + b'{"text": "\\ud800"}\n')
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small constants, so that a small corpus has many shards, batches and buckets."""
    monkeypatch.setattr(encoding, "_BATCH_TEXTS", 5)
    monkeypatch.setattr(beam_pipeline, "SHARD_BYTES", 600)
    monkeypatch.setattr(beam_pipeline, "BUCKET_TOKENS", 100)
    monkeypatch.setattr(beam_writing, "_BLOCK_RECORDS", 3)


def arguments(folder, output, *options, source="in"):
    return [
        *("--input_dir", os.path.join(str(folder), source), "--output_dir", str(output)),
        *("--name", "set", "--encoder_path", os.path.join(str(folder), "own.json")),
        *("--files_per", "37", *options),
    ]


def local(folder, output, *options, source="in"):
    argv = arguments(folder, output, *options, "--processes", "1", source=source)
    return create_tfrecords.main(argv)


def with_beam(folder, output, *options, source="in"):
    return create_tfrecords_beam.main(arguments(folder, output, *options, source=source))


def files_of(output):
    """Everything in the folder, hidden files too."""
    return {name: (output / name).read_bytes() for name in os.listdir(output)}


CHUNKS = ("--mode", "chunks", "--chunk_size", "5")
CASES = {
    "documents": (("--minimum_size", "30", "--min_unique_tokens", "9", "--compress"), "in"),
    "documents shuffled": (("--seed", "3"), "prompts"),
    "chunks": ((*CHUNKS, "--min_unique_tokens", "5", "--minimum_size", "30"), "in"),
    "chunks shuffled": ((*CHUNKS, "--seed", "3", "--min_unique_tokens", "5"), "in"),
    "long chunks": (("--mode", "chunks", "--chunk_size", "300", "--seed", "3"), "in"),
    "epochs": ((*CHUNKS, "--repack_epochs", "2"), "in"),
    "epochs in order": ((*CHUNKS, "--repack_epochs", "3", "--preserve_data_order"), "in"),
    "prompts shuffled": (
        (*CHUNKS, "--seed", "4", "--ftfy", "--wikitext_detokenize", "--separator", "[7, 8]"),
        "prompts",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_files_are_those_of_the_local_run(folder, tmp_path, case, capsys):
    options, source = CASES[case]
    assert local(folder, tmp_path / "local", *options, source=source) == 0
    expected = capsys.readouterr().out
    assert with_beam(folder, tmp_path / "beam", *options, source=source) == 0
    assert capsys.readouterr().out == expected
    files = files_of(tmp_path / "local")
    assert len(files) > 1
    assert files_of(tmp_path / "beam") == files


def direct_command(repo_root):
    """The first command of the docs: of the direct runner with several processes."""
    return commands(repo_root)[0]


def commands(repo_root):
    page = (repo_root / "docs" / "data.md").read_text(encoding="utf-8")
    section = page.split("## Beyond one machine")[1].split("\n## ")[0]
    blocks = [part.split("```")[0] for part in section.split("```sh\n")[1:]]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines]
    return [words[2:] for words in found if words[1:2] == ["data/create_tfrecords_beam.py"]]


def test_several_processes_of_the_direct_runner(folder, tmp_path, repo_root, monkeypatch):
    """As the docs say, from elsewhere."""
    _, beam_flags = parse_beam_arguments(direct_command(repo_root))
    assert beam_flags[-4:] == [
        *("--direct_running_mode", "multi_processing"),
        *("--direct_num_workers", "2"),
    ]
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    options = (*CHUNKS, "--seed", "3")
    for run, more in ((local, ()), (with_beam, beam_flags)):
        assert run(folder, tmp_path / run.__name__, *options, *more, source="prompts") == 0
    assert files_of(tmp_path / "with_beam") == files_of(tmp_path / "local")


def test_commands_of_the_docs_are_understood(repo_root):
    found = [parse_beam_arguments(words) for words in commands(repo_root)]
    runners = [flags[flags.index("--runner") + 1] for _, flags in found]
    assert runners == ["DirectRunner", "DataflowRunner", "FlinkRunner", "SparkRunner"]
    for _, flags in found:
        beam_pipeline.parse_pipeline_options(flags)


def test_work_that_is_repeated_does_no_harm(folder, tmp_path):
    """Every step runs twice, as if the runner had lost what came first."""
    options = (*CHUNKS, "--seed", "2", "--min_unique_tokens", "4")
    assert local(folder, tmp_path / "local", *options) == 0
    assert with_beam(folder, tmp_path / "beam", *options, "--direct_runner_bundle_repeat", "1") == 0
    assert files_of(tmp_path / "beam") == files_of(tmp_path / "local")


def test_no_step_holds_more_than_a_bucket(folder, tmp_path, monkeypatch):
    held = []
    sorted_ids = beam_entries.sorted_ids

    def note(parts):
        ids = sorted_ids(parts)
        held.append(sum(map(len, ids)))
        return ids

    monkeypatch.setattr(beam_packing, "sorted_ids", note)
    monkeypatch.setattr(beam_writing, "sorted_ids", note)
    for number, options in enumerate([("--seed", "1", *CHUNKS), ()]):
        held.clear()
        assert with_beam(folder, tmp_path / str(number), *options) == 0
        assert len(held) > 20
        assert max(held) < 5 * beam_pipeline.BUCKET_TOKENS < sum(held) / 4


def test_buckets_grow_in_number_and_not_in_size(monkeypatch):
    monkeypatch.undo()
    for gigabytes in (1, 40, 900):
        buckets = beam_pipeline.Buckets.for_input(["a.jsonl"], [gigabytes * 10**9])
        tokens = gigabytes * 10**9 / 4 / 2**buckets.bits
        assert tokens <= beam_pipeline.BUCKET_TOKENS <= 4 * max(tokens, 2**20 * 2)
    compressed = beam_pipeline.Buckets.for_input(["a.jsonl.zst"], [10**11])
    assert compressed.bits == 2 + beam_pipeline.Buckets.for_input(["a.jsonl"], [10**11]).bits


def test_shards_are_runs_of_files():
    shards = make_shards(list("abcdef"), [3, 3, 9, 0, 5, 1], 5)
    assert [(s.number, s.first_file, "".join(s.paths)) for s in shards] == [
        *((0, 0, "ab"), (1, 2, "c"), (2, 3, "de"), (3, 5, "f")),
    ]


def check_remote(output, same, tokenizer):
    """Only the name of the tokenizer may differ."""
    import tensorflow as tf

    names = tf.io.gfile.listdir(output)
    contents = {name: tf.io.gfile.GFile(f"{output}/{name}", "rb").read() for name in names}
    expected = files_of(same)
    manifests = [json.loads(found.pop("set.manifest.json")) for found in (contents, expected)]
    assert manifests[0]["tokenizer"].pop("name") == tokenizer
    del manifests[1]["tokenizer"]["name"]
    assert manifests[0] == manifests[1]
    assert contents == expected


def test_a_file_system_that_is_not_the_local_one(folder, tmp_path):
    """Text, tokenizer and records."""
    import tensorflow as tf

    remote = f"ram://{tmp_path.name}"
    tf.io.gfile.makedirs(f"{remote}/in/sub")
    for path in ("own.json", "in/a.jsonl", "in/sub/l.jsonl", "in/k.zip", "in/h.tar.gz", "in/g.gz"):
        with tf.io.gfile.GFile(f"{remote}/{path}", "wb") as file:
            file.write((folder / path).read_bytes())
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes((folder / path).read_bytes())
    assert local(tmp_path, tmp_path / "out", *CHUNKS, "--seed", "1") == 0
    for run in (with_beam, local):
        assert run(remote, f"{remote}/{run.__name__}", *CHUNKS, "--seed", "1") == 0
    check_remote(f"{remote}/with_beam", tmp_path / "out", f"{remote}/own.json")
    check_remote(f"{remote}/local", tmp_path / "out", f"{remote}/own.json")


def refused(capsys, run, *arguments, exit_code=2, **more):
    capsys.readouterr()
    assert run(*arguments, **more) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.strip().splitlines()[-1].split(": ", 1)[1]


@pytest.mark.parametrize("options", [("--seed", "1"), CHUNKS])
def test_the_first_bad_document_ends_the_run(folder, tmp_path, capsys, options):
    lines = [
        refused(capsys, run, folder, tmp_path / "out", *options, source="bad")
        for run in (local, with_beam)
    ]
    assert lines[0] == lines[1]
    assert "a.jsonl (line 2: " in lines[0]
    assert not (tmp_path / "out").exists()


def test_bad_documents_are_named_in_order(folder, tmp_path, caplog):
    named = []
    options = (*CHUNKS, "--seed", "1", "--skip_bad")
    for run in (local, with_beam):
        caplog.clear()
        assert run(folder, tmp_path / run.__name__, *options, source="bad") == 0
        named.append([r.getMessage() for r in caplog.records if r.levelname == "WARNING"])
    assert named[0] == named[1]
    assert len(named[0]) == 21
    assert files_of(tmp_path / "with_beam") == files_of(tmp_path / "local")


@pytest.mark.parametrize(
    "options",
    [
        ("--mode", "chunks", "--chunk_size", "100000"),
        (*CHUNKS, "--min_unique_tokens", "6", "--minimum_size", "70"),
    ],
)
def test_nothing_is_refused_as_by_the_local_run(folder, tmp_path, capsys, options):
    if "--min_unique_tokens" in options:
        (tmp_path / "own.json").write_bytes((folder / "own.json").read_bytes())
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.txt").write_text("a" * 900)
        folder = tmp_path
    lines = [refused(capsys, run, folder, tmp_path / "out", *options) for run in (local, with_beam)]
    assert lines[0] == lines[1]
    assert not (tmp_path / "out").exists()


def test_earlier_records_are_replaced_only_when_asked(folder, tmp_path, capsys):
    assert local(folder, tmp_path / "out", "--files_per", "3") == 0
    before = files_of(tmp_path / "out")
    for run in (local, with_beam):
        assert "must hold no records of the name 'set'; got 33 files" in refused(
            capsys, run, folder, tmp_path / "out"
        )
    assert files_of(tmp_path / "out") == before
    left = tmp_path / "other" / ".set.beam-0123"  # by a run that was killed
    left.mkdir(parents=True)
    line = refused(capsys, with_beam, folder, tmp_path / "other")
    assert f"must hold no unfinished work on 'set'; got {left}" in line
    left.rename(tmp_path / "out" / left.name)
    config = str(tmp_path / "set.json")
    options = ("--overwrite", "--write_dataset_config", config)
    assert with_beam(folder, tmp_path / "out", *options) == 0
    assert local(folder, tmp_path / "other") == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "other")
    assert (
        json.loads((tmp_path / "set.json").read_text())["path"]
        == f"{tmp_path}/out/set_[0-9]*.tfrecords"
    )


def test_input_that_changes_while_it_is_read_is_refused(folder, tmp_path, capsys, monkeypatch):
    shutil.copytree(folder / "in", tmp_path / "in")
    shutil.copy(folder / "own.json", tmp_path)
    run = beam_pipeline.run_pipeline

    def run_and_change(*arguments):
        report = run(*arguments)
        with open(tmp_path / "in" / "a.jsonl", "a") as file:
            file.write('{"text": "late"}\n')
        return report

    monkeypatch.setattr(beam_pipeline, "run_pipeline", run_and_change)
    line = refused(capsys, with_beam, tmp_path, tmp_path / "out", *CHUNKS)
    assert line.startswith("input files must stay as they are while they are read")
    assert f"{tmp_path}/in/a.jsonl has changed" in line
    assert not (tmp_path / "out").exists()


def test_a_runner_that_fails_is_one_line(folder, tmp_path, capsys, monkeypatch):
    def fail(path, records):
        raise OSError("the disk is full")

    monkeypatch.setattr(beam_writing, "_write", fail)
    line = refused(capsys, with_beam, folder, tmp_path / "out", exit_code=1)
    assert line.startswith("the pipeline failed: the disk is full [while running 'Write")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--processes", "2"], "--processes is an option of create_tfrecords.py alone. Use the op"),
        (["--resume"], "--resume is an option of create_tfrecords.py alone. Use nothing"),
        (["--chunk_sizes=4"], "of this command or of Apache Beam; got --chunk_sizes=4. See"),
        (["--runner", "DirectRunner", "more"], "of this command or of Apache Beam; got more. See"),
        (["--direct_num_workers", "x"], "--direct_num_workers: invalid int value: 'x'"),
        (["--min_size", "3"], "Use --minimum_size."),
        (["--repack_epochs", "0"], "--repack_epochs must be at least 1; got 0"),
    ],
)
def test_wrong_usage_is_one_line(folder, tmp_path, capsys, options, message):
    assert message in refused(capsys, with_beam, folder, tmp_path / "out", *options)


def test_options_of_a_job_server_are_left_to_it():
    flags = ["--runner", "FlinkRunner", "--parallelism", "8"]
    options = beam_pipeline.parse_pipeline_options(flags)
    assert options.get_all_options(retain_unknown_options=True)["parallelism"] == 8


def test_without_beam_it_says_what_to_install(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    line = refused(capsys, with_beam, folder, tmp_path / "out")
    assert line.startswith("apache_beam must be installed; got: ")
    assert line.endswith("Install it with: pip install -r requirements-beam.txt")


def test_help_waits_for_no_library(repo_root, tmp_path):
    script = str(repo_root / "data" / "create_tfrecords_beam.py")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", script, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "--repack_epochs" in done.stdout and "--runner" in done.stdout
    assert "--processes" not in done.stdout and "--resume" not in done.stdout
    imported = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "numpy" in imported
    assert imported.isdisjoint({"apache_beam", "tensorflow", "transformers"})


def test_the_extra_changes_no_pinned_version(repo_root):
    wrong = []
    for name in ("requirements.txt", "requirements-beam.txt"):
        for line in (repo_root / name).read_text().splitlines():
            text = line.split("#")[0].strip()
            if text and not text.startswith("-"):
                pin = Requirement(text)
                applies = pin.marker is None or pin.marker.evaluate()
                if applies and not pin.specifier.contains(importlib.metadata.version(pin.name)):
                    wrong.append(text)
    assert wrong == []


def test_sums_say_what_lies_before():
    starts = beam_entries.Starts.of_sizes([(9, 4), (2, 10), (5, 0)])
    assert [starts.before(key) for key in (2, 5, 9)] == [0, 10, 10]
    assert starts.total == 14
    assert beam_entries.Starts.of_sizes([]).total == 0


def test_entries_are_parted_by_key_and_sorted():
    ids = [np.arange(n, dtype=np.int32) for n in (3, 0, 2)]
    columns = [np.array(c) for c in ([7, 1, 7], [0, 0, 0], [5, 6, 4])]
    entries = beam_entries.make_entries(*columns, ids)
    parted = dict(entries.by_key(np.array([1, 0, 1])))
    assert sorted(parted) == [0, 1]
    assert [len(i) for i in beam_entries.sorted_ids([parted[1], parted[0]])] == [0, 2, 3]
