"""Reading: every format gives the same documents; what cannot be read is named."""

import gzip
import io
import json
import os
import tarfile
import zipfile

import pytest
import zstandard

from data.documents import find_files, read_documents

DOCUMENTS = ["First one.\r\nTwo lines.\n", "", "naïve 日本語", "last"]


def lines(documents):
    return "".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in documents).encode()


def tar_of(documents, mode, name="doc{}.txt"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for number, document in enumerate(documents):
            content = document if isinstance(document, bytes) else document.encode()
            member = tarfile.TarInfo(name.format(number))
            member.size = len(content)
            member.mtime = 0.5  # a fraction forces an extended header
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(documents):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number, text in enumerate(documents):
            archive.writestr(f"{number}.txt", text)
    return buffer.getvalue()


def write_dat(documents):
    contents = [text.encode() for text in documents]
    return b"".join(b"%016d" % len(content) + content for content in contents)


compress = zstandard.ZstdCompressor().compress
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


def test_seed_shuffles_the_files_the_same_way(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("x")
    natural, seeded = find_files(str(tmp_path))[0], find_files(str(tmp_path), seed=1)[0]
    assert natural != seeded
    assert sorted(natural) == sorted(seeded)
    assert seeded == find_files(str(tmp_path), seed=1)[0]
    assert seeded != find_files(str(tmp_path), seed=2)[0]


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
