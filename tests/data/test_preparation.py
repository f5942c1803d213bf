"""Orders, epochs, loss masks and interruptions of data/create_tfrecords.py, end to end."""

import itertools
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tokenizers

from data import encoding, progress, token_store
from data.create_tfrecords import main
from data.documents import find_files, read_keyed_documents
from data.manifest import manifest_path, read_manifest
from data.records import record_files
from data.shuffle import DOCUMENTS, SEQUENCES, order_hash
from data.tokenizers import load_tokenizer

WINDOW = 6
TEXTS = [f"Document {n}: " + f"word{n * 7} " * (n % 9) + "é" * (n % 4) for n in range(60)]


def prompt_of(n):
    return {"prompt": f"What is {n}? ", "completion": TEXTS[n]}


def train_tokenizer(path, size):
    own = tokenizers.ByteLevelBPETokenizer()
    own.train_from_iterator(
        TEXTS, vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False
    )
    own.save(str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer of 300 ids, which loads at once, and documents in files of several kinds."""
    folder = tmp_path_factory.mktemp("preparation")
    train_tokenizer(folder / "own.json", 300)
    (folder / "in" / "sub").mkdir(parents=True)
    for name, some in (("a.jsonl", TEXTS[:25]), ("sub/b.jsonl", TEXTS[26:])):
        (folder / "in" / name).write_text("".join(json.dumps({"text": t}) + "\n" for t in some))
    (folder / "in" / "c.txt").write_text(TEXTS[25])
    lines = [json.dumps(prompt_of(n) if n % 3 else {"text": TEXTS[n]}) for n in range(60)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small constants, so that a small corpus meets all of them."""
    monkeypatch.setattr(encoding, "_BATCH_TEXTS", 7)
    monkeypatch.setattr(token_store, "BUFFERED_BYTES", 4000)
    monkeypatch.setattr(token_store, "SORTED_BYTES", 600)
    monkeypatch.setattr(token_store, "_BUCKET_BITS", 2)


def arguments(folder, output, *options, source="in"):
    return [
        *("--input_dir", str(folder / source), "--output_dir", str(output), "--name", "set"),
        *("--encoder_path", str(folder / "own.json"), "--processes", "1", "--files_per", "50"),
        *options,
    ]


def make(folder, output, *options, source="in"):
    assert main(arguments(folder, output, *options, source=source)) == 0
    return records(output)


def records(output):
    """Ids of all records, masked ones as their complement."""
    import tensorflow as tf

    found = []
    for path in record_files(str(output), "set"):
        for content in tf.compat.v1.io.tf_record_iterator(path):
            feature = tf.train.Example.FromString(content).features.feature
            ids = np.array(feature["text"].int64_list.value, np.int64)
            if "loss_mask" in feature:
                counts = np.array(feature["loss_mask"].int64_list.value)
                assert set(counts) <= {0, 1}
                ids = np.where(counts == 1, ids, ~ids)
            found.append(ids.tolist())
    return found


def files_of(output):
    return {name: (output / name).read_bytes() for name in os.listdir(output) if name[0] != "."}


def encoded(folder, source="in"):
    """Key and ids of each document, by plain means."""
    encode = load_tokenizer(str(folder / "own.json"), is_pretrained=False).encode
    for document in read_keyed_documents(find_files(str(folder / source))[0]):
        prompt = [] if document.prompt is None else [~i for i in encode(document.prompt)]
        yield document.key, prompt + encode(document.text)


CHUNKS = ("--mode", "chunks", "--chunk_size", str(WINDOW - 1))
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


RESUMED = {
    "documents": [],
    "documents shuffled": ["--seed", "3"],
    "chunks": [*CHUNKS],
    "chunks shuffled": [*CHUNKS, "--seed", "3"],
    "epochs": [*CHUNKS, "--repack_epochs", "3", "--min_unique_tokens", "5"],
    "epochs in order": [*CHUNKS, "--repack_epochs", "2", "--preserve_data_order"],
}


def snapshots(monkeypatch, output, target):
    """Keeps a copy of the output folder as it is after each state of the work."""
    save = progress.Work.save
    taken = []

    def save_and_copy(self, make_state, force=False):
        save(self, make_state, force)
        taken.append(target / str(len(taken)))
        shutil.copytree(output, taken[-1])

    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(progress.Work, "save", save_and_copy)
    return taken


def add_what_was_lost(work):
    """Appends to all files that are still open what was written after the state."""
    writer = json.loads((work / "state.json").read_text())["writer"]
    parts = len(writer["open_parts"])
    file = len(writer["counts"]) - 1
    appended = [work / f".set_{file}.tfrecords.{part}.partial" for part in (parts - 1, parts)]
    appended += [*work.glob("*/*.index"), *work.glob("*/*.tokens")]
    for path in appended[parts == 0 :]:
        with path.open("ab") as opened:
            opened.write(b"garbage" * 9)


@pytest.mark.parametrize("case", RESUMED)
def test_goes_on_from_every_state_to_the_same_bytes(folder, tmp_path, monkeypatch, case):
    options = [*RESUMED[case], "--processes", "1"]
    output = tmp_path / "out"
    with monkeypatch.context() as patches:
        taken = snapshots(patches, output, tmp_path / "snapshots")
        make(folder, output, *options)
    expected = files_of(output)
    assert len(taken) >= 9
    for snapshot in taken:
        add_what_was_lost(snapshot / ".set.unfinished")
        assert main(arguments(folder, snapshot, *options, "--resume")) == 0, snapshot
        assert files_of(snapshot) == expected, snapshot
        assert not (snapshot / ".set.unfinished").exists()


def test_what_was_read_is_removed_only_when_no_state_speaks_of_it(folder, tmp_path, monkeypatch):
    """However seldom states are written, one is at the end of each stage."""
    options = [*CHUNKS, "--repack_epochs", "2"]
    make(folder, tmp_path / "whole", *options)
    remove = token_store.TokenStore.remove

    def stop(self):
        remove(self)
        if self._depth == 0:
            raise KeyboardInterrupt

    argv = arguments(folder, tmp_path / "out", *options)
    stops = 0
    with monkeypatch.context() as patches:
        patches.setattr(token_store.TokenStore, "remove", stop)
        while main([*argv, "--resume"]) == 130:
            stops += 1
    assert stops == 4  # documents and sequences of two epochs
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


@pytest.fixture
def interrupted(folder, tmp_path, monkeypatch):
    """Work that was stopped by Ctrl-C after its second state, on files of its own."""
    for name in ("own.json", "in"):
        (shutil.copytree if name == "in" else shutil.copy)(folder / name, tmp_path / name)
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    interrupt_at(monkeypatch, 2)
    assert main(arguments(tmp_path, tmp_path / "out", *CHUNKS)) == 130
    monkeypatch.undo()
    assert (tmp_path / "out" / ".set.unfinished" / "state.json").exists()
    return tmp_path


def interrupt_at(monkeypatch, count):
    save = progress.Work.save
    saved = []

    def stop(self, make_state, force=False):
        save(self, make_state, force)
        saved.append(1)
        if len(saved) == count:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress.Work, "save", stop)


def complaint(capsys, argv):
    capsys.readouterr()
    assert main(argv) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_interrupted_work_is_gone_on_with_or_replaced_when_asked(interrupted, capsys, tmp_path):
    argv = arguments(interrupted, interrupted / "out", *CHUNKS)
    assert "must hold no unfinished work on 'set'; got" in complaint(capsys, argv)
    make(interrupted, tmp_path / "whole", *CHUNKS)
    shutil.copytree(interrupted / "out", tmp_path / "copy")
    assert main([*argv, "--overwrite"]) == 0
    assert main([*arguments(interrupted, tmp_path / "copy", *CHUNKS), "--resume"]) == 0
    assert (
        files_of(interrupted / "out") == files_of(tmp_path / "copy") == files_of(tmp_path / "whole")
    )


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (["--chunk_size", "9"], "chunk_size was 5 and is 9"),
        (["--seed", "1"], "seed was None and is 1"),
        (["--minimum_size", "3"], "minimum_size was 1 and is 3"),
        (["--text_key", "content"], "text_key was 'text' and is 'content'"),
        (
            ["--ftfy", "--files_per", "7"],
            "files_per was 50 and is 7; normalize_with_ftfy was False",
        ),
    ],
)
def test_other_options_do_not_go_on(interrupted, capsys, options, difference):
    argv = [*arguments(interrupted, interrupted / "out", *CHUNKS), *options, "--resume"]
    assert difference in complaint(capsys, argv)
    # Nothing was lost by it.
    assert main([*arguments(interrupted, interrupted / "out", *CHUNKS), "--resume"]) == 0


def test_other_files_do_not_go_on(interrupted, capsys):
    argv = [*arguments(interrupted, interrupted / "out", *CHUNKS), "--resume"]
    text = interrupted / "in" / "c.txt"
    new, old = interrupted / "in" / "d.txt", text.read_text()
    new.write_text("new")
    assert f"{new} is new" in complaint(capsys, argv)
    new.unlink()
    text.write_text(old + "more")
    assert f"{text} has changed" in complaint(capsys, argv)
    text.unlink()
    assert f"{text} is missing" in complaint(capsys, argv)
    train_tokenizer(interrupted / "own.json", 290)
    text.write_text(old)
    assert "tokenizer was" in complaint(capsys, argv)


def test_skipping_is_not_given_up_on_the_way(folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "own.json").write_bytes((folder / "own.json").read_bytes())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("{\n" + "\n".join(json.dumps(t) for t in TEXTS))
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    argv = arguments(tmp_path, tmp_path / "out")
    with monkeypatch.context() as patches:
        interrupt_at(patches, 2)
        assert main([*argv, "--skip_bad"]) == 130
    assert "--skip_bad must be given again" in complaint(capsys, [*argv, "--resume"])
    assert main([*argv, "--resume", "--skip_bad"]) == 0
    assert "61 read = 60 kept + 1 dropped" in capsys.readouterr().out


def test_records_may_go_to_another_file_system(folder, tmp_path, monkeypatch):
    """Unfinished work stays here, in the folder for temporary files."""
    monkeypatch.setattr(progress.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    options = [*CHUNKS, "--seed", "1"]
    remote = f"ram://{tmp_path.name}/out"
    with monkeypatch.context() as patches:
        interrupt_at(patches, 12)
        assert main(arguments(folder, remote, *options)) == 130
    [work] = tmp_path.iterdir()
    assert (work / "state.json").exists()
    assert make(folder, remote, *options, "--resume") == make(folder, tmp_path / "out", *options)
    assert read_manifest(manifest_path(remote, "set")) == read_manifest(
        manifest_path(str(tmp_path / "out"), "set")
    )
    assert not work.exists()


def test_one_process_at_a_time(interrupted, capsys):
    other = progress.Work(str(interrupted / "out" / ".set.unfinished"))
    other._take()
    argv = [*arguments(interrupted, interrupted / "out", *CHUNKS), "--resume"]
    assert "made by one process at a time; got another that works in" in complaint(capsys, argv)
    other.release()
    assert main(argv) == 0


def test_nothing_to_resume_is_a_start(folder, tmp_path, caplog):
    caplog.set_level("INFO")
    make(folder, tmp_path / "out", "--resume")
    assert "There is no unfinished work on 'set'; it starts now." in caplog.text


KILLED = """
import os, signal, sys
from data import encoding, progress
from data.create_tfrecords import main
if __name__ == "__main__":
    encoding._BATCH_TEXTS, progress.SAVE_SECONDS = 7, 0.0
    save, saved = progress.Work.save, []
    def kill(self, make_state, force=False):
        save(self, make_state, force)
        saved.append(1)
        if len(saved) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
    progress.Work.save = kill
    main(sys.argv[1:])
"""


def test_a_killed_process_is_gone_on_with(folder, tmp_path, repo_root):
    """It has processes of its own, which end with it."""
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    argv = arguments(folder, tmp_path / "out", *CHUNKS, "--processes", "2")
    done = subprocess.run(
        [sys.executable, str(script), *argv],
        env=os.environ | {"PYTHONPATH": str(repo_root)},
        capture_output=True,  # returns only when all processes that hold the pipes are gone
        timeout=120,
    )
    assert done.returncode == -9, done.stderr
    assert files_of(tmp_path / "out") == {}
    make(folder, tmp_path / "out", *CHUNKS, "--resume")
    make(folder, tmp_path / "whole", *CHUNKS)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


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
