"""The command that makes records: what it writes, says and refuses."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import zstandard

from configs.datasets import DatasetConfig
from data.create_tfrecords import main
from data.records import read_records, record_count, record_files
from data.tokenizers import load_tokenizer

EOT = 50256


@pytest.fixture
def corpus(tmp_path):
    """A folder of 30 documents that are all different, and their texts in order."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [f"Document number {n}. " + f"word{n} " * (3 + 7 * n % 40) for n in range(30)]
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text)
    return folder, texts


def command(source, output, *more):
    return [
        *("--input_dir", str(source), "--output_dir", str(output), "--name", "set"),
        *("--processes", "1", *more),
    ]


def run(source, output, *more):
    """Runs the command with GPT-2's tokenizer and gives the records it made."""
    assert main(command(source, output, "--use_gpt2_tokenizer", *more)) == 0
    return [list(read_records(path)) for path in record_files(str(output), "set")]


def refused(capsys, arguments, exit_code=2):
    """Runs a command that must fail, and gives its one line of complaint."""
    assert main(arguments) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.strip().splitlines()[-1]
    assert line.startswith("create_tfrecords.py: ")
    return line


def stream_of(texts):
    ids = load_tokenizer().encode_batch(texts)
    return np.concatenate([[*document, EOT] for document in ids])


def test_chunks_are_contiguous_slices_of_the_joined_documents(corpus, tmp_path, capsys):
    folder, texts = corpus
    files = run(folder, tmp_path / "out", "--mode", "chunks", "--chunk_size", "16")
    records = np.concatenate(files)
    assert records.shape[1] == 17
    expected = stream_of(texts)
    kept = len(expected) // 17 * 17
    np.testing.assert_array_equal(records.ravel(), expected[:kept])
    dropped = len(expected) - kept
    out = capsys.readouterr().out
    assert "documents: 30 read = 30 kept + 0 dropped" in out
    assert f"records: {len(records)}" in out
    assert f"tokens: {len(expected):,} read = {kept:,} kept + {dropped} dropped" in out


def test_documents_are_whole_records_and_files_have_true_names(corpus, tmp_path):
    folder, texts = corpus
    files = run(folder, tmp_path / "out", "--files_per", "8")
    assert [len(records) for records in files] == [8, 8, 8, 6]
    names = record_files(str(tmp_path / "out"), "set")
    assert [record_count(name) for name in names] == [8, 8, 8, 6]
    ids = load_tokenizer().encode_batch(texts)
    assert [record.tolist() for records in files for record in records] == ids


def test_minimum_size_drops_and_counts(corpus, tmp_path, capsys):
    folder, texts = corpus
    (records,) = run(folder, tmp_path / "out", "--minimum_size", "60")
    ids = [document for document in load_tokenizer().encode_batch(texts) if len(document) >= 60]
    assert 0 < len(ids) < 30
    assert [record.tolist() for record in records] == ids
    assert f"30 read = {len(ids)} kept + {30 - len(ids)} dropped" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["documents", "chunks"])
def test_processes_do_not_change_the_files(corpus, tmp_path, monkeypatch, mode):
    monkeypatch.setattr("data.encoding._BATCH_TEXTS", 4)
    folder, _ = corpus
    options = ["--mode", mode, "--files_per", "9"]
    if mode == "chunks":
        options += ["--chunk_size", "16"]
    outputs = []
    for processes in ("1", "8"):
        output = tmp_path / processes
        run(folder, output, *options, "--processes", processes)
        outputs.append({path.name: path.read_bytes() for path in output.iterdir()})
    assert outputs[0] == outputs[1]


def test_every_format_gives_the_same_tokens(corpus, tmp_path):
    folder, texts = corpus
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for number in range(len(texts)):
            tar.add(folder / f"{number}.txt", f"{number}.txt")
    contents = {
        "a.jsonl": lines,
        "a.jsonl.zst": zstandard.ZstdCompressor().compress(lines),
        "a.jsonl.gz": gzip.compress(lines),
        "a.tar.gz": archive.getvalue(),
    }
    expected = run(folder, tmp_path / "txt", "--mode", "chunks", "--chunk_size", "16")
    for name, content in contents.items():
        source = tmp_path / f"from_{name}"
        source.mkdir()
        (source / name).write_bytes(content)
        for path in (source, source / name):  # a single file works like its folder
            options = ("--mode", "chunks", "--chunk_size", "16", "--overwrite")
            np.testing.assert_array_equal(run(path, tmp_path / f"out_{name}", *options), expected)


def test_end_of_text_in_a_document(tmp_path):
    (tmp_path / "a.txt").write_text("A<|endoftext|>B")
    a, b = load_tokenizer().encode_batch(["A", "B"])
    ((record,),) = run(tmp_path / "a.txt", tmp_path / "special")
    assert record.tolist() == [*a, EOT, *b]
    ((record,),) = run(tmp_path / "a.txt", tmp_path / "text", "--treat_eot_as_text")
    assert EOT not in record
    assert load_tokenizer().decode(record) == "A<|endoftext|>B"


def test_text_is_repaired_only_when_asked(tmp_path):
    (tmp_path / "a.txt").write_text("schÃ¶n @-@ gut", encoding="utf-8")
    decode = load_tokenizer().decode
    for options, text in (
        ((), "schÃ¶n @-@ gut"),
        (("--ftfy",), "schön @-@ gut"),
        (("--normalize-with-ftfy",), "schön @-@ gut"),
        (("--wikitext-detokenize",), "schÃ¶n-gut"),
        (("--normalize_with_wikitext_detokenize", "--normalize_with_ftfy"), "schön-gut"),
    ):
        ((record,),) = run(tmp_path / "a.txt", tmp_path / "out", "--overwrite", *options)
        assert decode(record) == text


def test_own_tokenizer_and_dataset_config(corpus, tmp_path):
    import tokenizers

    folder, texts = corpus
    own = tokenizers.ByteLevelBPETokenizer()
    own.train_from_iterator(
        texts, vocab_size=300, special_tokens=["<|endoftext|>", "<|padding|>"], show_progress=False
    )
    own.save(str(tmp_path / "own.json"))
    output, config = tmp_path / "out", tmp_path / "configs" / "own.json"
    arguments = command(folder, output, "--encoder_path", str(tmp_path / "own.json"))
    arguments += ["--mode", "chunks", "--chunk_size", "16", "--write_dataset_config", str(config)]
    assert main(arguments) == 0
    content = json.loads(config.read_text())
    assert content == {
        "n_vocab": content["n_vocab"],
        "path": str(output / "set_[0-9]*.tfrecords"),
        "tokenizer_is_pretrained": False,
        "tokenizer_path": str(tmp_path / "own.json"),
        "eos_id": 0,
        "padding_id": 1,
    }
    dataset = DatasetConfig.model_validate(content)
    assert dataset.eval_path is None
    (path,) = record_files(str(output), "set")
    records = np.concatenate(list(read_records(path)))
    assert records.max() < content["n_vocab"] <= 300
    assert (records == 0).sum() > 20  # the vocabulary's own end of text separates


def test_dataset_config_of_gpt2(corpus, tmp_path):
    config = tmp_path / "gpt2.json"
    run(corpus[0], tmp_path / "out", "--write_dataset_config", str(config))
    content = json.loads(config.read_text())
    assert (content["n_vocab"], content["eos_id"], content["padding_id"]) == (50257, EOT, EOT)
    assert (content["tokenizer_path"], content["tokenizer_is_pretrained"]) == ("gpt2", True)


def test_separator_is_the_end_of_a_document_in_the_dataset_config(corpus, tmp_path):
    config = tmp_path / "mine.json"
    options = ["--separator", "[7]", "--write_dataset_config", str(config)]
    run(corpus[0], tmp_path / "out", *options)
    assert json.loads(config.read_text())["eos_id"] == 7


def test_dataset_config_is_replaced_only_when_asked_and_keeps_what_is_not_known(
    corpus, tmp_path, capsys
):
    config = tmp_path / "mine.json"
    old = {"id": "own", "eval_path": "held_*.tfrecords", "lambada_tokens_path": "l_*.tfrecords"}
    config.write_text(json.dumps(old | {"n_vocab": 7, "path": "old", "eos_id": 3}))
    before = config.read_bytes()
    arguments = command(corpus[0], tmp_path / "out", "--use_gpt2_tokenizer")
    arguments += ["--write_dataset_config", str(config)]
    line = refused(capsys, arguments)
    assert f"dataset config must not exist yet; got {config}. Give --write" in line
    assert config.read_bytes() == before
    assert not (tmp_path / "out").exists()  # refused before any work
    assert main([*arguments, "--overwrite"]) == 0
    fresh = tmp_path / "fresh.json"
    run(corpus[0], tmp_path / "out", "--overwrite", "--write_dataset_config", str(fresh))
    assert json.loads(config.read_text()) == json.loads(fresh.read_text()) | old


@pytest.mark.parametrize("content", ["{broken", "[1]"])
def test_dataset_config_that_cannot_be_kept_is_not_replaced(tmp_path, capsys, content):
    config = tmp_path / "mine.json"
    config.write_text(content)
    arguments = command(tmp_path / "none", tmp_path / "out", "--use_gpt2_tokenizer", "--overwrite")
    line = refused(capsys, [*arguments, "--write_dataset_config", str(config)])
    assert f"must be a file with a JSON object, for its eval_path to be kept; got {config}" in line
    assert config.read_text() == content


def test_too_few_tokens_for_one_chunk(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("word" + " word" * 58)
    arguments = command(tmp_path / "a.txt", tmp_path / "out", "--use_gpt2_tokenizer")
    line = refused(capsys, [*arguments, "--mode", "chunks"])
    assert "must be filled with 2049 tokens; got 60 tokens" in line
    assert not (tmp_path / "out").exists()


def test_records_of_prompts_alone_are_not_made(tmp_path, capsys):
    line = json.dumps({"prompt": "word " * 60, "completion": "end"})
    (tmp_path / "long.jsonl").write_text(line)
    options = ["--use_gpt2_tokenizer", "--mode", "chunks", "--chunk_size", "16"]
    line = refused(capsys, command(tmp_path / "long.jsonl", tmp_path / "out", *options))
    assert "must hold tokens that a model is to learn; got 51 tokens of prompts and none" in line
    assert not list((tmp_path / "out").glob("*"))


def test_too_small_documents(corpus, tmp_path, capsys):
    arguments = command(corpus[0], tmp_path / "out", "--use_gpt2_tokenizer")
    line = refused(capsys, [*arguments, "--minimum_size", "5000"])
    assert "must have 5000 tokens; got 30 documents, the longest of" in line


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, b"", r"exists; got"),
        ("a.pdf", b"x", "accepted format"),
        ("b.txt", b"caf\xe9", "b.txt"),
        ("b.jsonl.zst", b"broken", "b.jsonl.zst"),
    ],
)
def test_unusable_input_is_named_and_leaves_nothing(tmp_path, capsys, name, content, message):
    source = tmp_path / "in"
    if name is not None:
        source.mkdir()
        (source / name).write_bytes(content)
        if name.startswith("b"):
            (source / "a.txt").write_text("fine")
    arguments = command(source, tmp_path / "out", "--use_gpt2_tokenizer")
    assert message in refused(capsys, arguments)
    assert not (tmp_path / "out").exists()


def test_records_that_are_there_are_replaced_only_when_asked(corpus, tmp_path, capsys):
    folder, _ = corpus
    output = tmp_path / "out"
    run(folder, output, "--files_per", "3")
    run(folder, tmp_path / "other", "--files_per", "3")
    arguments = command(folder, output, "--use_gpt2_tokenizer")
    capsys.readouterr()
    assert "got 10 files" in refused(capsys, arguments)
    assert main([*arguments, "--overwrite"]) == 0
    assert sorted(os.listdir(output)) == ["set.manifest.json", "set_0_30.tfrecords"]


def test_failed_replacement_keeps_the_old_records(corpus, tmp_path, capsys):
    folder, _ = corpus
    output = tmp_path / "out"
    run(folder, output)
    (folder / "99.txt").write_bytes(b"caf\xe9")
    capsys.readouterr()
    refused(capsys, command(folder, output, "--use_gpt2_tokenizer", "--overwrite"))
    assert sorted(os.listdir(output)) == ["set.manifest.json", "set_0_30.tfrecords"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "one of the arguments --use_gpt2_tokenizer --encoder_path is required"),
        (["--use_gpt2_tokenizer", "--encoder_path", "x"], "not allowed with"),
        (["--encoder_path", "none.json"], "tokenizer file must exist; got none.json"),
        (["--use_gpt2_tokenizer", "--base_dir", "x"], "Use --input_dir."),
        (["--use_gpt2_tokenizer", "--min_size=3"], "Use --minimum_size."),
        (["--use_gpt2_tokenizer", "--mode", "other"], "invalid choice: 'other'"),
        (["--use_gpt2_tokenizer", "--unknown"], "--unknown"),
        (["--use_gpt2_tokenizer", "--chunk_size", "0"], "--chunk_size must be at least 1; got 0"),
        (["--use_gpt2_tokenizer", "--files_per", "0"], "--files_per must be at least 1; got 0"),
        (["--use_gpt2_tokenizer", "--minimum_size", "-1"], "--minimum_size must be at least 0"),
        (["--use_gpt2_tokenizer", "--processes", "-2"], "processes must be 0 (one per core)"),
        (
            ["--use_gpt2_tokenizer", "--mode", "chunks", "--separator", "50257"],
            "--separator must be one or more ids from 0 to 50256, or a text; got '50257'",
        ),
    ],
)
def test_wrong_usage_is_one_line(corpus, tmp_path, capsys, options, message):
    assert message in refused(capsys, command(corpus[0], tmp_path / "out", *options))


def test_separator_is_needed_where_the_vocabulary_has_no_end(corpus, tmp_path, capsys):
    import tokenizers

    path = tmp_path / "words.json"
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(str(path))
    arguments = command(corpus[0], tmp_path / "out", "--encoder_path", str(path))
    line = refused(capsys, [*arguments, "--mode", "chunks"])
    assert "must have an end-of-text token; got none in" in line


def test_option_without_effect_is_named(corpus, tmp_path, caplog):
    run(corpus[0], tmp_path / "out", "--chunk_size", "16")
    assert "--chunk_size has no effect in --mode documents." in caplog.text


def test_no_arguments_show_the_help(capsys):
    assert main([]) == 0
    help_text = capsys.readouterr().out
    for default in ("default: documents", "default: 100000", "default: 2048", "default: 0, all"):
        assert default in help_text.replace("\n                        ", " ")


def test_script_runs_without_a_terminal_from_anywhere(corpus, tmp_path, repo_root):
    script = str(repo_root / "data" / "create_tfrecords.py")
    arguments = command(corpus[0], "out", "--use_gpt2_tokenizer", "--processes", "2")

    def call(more):
        return subprocess.run(
            [sys.executable, script, *more],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    done = call(arguments)
    assert done.returncode == 0, done.stderr
    assert "documents: 30 read = 30 kept + 0 dropped" in done.stdout
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path / "out")) == ["set.manifest.json", "set_0_30.tfrecords"]
    again = call(arguments)
    assert again.returncode == 2
    assert again.stdout == ""
    assert len(again.stderr.strip().splitlines()) == 1
    assert call([]).returncode == 0
