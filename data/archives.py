"""The members of tar and zip archives, each with its place.

A member that is damaged alone is reported in its place, and reading goes on behind it. Folders
and links are left out: what a link names is a member of its own, or not in the archive.
"""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import IO

from data.decompression import open_blocks
from data.entries import READ_ERRORS, Damage, Entry, decode

_ZIP_ENCRYPTED = 1  # bit of a member's flags
_ZIP_MEMBER, _ZIP_END = b"PK\x03\x04", b"PK\x05\x06"
_ZIP_END_BYTES = (1 << 16) + 22  # at most, with a comment
_ZIP64_COUNT = (1 << 16) - 1  # stands for a number that is somewhere else


class _Member(tarfile.TarInfo):
    """A member of an archive that must be whole; tarfile takes most damage for the end."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Member:
        assert isinstance(archive, _Archive)
        try:
            member = super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            archive.has_end = True
            raise
        except tarfile.EmptyHeaderError as error:  # type: ignore[attr-defined]
            if archive.has_end:
                raise
            raise tarfile.ReadError("the end of the archive is missing") from error
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"damaged header of a member: {error}") from error
        archive.has_end = False
        return member


class _Archive(tarfile.TarFile):
    tarinfo = _Member
    ignore_zeros = True  # goes on behind the end, where another archive may follow, or a checksum
    has_end = False


def read_tar(file: IO[bytes], prefix: str = "") -> Iterator[Entry]:
    """Reads a tar archive, or several that stand one behind the other.

    Args:
        file: the archive, not compressed; it is read forwards only, and to its end, and may give
            less than is asked for.
        prefix: of the names.

    Yields:
        The members' texts. Members that end in `.xz` are archives themselves, as in OpenWebText.
    """
    for name, member in _tar_members(file):
        path = prefix + name
        if name.endswith(".xz"):
            yield from _or_damage(path, read_tar(open_blocks(member, "xz"), f"{path}/"))
        else:
            yield f"member {path}", decode(member.read())


def read_tar_of(
    file: IO[bytes], read: Callable[[IO[bytes], str], Iterator[Entry]]
) -> Iterator[Entry]:
    """Reads a tar archive of files that hold several entries.

    Args:
        file: as for `read_tar`.
        read: reads a member; is given what to put before a place.

    Yields:
        The entries of all members.
    """
    for name, member in _tar_members(file):
        yield from _or_damage(name, read(member, f"member {name}, "))


def _tar_members(file: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    with _Archive.open(fileobj=file, mode="r|") as archive:
        while (info := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # never looked up
            if info.islnk() or info.issym():
                continue
            if (member := archive.extractfile(info)) is not None:
                yield info.name, member


def _or_damage(name: str, entries: Iterator[Entry]) -> Iterator[Entry]:
    """The entries of a member; if it is damaged, the last says so."""
    where = f"member {name}"
    try:
        for entry in entries:
            where = f"after {entry[0]}"
            yield entry
    except READ_ERRORS as error:
        yield where, Damage.from_error(error, f"; what follows in {name} is lost")


def read_zip(file: IO[bytes]) -> Iterator[Entry]:
    """Reads a zip archive.

    Args:
        file: the archive.

    Yields:
        The members' texts.
    """
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if (missing := _missing_members(file, members)) is not None:
            yield "", missing
        for info in members:
            is_link = stat.S_ISLNK(info.external_attr >> 16)
            if not info.filename.endswith("/") and not is_link:
                yield f"member {info.filename}", _zip_text(archive, info)


def _missing_members(file: IO[bytes], members: list[zipfile.ZipInfo]) -> Damage | None:
    """What the index leaves out, which zipfile does not ask."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _ZIP_END_BYTES))
    end = file.read().rpartition(_ZIP_END)[2]
    count = int.from_bytes(end[6:8], "little")
    if len(members) % (1 << 16) != count and count != _ZIP64_COUNT:
        return Damage(f"its index must list {count} members; got {len(members)}")
    first = min((info.header_offset for info in members), default=0)
    file.seek(0)
    if first and file.read(len(_ZIP_MEMBER)) == _ZIP_MEMBER:
        return Damage(f"its first {first} bytes hold members that its index leaves out")
    return None


def _zip_text(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str | Damage:
    if info.flag_bits & _ZIP_ENCRYPTED:
        return Damage("it is encrypted")
    try:
        return decode(archive.read(info))
    except READ_ERRORS as error:
        return Damage.from_error(error)
