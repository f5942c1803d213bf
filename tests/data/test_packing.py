"""Packing: contiguous chunks, whole documents, and an account that adds up."""

import json

import numpy as np
import pytest

from data.account import Account
from data.packing import ChunkPacker, DocumentPacker, select_documents

SEPARATOR = np.array([0], np.int32)


def numbered(lengths):
    """Documents whose ids are all different, from 1 on."""
    ends = np.cumsum(lengths)
    return [np.arange(end - n + 1, end + 1, dtype=np.int32) for n, end in zip(lengths, ends)]


def pack(packer, documents, minimum_size, account, at_once=2):
    """The records of documents that come a few at a time."""
    records = []
    for start in range(0, len(documents), at_once):
        some = documents[start : start + at_once]
        kept = select_documents(some, [len(ids) for ids in some], minimum_size, 1, account)
        records += list(packer.add([ids for ids, keep in zip(some, kept) if keep]).records)
    packer.finish()
    return records


def pack_chunks(documents, length, separator, minimum_size, account, min_unique=0, at_once=2):
    packer = ChunkPacker(length, separator, min_unique, account)
    return pack(packer, documents, minimum_size, account, at_once)


def pack_documents(documents, minimum_size, account, min_unique=0):
    return pack(DocumentPacker(min_unique, account), documents, minimum_size, account)


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


def test_summary_of_all_that_can_be_dropped():
    account = Account(records=144, records_repetitive=2, documents=5, documents_bad=1)
    account.documents_too_small, account.tokens_masked = 2, 7
    account.tokens_read, account.tokens_kept, account.tokens_repetitive = 1030, 1008, 14
    account.tokens_tail = 8
    assert account.summary(epochs=3).splitlines() == [
        "documents: 5 read = 2 kept + 3 dropped (2 below the minimum size, 1 that cannot be read)",
        "records: 144 (2 of few different ids dropped)",
        "tokens: 1,030 read in 3 epochs = 1,008 kept + 22 dropped (0 in documents below the "
        "minimum size, 14 in records of few different ids, 8 at the end that fill no chunk)",
        "labels: 1,001 of 1,008 kept tokens; the others are of prompts",
    ]


@pytest.mark.parametrize("at_once", [1, 3, 7])
def test_how_many_documents_come_at_once_does_not_matter(at_once):
    documents = numbered([5, 1, 13, 2, 29, 3, 8])
    account, expected = Account(), Account()
    records = pack_chunks(documents, 4, SEPARATOR, 2, account, at_once=at_once)
    np.testing.assert_array_equal(records, pack_chunks(documents, 4, SEPARATOR, 2, expected))
    assert account == expected


def test_records_of_few_different_ids_are_dropped_and_counted():
    flat = [1, 2, 3, 4, 1, 1, ~1, 1, 1, 2, ~3, 4, 2, 2, 1, ~2]
    account = Account()
    none = np.zeros(0, np.int32)
    packer = ChunkPacker(4, none, 3, account)
    packed = packer.add([np.array(flat, np.int32)])
    assert [record.tolist() for record in packed.records] == [[1, 2, 3, 4], [1, 2, ~3, 4]]
    assert packed.numbers.tolist() == [0, 2]
    assert packer.add([np.array([1, 2, 3, 5], np.int32)]).numbers.tolist() == [4]
    assert (account.records, account.records_repetitive) == (3, 2)
    assert (account.tokens_kept, account.tokens_repetitive, account.tokens_masked) == (12, 8, 1)
    assert adds_up(account)
    account = Account()
    documents = [np.array(ids, np.int32) for ids in ([1, 1, 1], [1, 2, 3, 1])]
    (record,) = pack_documents(documents, 1, account, min_unique=3)
    assert record.tolist() == [1, 2, 3, 1]
    assert (account.records_repetitive, account.tokens_repetitive) == (1, 3)
    assert adds_up(account)


def test_packing_goes_on_from_its_state():
    documents = numbered([5, 1, 13, 2, 29, 3, 8])
    documents[2] = ~documents[2]
    expected = pack_chunks(documents, 4, SEPARATOR, 1, Account())
    for stop in range(len(documents) + 1):
        account = Account()
        first = ChunkPacker(4, SEPARATOR, 0, account)
        records = list(first.add(documents[:stop]).records)
        state = json.loads(json.dumps([first.state(), account.state()]))
        account = Account(**state[1])
        second = ChunkPacker(4, SEPARATOR, 0, account)
        second.restore(state[0])
        packed = second.add(documents[stop:])
        second.finish()
        np.testing.assert_array_equal(records + list(packed.records), expected)
        assert packed.numbers.tolist() == list(range(len(records), len(expected)))
        assert adds_up(account)
