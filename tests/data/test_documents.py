"""Reading: every format gives the same documents; what cannot be read is named."""

import gzip
import json
import os

import pytest

from data.documents import BadDocument, Document, find_files, read_documents, read_keyed_documents
from tests.data.archive_support import compress, lines, tar_of, write_dat, zip_of

DOCUMENTS = ["First one.\r\nTwo lines.\n", "", "naïve 日本語", "last"]


FORMATS = {
    "a.jsonl": lines(DOCUMENTS),
    "a.jsonl.gz": gzip.compress(lines(DOCUMENTS)),
    "a.json.gz": gzip.compress(lines(DOCUMENTS)),
    "a.jsonl.zst": compress(lines(DOCUMENTS)),
    "frames.jsonl.zst": compress(lines(DOCUMENTS[:1])) + compress(lines(DOCUMENTS[1:])),
    "a.json.zst": compress(json.dumps(DOCUMENTS).encode()),
    "a.jsonl.zst.tar": tar_of(
        [compress(lines(DOCUMENTS[:3])), compress(lines(DOCUMENTS[3:]))], "w", "{}.jsonl.zst"
    ),
    "a.tar.gz": tar_of(DOCUMENTS, "w:gz"),
    "a.tgz": tar_of(DOCUMENTS, "w:gz"),
    "urlsf_subset00-1_data.xz": tar_of(DOCUMENTS, "w:xz"),
    "openwebtext.tar.xz": tar_of(
        [tar_of(DOCUMENTS[:2], "w:xz"), tar_of(DOCUMENTS[2:], "w:xz")], "w:xz", "o/{}_data.xz"
    ),
    "a.zip": zip_of(DOCUMENTS),
}
# Formats of lm_dataformat that its reader reads in these files.
LM_DATAFORMAT = ("a.jsonl", "a.json.gz", "a.jsonl.zst", "a.json.zst", "a.zip")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_documents(tmp_path, name):
    (tmp_path / name).write_bytes(FORMATS[name])
    paths, others = find_files(str(tmp_path))
    assert (paths, others) == ([str(tmp_path / name)], 0)
    assert list(read_documents(paths)) == DOCUMENTS


def test_dat_archive(tmp_path):
    documents = [text for text in DOCUMENTS if text]
    (tmp_path / "a.dat.zst").write_bytes(compress(write_dat(documents)))
    assert list(read_documents([str(tmp_path / "a.dat.zst")])) == documents


def test_text_files_are_one_document_each(tmp_path):
    for number, text in enumerate(DOCUMENTS):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
    assert list(read_documents(find_files(str(tmp_path))[0])) == DOCUMENTS


def test_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfabc")
    assert list(read_documents([str(tmp_path / "a.txt")])) == ["abc"]


def test_files_are_found_in_natural_order(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("10.txt", "9.txt", "sub/1.txt", ".hidden/1.txt", ".x.txt", "a.py", "b.bin"):
        (tmp_path / name).write_text("x")
    paths, others = find_files(str(tmp_path))
    assert [os.path.relpath(path, tmp_path) for path in paths] == ["9.txt", "10.txt", "sub/1.txt"]
    assert others == 2
    assert len(find_files(str(tmp_path), ["py", ".bin"])[0]) == 5


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"folder or a file that exists; got .*/none"):
        find_files(str(tmp_path / "none"))


def test_no_usable_file_names_the_formats(tmp_path):
    (tmp_path / "a.pdf").write_text("x")
    message = r"accepted format \(\.txt .*\.jsonl\.zst.*\); got 1 other files in .*--suffix"
    with pytest.raises(ValueError, match=message):
        find_files(str(tmp_path))
    with pytest.raises(ValueError, match=message):
        find_files(str(tmp_path / "a.pdf"))


# The bytes are no names for tests: they hold the time of day.
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"caf\xe9"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b'),
        ("a.jsonl", b'{"content": "a"}\n'),
        ("a.jsonl", b'{"text": 3}\n'),
        ("a.jsonl.zst", b"not zstandard"),
        ("a.jsonl.zst", FORMATS["a.jsonl.zst"][:-30]),
        ("a.jsonl.gz", FORMATS["a.jsonl.gz"][:-12]),
        ("a.json.gz", FORMATS["a.json.gz"][:-12]),
        ("a.json.zst", b"not zstandard"),
        ("a.tar.gz", FORMATS["a.tar.gz"][:-40]),
        ("a.tar.gz", b"not gzip"),
        ("a.tar.xz", b"not xz"),
        ("a.tar.gz", tar_of([b"caf\xe9"], "w:gz")),
        ("a.zip", b"not zip"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)}_bytes",
)
def test_unreadable_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"must be readable and hold text .*{name} \(.+\)\. Rep"):
        list(read_documents([str(tmp_path / name)]))


@pytest.mark.parametrize("name", LM_DATAFORMAT)
def test_documents_are_those_of_lm_dataformat(tmp_path, name):
    from lm_dataformat import Reader

    (tmp_path / name).write_bytes(FORMATS[name])
    expected = [
        entry["text"] if isinstance(entry, dict) else entry
        for entry in Reader(str(tmp_path)).stream_data()
    ]
    assert list(read_documents([str(tmp_path / name)])) == expected


def test_each_line_of_a_gzipped_text_is_a_document(tmp_path):
    """As lm_dataformat has it."""
    from lm_dataformat import Reader

    (tmp_path / "a.gz").write_bytes(gzip.compress("one\ntwo é\n".encode()))
    documents = list(read_documents([str(tmp_path / "a.gz")]))
    assert documents == list(Reader(str(tmp_path / "a.gz")).stream_data()) == ["one\n", "two é\n"]


def test_text_key(tmp_path):
    entries = [{"content": "a", "text": "no"}, {"content": ["b", "c"]}, "d"]
    path = str(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, entries)))
    assert list(read_documents([path], text_key="content")) == ["a", "b\n\nc", "d"]
    with pytest.raises(ValueError, match=r"a\.jsonl \(line 3: .* 'text'; its keys are 'content"):
        list(read_documents([path]))


def test_prompts_and_completions(tmp_path):
    entries = [
        {"prompt": "a", "completion": "b"},
        {"prompt": "", "completion": "c"},
        {"prompt": "a", "completion": "b", "text": "t"},
    ]
    (tmp_path / "a.jsonl.gz").write_bytes(
        gzip.compress("\n".join(map(json.dumps, entries)).encode())
    )
    documents = list(read_keyed_documents([str(tmp_path / "a.jsonl.gz")]))
    assert documents == [
        Document((0, 0), "b", "a"),
        Document((0, 1), "c", ""),
        Document((0, 2), "t"),
    ]
    assert list(read_documents([str(tmp_path / "a.jsonl.gz")])) == ["ab", "c", "t"]


def damaged_files(folder):
    (folder / "1.txt").write_bytes(b"caf\xe9")
    (folder / "2.jsonl").write_bytes(
        b'{"text": "a"}\n{"text": \n{"text": "b"}\n{"content": 1}\n{"text": 3}\n'
        b'{"text": "caf\xe9"}\n'
        b'{"prompt": 1, "completion": "x"}\n{"prompt": "x", "completion": ""}\n'
        b'{"text": "\\ud800"}\n{"text": "c"}'
    )
    (folder / "3.tar.gz").write_bytes(tar_of(["d", b"\xe9", "e"], "w:gz"))
    (folder / "4.jsonl.zst").write_bytes(compress(lines(["f"])) + compress(lines(["g"]))[:-9])
    (folder / "5.zip").write_bytes(zip_of(["h"]))


def test_damaged_documents_are_named_and_others_read(tmp_path):
    damaged_files(tmp_path)
    paths, _ = find_files(str(tmp_path))
    documents = list(read_keyed_documents(paths))
    assert [d.text for d in documents if isinstance(d, Document)] == list("abcdefh")
    bad = [d for d in documents if isinstance(d, BadDocument)]
    assert [(os.path.basename(d.path), d.position) for d in bad] == [
        ("1.txt", ""),
        *(("2.jsonl", f"line {n}") for n in (2, 4, 5, 6, 7, 8, 9)),
        ("3.tar.gz", "member doc1.txt"),
        ("4.jsonl.zst", "after line 1"),
    ]
    keys = [document.key for document in documents]
    assert keys == sorted(set(keys))


def test_reading_starts_at_any_document(tmp_path):
    damaged_files(tmp_path)
    paths, _ = find_files(str(tmp_path))
    documents = list(read_keyed_documents(paths))
    for number, document in enumerate(documents):
        assert list(read_keyed_documents(paths, start=document.key)) == documents[number:]
    os.remove(paths[0])  # a file before the start is not opened
    assert list(read_keyed_documents(paths, start=(1, 0))) == documents[1:]


def test_names_may_hold_any_digits(tmp_path):
    names = ["1²2.txt", "1²10.txt", "٣.txt"]
    for name in names:
        (tmp_path / name).write_text("x")
    assert [os.path.basename(path) for path in find_files(str(tmp_path))[0]] == names


def test_linked_folders_are_read_once(tmp_path):
    (tmp_path / "elsewhere" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "z").mkdir(parents=True)
    for name in ("elsewhere/a.txt", "elsewhere/sub/b.txt", "in/z/c.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in" / "z")
    (tmp_path / "in" / "z" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "elsewhere")
    paths, _ = find_files(str(tmp_path / "in"))
    expected = ["linked/a.txt", "linked/sub/b.txt", "z/c.txt"]
    assert [os.path.relpath(path, tmp_path / "in") for path in paths] == expected


def refused_folder(folder, path, why):
    with pytest.raises(
        ValueError, match=r"^input_dir must hold .* that can be read; got "
    ) as caught:
        find_files(str(folder))
    assert f"got {path} ({why})" in str(caught.value)


@pytest.mark.parametrize("name", ["a.txt", "folder"])
def test_links_that_lead_nowhere_are_named(tmp_path, name):
    (tmp_path / "b.txt").write_text("x")
    link = tmp_path / name
    link.symlink_to(tmp_path / "none")
    refused_folder(tmp_path, link, "No such file or directory")
    link.unlink()
    link.symlink_to(link)
    refused_folder(tmp_path, link, "Too many levels of symbolic links")


def test_what_is_no_regular_file_is_named_and_not_waited_for(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    os.mkfifo(tmp_path / "b.txt")
    os.mkfifo(tmp_path / "c.other")  # no input
    refused_folder(tmp_path, tmp_path / "b.txt", "no regular file")
    refused_folder(tmp_path / "b.txt", tmp_path / "b.txt", "no regular file")


def test_folders_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    """Root may read all folders, so the system is told to say otherwise."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "a.txt").write_text("x")
    real = os.scandir

    def scandir(path):
        if path == str(tmp_path / "secret"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    refused_folder(tmp_path, tmp_path / "secret", "Permission denied")
    refused_folder(tmp_path / "secret", tmp_path / "secret", "Permission denied")
