"""Compressed files and archives are read to their very end, and damage is told from it."""

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile

import pytest
import zstandard

from data.entries import Damage
from data.formats import read_entries
from tests.data.archive_support import compress, lines, tar_of, write_dat, zip_of

TEXTS = [f"document {number}" for number in range(5)]
TAR, LINES = tar_of(TEXTS, "w:"), lines(TEXTS)
COMPRESSORS = {"gz": gzip.compress, "xz": lzma.compress, "zst": compress}
STREAMS = [("gz", "a.tar.gz", TAR), ("xz", "a.tar.xz", TAR), ("xz", "a_data.xz", TAR)]
STREAMS += [("gz", "a.jsonl.gz", LINES), ("zst", "a.jsonl.zst", LINES)]
STREAMS += [
    ("zst", "a.dat.zst", write_dat(TEXTS)),
    ("zst", "a.json.zst", json.dumps(TEXTS).encode()),
]


def read(folder, name, content):
    """The texts of a file, and (where, why) of what is damaged."""
    (folder / name).write_bytes(content)
    entries = list(read_entries(str(folder / name)))
    texts = [value["text"] if isinstance(value, dict) else value for _, value in entries]
    return (
        [text for text in texts if not isinstance(text, Damage)],
        [(where, value.why) for where, value in entries if isinstance(value, Damage)],
    )


@pytest.mark.parametrize(("kind", "name", "content"), STREAMS, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("cut", [1, 700, 1024])
def test_several_streams_are_one_file(tmp_path, kind, name, content, cut):
    cut = cut if cut < len(content) else len(content) // 2
    streams = [COMPRESSORS[kind](part) for part in (content[:cut], b"", content[cut:])]
    assert read(tmp_path, name, b"".join(streams)) == (TEXTS, [])


@pytest.mark.parametrize(("kind", "name", "content"), STREAMS, ids=lambda value: str(value)[:12])
def test_an_end_that_is_missing_or_something_else_is_damage(tmp_path, kind, name, content):
    whole = COMPRESSORS[kind](content)
    second = COMPRESSORS[kind](b"")
    for damaged in (whole[:-1], whole[:-5], whole + second[:-1], whole + b"no stream"):
        _, damage = read(tmp_path, name, damaged)
        assert len(damage) == 1
    assert read(tmp_path, name, b"") == ([], [("", "it is empty, which no compressed file is")])


def test_padding_of_streams_is_no_damage(tmp_path):
    for kind, name in (("gz", "a.tar.gz"), ("xz", "a.tar.xz")):
        halves = [COMPRESSORS[kind](part) for part in (TAR[:700], TAR[700:])]
        padded = halves[0] + bytes(1 << 17) + halves[1] + bytes(8)
        assert read(tmp_path, name, padded) == (TEXTS, [])


@pytest.mark.parametrize(("kind", "name"), [("gz", "a.tar.gz"), ("xz", "a.tar.xz")])
def test_checksums_are_compared(tmp_path, kind, name):
    damaged = bytearray(COMPRESSORS[kind](TAR))
    damaged[-8 if kind == "gz" else -40] ^= 1
    _, damage = read(tmp_path, name, bytes(damaged))
    assert len(damage) == 1
    # What stands before a wrong checksum of gzip is all there.
    if kind == "gz":
        assert damage[0][0] == "after member doc4.txt" and "CRC" in damage[0][1]


def test_checksum_of_a_zstandard_frame_is_compared(tmp_path):
    checked = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(LINES))
    checked[-1] ^= 1
    assert "checksum" in read(tmp_path, "a.jsonl.zst", bytes(checked))[1][0][1]


def test_archives_behind_one_another_are_all_read(tmp_path):
    parts = [gzip.compress(tar_of(some, "w:")) for some in (TEXTS[:2], TEXTS[2:])]
    assert read(tmp_path, "a.tar.gz", b"".join(parts)) == (TEXTS, [])


def test_damage_of_an_archive_is_no_end_of_it(tmp_path):
    block, end = 512, TAR.index(b"document 4") + 512
    header = TAR.index(b"doc3.txt", 0)
    damages = {
        "the end of the archive is missing": TAR[:end],
        "unexpected end of data": TAR[: TAR.index(b"document 4") + 3],
        "truncated header": TAR[: header + 100],
        "bad checksum": TAR[:header] + b"x" + TAR[header + 1 :],
        "invalid header": TAR[: end + block] + b"garbage " * block,
    }
    for why, damaged in damages.items():
        texts, damage = read(tmp_path, "a.tar.gz", gzip.compress(damaged))
        assert texts == TEXTS[: len(texts)] and len(texts) >= 3
        assert len(damage) == 1 and damage[0][0].startswith("after member doc")
        assert why in damage[0][1] and damage[0][1].endswith("; what follows in the file is lost")


def tar_with(*members):
    """An archive of (name, type, content)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:") as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "a.txt"
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_folders_and_links_in_archives_are_left_out(tmp_path):
    others = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
    members = [(f"{number}", kind, b"") for number, kind in enumerate(others)]
    archive = tar_with(("a.txt", tarfile.REGTYPE, b"a"), *members, ("b.txt", tarfile.REGTYPE, b"b"))
    assert read(tmp_path, "a.tar.gz", gzip.compress(archive)) == (["a", "b"], [])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr("folder/", "")
        link = zipfile.ZipInfo("link.txt")
        link.external_attr = 0o120777 << 16
        zipped.writestr(link, "a.txt")
        zipped.writestr("a.txt", "a")
    assert read(tmp_path, "a.zip", buffer.getvalue()) == (["a"], [])


def test_damage_in_an_archive_of_archives_is_that_of_one_member(tmp_path):
    inner = tar_of(TEXTS[:2], "w:xz")
    members = [inner[:-40], inner, b"no xz", tar_of(TEXTS[2:], "w:xz")]
    outer = tar_of(members, "w:", "{}_data.xz")
    texts, damage = read(tmp_path, "a.tar.xz", lzma.compress(outer))
    assert texts[-5:] == TEXTS
    assert [why.split("; ")[-1] for _, why in damage] == [
        "what follows in 0_data.xz is lost",
        "what follows in 2_data.xz is lost",
    ]


def test_damage_in_an_archive_of_lines_is_that_of_one_member(tmp_path):
    members = [compress(lines(TEXTS[:2])), compress(LINES)[:-4], compress(lines(TEXTS[2:]))]
    texts, damage = read(tmp_path, "a.jsonl.zst.tar", tar_of(members, "w:", "{}.jsonl.zst"))
    assert texts[:2] + texts[-3:] == TEXTS
    assert [why.split("; ")[-1] for _, why in damage] == ["what follows in 1.jsonl.zst is lost"]


def test_damaged_member_of_a_zip_archive_hides_no_other(tmp_path):
    whole = zip_of(TEXTS)
    damaged = bytearray(whole)
    damaged[whole.index(b"document 1")] ^= 1
    kept = [TEXTS[0], *TEXTS[2:]]
    texts, damage = read(tmp_path, "a.zip", bytes(damaged))
    assert texts == kept and damage == [("member 1.txt", "Bad CRC-32 for file '1.txt'")]

    damaged = bytearray(whole)
    entry = whole.index(b"PK\x01\x02", whole.index(b"PK\x01\x02") + 1)
    damaged[entry + 10] = 97  # a method of compression that zipfile does not have
    texts, damage = read(tmp_path, "a.zip", bytes(damaged))
    assert texts == kept and damage[0][0] == "member 1.txt" and "not supported" in damage[0][1]


def test_index_of_a_zip_archive_names_all_members(tmp_path):
    whole = zip_of(TEXTS)
    damaged = bytearray(whole)
    damaged[whole.index(b"PK\x01\x02") + 32] = 255  # a comment that takes the next members in
    assert read(tmp_path, "a.zip", bytes(damaged))[1][0][1].startswith("its index must list 5")
    texts, damage = read(tmp_path, "a.zip", zip_of(["lost"]) + whole)
    assert texts == TEXTS and "hold members that its index leaves out" in damage[0][1]
    assert read(tmp_path, "a.zip", b"#!a program\n" + whole) == (TEXTS, [])


@pytest.mark.parametrize("name", ["a.jsonl", "a.json.zst"])
def test_deep_nesting_is_damage(tmp_path, name):
    deep = b"[" * 200_000 + b"]" * 200_000
    if name == "a.jsonl":
        content = b'{"text": "a"}\n' + deep + b'\n{"text": "b"}'
        texts, position = ["a", "b"], "line 2"
    else:
        content = compress(b'["a", ' + deep + b"]")
        texts, position = ["a"], "after entry 1"
    found, damage = read(tmp_path, name, content)
    assert found == texts
    assert damage[0][0] == position and "nested too deeply" in damage[0][1]


def test_frames_of_any_window_and_skippable_frames(tmp_path):
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    large_window = stream.compress(LINES) + stream.flush()
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"skip"
    assert read(tmp_path, "a.jsonl.zst", skippable + large_window + skippable) == (TEXTS, [])


@pytest.mark.parametrize("header", [b"-000000000000003", b"+000000000000003", b"     3", b"9" * 16])
def test_length_in_a_dat_archive_must_be_true(tmp_path, header):
    texts, damage = read(tmp_path, "a.dat.zst", compress(write_dat(["a"]) + header + b"abc"))
    assert texts == ["a"] and damage[0][0] == "after entry 1" and "entry 2" in damage[0][1]


def test_unknown_compression_in_disguise_is_named(tmp_path):
    assert read(tmp_path, "a.tar.gz", bz2.compress(TAR))[1][0][0] == ""
