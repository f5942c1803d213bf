"""The command that makes tokenizers: they work everywhere and depend on the text only."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile

import pytest
import tokenizers as library
import zstandard

from data import documents
from data.bpe_training import split_text, train_bpe
from data.create_tfrecords import main as make_records
from data.records import read_records, record_files
from data.tokenizers import load_tokenizer
from data.train_tokenizer import FILE_NAME, main

TEXTS = [
    "the cat sat on the mat\n\n  and the dog sat on the cat\r\n" * 3,
    "naïve café, naïve café — 日本語 日本語 <|endoftext|> the mat",
    "",
    "\tdef f(x):\n\t\treturn x + x\n" * 4,
]


def lines_of(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def tar_of(texts):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8", newline="")
    return folder


def run(source, output, *more, size=300):
    """The tokenizer that the command makes."""
    arguments = ["--input_dir", str(source), "--output_dir", str(output)]
    assert main([*arguments, "--vocab_size", str(size), *more]) == 0
    return load_tokenizer(str(output / FILE_NAME), is_pretrained=False)


def refused(capsys, source, output, *more):
    """Runs a command that must fail, and gives its one line of complaint."""
    before = sorted(os.listdir(output)) if output.exists() else []
    assert main(["--input_dir", str(source), "--output_dir", str(output), *more]) == 2
    assert (sorted(os.listdir(output)) if output.exists() else []) == before
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.strip().splitlines()[-1]
    assert line.startswith("train_tokenizer.py: ")
    return line.removeprefix("train_tokenizer.py: ")


def test_what_comes_out(corpus, tmp_path, capsys):
    tokenizer = run(corpus, tmp_path / "out")
    assert (tokenizer.size, tokenizer.eos_id, tokenizer.padding_id) == (300, 0, 1)
    assert tokenizer.special_ids == {0, 1}
    assert tokenizer.is_byte_level
    for text in (*TEXTS, "never seen: \x00 \U0010ffff ß\r\n  x"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("the cat sat on the mat")) < 10
    assert tokenizer.encode("A<|endoftext|>B").count(0) == 1
    assert os.listdir(tmp_path / "out") == [FILE_NAME]
    *_, use, last = capsys.readouterr().out.splitlines()
    assert last == f"tokenizer: {tmp_path}/out/{FILE_NAME} (300 ids)"
    assert f"--encoder_path {tmp_path}/out/{FILE_NAME}" in use


def test_it_loads_in_other_libraries(corpus, tmp_path):
    from transformers import PreTrainedTokenizerFast

    ours = run(corpus, tmp_path)
    path = str(tmp_path / FILE_NAME)
    plain = library.Tokenizer.from_file(path)
    fast = PreTrainedTokenizerFast(tokenizer_file=path)
    assert plain.get_vocab_size() == len(fast) == ours.size
    for text in TEXTS:
        assert plain.encode(text).ids == fast(text)["input_ids"] == ours.encode(text)
        assert fast.decode(ours.encode(text), clean_up_tokenization_spaces=False) == text


FORMATS = {
    "text.jsonl": lines_of,
    "text.jsonl.gz": lambda texts: gzip.compress(lines_of(texts)),
    "text.jsonl.zst": lambda texts: zstandard.compress(lines_of(texts)),
    "text.tar.gz": tar_of,
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_tokenizer_from_any_format_and_order(corpus, tmp_path, name):
    run(corpus, tmp_path / "folder")
    file = tmp_path / name
    file.write_bytes(FORMATS[name](TEXTS[::-1]))
    run(file, tmp_path / "file")
    assert (tmp_path / "folder" / FILE_NAME).read_bytes() == (
        tmp_path / "file" / FILE_NAME
    ).read_bytes()


def test_flags_as_in_gpt_neo_and_in_a_process_of_its_own(corpus, tmp_path, repo_root):
    (corpus / "more.jsonl").write_bytes(lines_of(["zzzz"] * 50))
    run(corpus, tmp_path / "here", "--file_type", "txt", size=280)
    arguments = ["--base_dir", str(corpus), "--output_dir", str(tmp_path / "there")]
    arguments += ["--file_type", "txt", "--vocab_size", "280"]
    script = [sys.executable, "data/train_tokenizer.py", *arguments]
    done = subprocess.run(script, cwd=repo_root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].endswith(f"/there/{FILE_NAME} (280 ids)")
    assert "4 documents, " in done.stderr and "joining tokens now" in done.stderr
    made = [(tmp_path / folder / FILE_NAME).read_bytes() for folder in ("here", "there")]
    assert made[0] == made[1]
    assert run(corpus, tmp_path / "all", size=280).encode("zzzz") != [0]
    assert len(run(corpus, tmp_path / "lines", "--file_type", "jsonl").encode("zzzz")) == 1


def test_files_of_no_format_are_text(corpus, tmp_path):
    (corpus / "code.py").write_text("lambda lambda lambda")
    tokenizer = run(corpus, tmp_path, "--file_type", "py")
    assert len(tokenizer.encode(" lambda")) == 1


def test_the_key_of_the_text(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text('{"body": "zzzz zzzz zzzz", "text": "no"}\n')
    assert len(run(file, tmp_path, "--text_key", "body").encode(" zzzz")) == 1


def test_prompts_and_completions_are_texts_of_their_own(tmp_path, capsys):
    file = tmp_path / "x.jsonl"
    file.write_text('{"prompt": "zz", "completion": "zz"}\n' * 3)
    tokenizer = run(file, tmp_path)
    assert tokenizer.size == 259  # zz, and no zzzz
    assert "text: 3 documents, 12 bytes" in capsys.readouterr().out


def test_bad_documents_are_named_or_skipped(tmp_path, capsys, caplog):
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "zz zz zz"}\n' + "damaged\n" * 15 + '{"text": "yy yy yy"}\n')
    assert f"{file} (line 2: " in refused(capsys, file, tmp_path / "out")
    tokenizer = run(file, tmp_path / "out", "--skip_bad")
    assert len(tokenizer.encode(" yy")) == 1
    output = capsys.readouterr().out
    assert "text: 2 documents, 16 bytes of text, 15 bad documents skipped" in output
    *named, last = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(named) == 10
    assert named[-1].startswith(f"skipped: {file} (line 11: ")
    assert last == "more bad documents are counted, not named"


def test_more_special_tokens(corpus, tmp_path):
    more = ["--special_token", "<|user|>", "--special_token", "<|padding|>"]
    tokenizer = run(corpus, tmp_path, *more)
    assert tokenizer.encode("<|endoftext|><|padding|><|user|>") == [0, 1, 2]
    assert tokenizer.special_ids == {0, 1, 2} and tokenizer.size == 300


def test_too_little_text_gives_a_smaller_vocabulary_and_says_so(corpus, tmp_path, capsys):
    tokenizer = run(corpus, tmp_path, size=50257)
    assert 258 < tokenizer.size < 600
    output = capsys.readouterr().out
    assert f"vocabulary: {tokenizer.size} ids = 2 special + 256 bytes + " in output
    assert "smaller than --vocab_size 50,257" in output and "give more text or a lower" in output
    lower = run(corpus, tmp_path / "lower", "--min_frequency", "1", size=50257)
    assert lower.size > tokenizer.size


def test_sizes_that_a_layout_can_split_are_suggested(corpus, tmp_path, capsys):
    run(corpus, tmp_path / "odd", size=257 + 2)
    assert "384 is the next multiple of 128" in capsys.readouterr().out
    (corpus / "more.txt").write_text(" ".join(f"{n:b}" for n in range(1000)))
    assert run(corpus, tmp_path / "even", size=384).size == 384
    assert "multiple" not in capsys.readouterr().out


def test_a_limit_of_bytes(corpus, tmp_path, capsys):
    size = len(TEXTS[0].encode()) + 4  # in the middle of ï
    run(corpus, tmp_path / "limited", "--max_bytes", str(size - 1))
    assert f"text: 2 documents, {size - 1} bytes of text" in capsys.readouterr().out
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "0.txt").write_text(TEXTS[0], newline="")
    (tmp_path / "cut" / "1.txt").write_text("na")
    run(tmp_path / "cut", tmp_path / "whole")
    assert (tmp_path / "whole" / FILE_NAME).read_bytes() == (
        tmp_path / "limited" / FILE_NAME
    ).read_bytes()


def test_an_existing_tokenizer_is_kept(corpus, tmp_path, capsys):
    run(corpus, tmp_path / "out")
    before = (tmp_path / "out" / FILE_NAME).read_bytes()
    capsys.readouterr()
    message = refused(capsys, corpus, tmp_path / "out", "--vocab_size", "290")
    assert message.startswith(f"output_dir must hold no tokenizer yet; got {tmp_path}/out/")
    assert (tmp_path / "out" / FILE_NAME).read_bytes() == before
    assert run(corpus, tmp_path / "out", "--overwrite", size=290).size == 290


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vocab_size", "257"], "--vocab_size must be at least 258, for 256 bytes and 2 special"),
        (["--vocab_size", "258", "--special_token", "<x>"], "--vocab_size must be at least 259"),
        (["--min_frequency", "0"], "--min_frequency must be from 1 to 2^63 - 1; got 0."),
        (["--min_frequency", "9" * 20], "--min_frequency must be from 1 to 2^63 - 1; got 9999"),
        (["--max_bytes", "0"], "--max_bytes must be from 1 to 2^63 - 1; got 0."),
        (["--vocab_size", "4294967296"], "--vocab_size must be at most 16777216; got 4294967296."),
        (
            ["--special_token", "<\udcff>"],
            "--special_token must be text in UTF-8; got '<\\udcff>'.",
        ),
        (["--special_token", "a"], "--special_token must have two characters or more"),
        (["--vocab_siz", "300"], "unrecognized arguments: --vocab_siz 300. See train_tok"),
        (["--file_type", "jsonl"], "input_dir must hold at least one file with the ending of"),
    ],
)
def test_wrong_options_are_refused(corpus, tmp_path, capsys, flags, message):
    assert refused(capsys, corpus, tmp_path / "out", *flags).startswith(message)


def test_a_corpus_without_text(tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("")
    message = refused(capsys, tmp_path / "empty.txt", tmp_path / "out")
    assert message.startswith("input_dir must hold text; got 1 documents, 0 bytes of text in ")


def test_a_missing_folder_and_a_damaged_file(corpus, tmp_path, capsys):
    assert "must be a folder or a file that exists" in refused(capsys, tmp_path / "no", tmp_path)
    (corpus / "9.txt").write_bytes(b"\xff\xfe\xfa")
    assert f"{corpus}/9.txt" in refused(capsys, corpus, tmp_path / "out")


def test_a_folder_that_cannot_be_made_is_refused_before_reading(corpus, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    message = refused(capsys, corpus / "missing", tmp_path / "file" / "out")
    assert message.startswith("output_dir must be a folder that can be written to; got ")


def test_records_are_made_with_it(corpus, tmp_path):
    tokenizer = run(corpus, tmp_path)
    arguments = ["--encoder_path", str(tmp_path / FILE_NAME), "--input_dir", str(corpus)]
    arguments += ["--output_dir", str(tmp_path / "records"), "--name", "set", "--processes", "1"]
    assert make_records(arguments) == 0
    [path] = record_files(str(tmp_path / "records"), "set")
    assert [list(ids) for ids in read_records(path)] == [tokenizer.encode(t) for t in TEXTS if t]


def test_no_arguments_show_the_help(capsys):
    assert main([]) == 0
    assert "--vocab_size IDS" in capsys.readouterr().out


@pytest.mark.parametrize("length", [20, 30, 50])
def test_a_text_in_pieces_has_the_same_words(length):
    text = "".join(TEXTS) + "  one \n\n \n two\r\n\r\nthree\n\tfour's\u2003five   six  " * 3
    pieces = list(split_text(text, length))
    assert len(pieces) > 3 and "".join(pieces) == text
    assert max(map(len, pieces)) <= 2 * length
    cut = library.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    assert [word for piece in pieces for word, _ in cut(piece)] == [word for word, _ in cut(text)]


def test_a_text_without_spaces_is_cut_all_the_same():
    assert list(split_text("x" * 50, 10)) == ["x" * 20, "x" * 20, "x" * 10]
    assert list(split_text("", 10)) == []


def test_most_frequent_pairs_come_first():
    backend = train_bpe(["ab ab ab ab ab cd cd cd"], 261)
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    assert [token for token, _ in vocabulary[258:]] == ["ab", "Ġab", "cd"]


def test_text_that_changes_while_it_is_read_is_refused(corpus, tmp_path, capsys, monkeypatch):
    read_entries = documents.read_entries

    def read_and_change(path):
        yield from read_entries(path)
        os.utime(path, (1, 1))

    monkeypatch.setattr(documents, "read_entries", read_and_change)
    message = refused(capsys, corpus, tmp_path / "out")
    assert message.startswith("input files must stay as they are while they are read; got other")
    assert not (tmp_path / "out" / FILE_NAME).exists()
