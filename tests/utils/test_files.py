"""Files appear whole or not at all, local and through TensorFlow's file systems."""

import os

import pytest
import tensorflow as tf

from utils import files
from utils.files import check_model_path, read_bytes, write_atomically


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_is_written_and_replaced(tmp_path, scheme):
    path = f"{scheme}{tmp_path}/new/file"
    for content in (b"one", b"two"):
        write_atomically(path, content)
        assert read_bytes(path) == content
    assert os.listdir(tmp_path / "new") == ["file"]


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(number):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(str(path), b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_missing_file_is_one_kind_of_error(tmp_path, scheme):
    with pytest.raises(OSError, match="No such file"):
        read_bytes(f"{scheme}{tmp_path}/none")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_cannot_be_made(tmp_path, scheme):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError):
        write_atomically(f"{scheme}{tmp_path}/file/new", b"")


def test_a_file_system_out_of_reach_is_told_with_the_key(monkeypatch):
    def fail(path):
        raise tf.errors.AbortedError(None, None, "Could not resolve host.\n\t [[node]]")

    monkeypatch.setattr(tf.io.gfile, "exists", fail)
    with pytest.raises(ValueError) as caught:
        check_model_path("gs://bucket/run")
    assert str(caught.value) == (
        "model_path must be in a file system that can be reached; got gs://bucket/run (Could not "
        "resolve host). Look at the network, the bucket and its credentials, or name a local "
        "folder."
    )


def test_what_cannot_be_reached_is_named(monkeypatch):
    class Unreachable:
        def __getattr__(self, name):
            raise tf.errors.UnavailableError(None, None, "Could not resolve host")

    monkeypatch.setattr(files, "_gfile", Unreachable)
    for function in (files.exists, files.is_folder, files.size_and_time, files.files_below):
        with pytest.raises(OSError, match=r"Could not resolve host: 'gs://bucket/folder'"):
            function("gs://bucket/folder")
