"""Packing: contiguous chunks, whole documents, and an account that adds up."""

import numpy as np
import pytest

from data.packing import Account, pack_chunks, pack_documents

SEPARATOR = np.array([0], np.int32)


def numbered(lengths):
    """Documents whose ids are all different, from 1 on."""
    ends = np.cumsum(lengths)
    return [np.arange(end - n + 1, end + 1, dtype=np.int32) for n, end in zip(lengths, ends)]


def adds_up(account):
    return account.tokens_read == account.tokens_kept + account.tokens_dropped


@pytest.mark.parametrize("length", [2, 3, 7, 11, 50])
def test_chunks_are_contiguous_slices(length):
    documents = numbered([5, 1, 13, 2, 29, 3])
    stream = np.concatenate([part for d in documents for part in (d, SEPARATOR)])
    account = Account()
    chunks = list(pack_chunks(documents, length, SEPARATOR, 1, account))
    assert {len(chunk) for chunk in chunks} == {length}
    kept = len(stream) // length * length
    np.testing.assert_array_equal(np.concatenate(chunks), stream[:kept])
    assert (account.records, account.tokens_kept) == (len(chunks), kept)
    assert account.tokens_tail == len(stream) - kept
    assert account.tokens_read == len(stream)
    assert adds_up(account)


def test_id_after_a_separator_starts_a_document():
    documents = numbered([5, 8, 13])
    flat = np.concatenate(list(pack_chunks(documents, 3, SEPARATOR, 1, Account())))
    after = flat[1:][flat[:-1] == 0]
    assert set(after) <= {document[0] for document in documents}
    assert len(after) == 2


def test_separator_of_several_ids():
    separator = np.array([90, 91], np.int32)
    chunks = list(pack_chunks(numbered([2, 1]), 7, separator, 1, Account()))
    assert [chunk.tolist() for chunk in chunks] == [[1, 2, 90, 91, 3, 90, 91]]


def test_small_documents_are_dropped_and_counted():
    account = Account()
    documents = numbered([5, 0, 2, 7])
    records = list(pack_documents(documents, 5, account))
    assert [len(record) for record in records] == [5, 7]
    assert (account.documents, account.documents_dropped, account.records) == (4, 2, 2)
    assert (account.tokens_kept, account.tokens_too_small) == (12, 2)
    assert account.longest_document == 7
    assert adds_up(account)


def test_small_documents_get_no_separator():
    account = Account()
    chunks = list(pack_chunks(numbered([5, 2, 7]), 7, SEPARATOR, 5, account))
    assert np.concatenate(chunks).tolist() == [1, 2, 3, 4, 5, 0, 8, 9, 10, 11, 12, 13, 14, 0]
    assert account.tokens_read == 16
    assert adds_up(account)


def test_too_few_tokens_make_no_chunk():
    account = Account()
    assert list(pack_chunks(numbered([59]), 2049, SEPARATOR, 1, account)) == []
    assert account.tokens_tail == 60


def test_summary_shows_the_account():
    account = Account()
    list(pack_chunks(numbered([1005, 2, 7]), 7, SEPARATOR, 5, account))
    assert account.summary().splitlines() == [
        "documents: 3 read = 2 kept + 1 dropped",
        "records: 144",
        "tokens: 1,016 read = 1,008 kept + 8 dropped "
        "(2 in documents below the minimum size, 6 at the end that fill no chunk)",
    ]
