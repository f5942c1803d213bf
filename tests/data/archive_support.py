"""Documents in files of several formats, for the tests of reading."""

import io
import json
import tarfile
import zipfile

import zstandard

compress = zstandard.ZstdCompressor().compress


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
