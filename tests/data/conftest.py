"""Fixtures of the tests of data/create_tfrecords.py."""

import pytest

from data import encoding, token_store
from tests.data.preparation_support import write_corpora


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tokenizer and documents, which no test changes."""
    folder = tmp_path_factory.mktemp("preparation")
    write_corpora(folder)
    return folder


@pytest.fixture
def small(monkeypatch):
    """Small constants, so that a small corpus meets all of them."""
    monkeypatch.setattr(encoding, "_BATCH_TEXTS", 7)
    monkeypatch.setattr(token_store, "BUFFERED_BYTES", 4000)
    monkeypatch.setattr(token_store, "SORTED_BYTES", 600)
    monkeypatch.setattr(token_store, "_BUCKET_BITS", 2)
