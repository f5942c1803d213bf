"""Shuffles are functions of the seed; sorting on disk is that sort, in bounded memory."""

import json
import tracemalloc

import numpy as np
import pytest

from data import token_store
from data.shuffle import DOCUMENTS, SEQUENCES, order_hash
from data.token_store import TokenStore


def test_hashes_are_frozen():
    """Other programs, and unfinished work, depend on them."""
    hashes = order_hash(10, 1, DOCUMENTS, [0, 0, 3], [0, 1, 2])
    assert hashes.tolist() == [128545294681151593, 8681948167129995066, 8216877845946908778]


def test_every_part_of_the_key_changes_the_hash():
    keys = [(10, 0, 1, 0, 0), (11, 0, 1, 0, 0), (10, 1, 1, 0, 0), (10, 0, 2, 0, 0)]
    keys += [(10, 0, 1, 1, 0), (10, 0, 1, 0, 1)]
    hashes = {int(order_hash(*key[:3], [key[3]], [key[4]])[0]) for key in keys}
    assert len(hashes) == len(keys)


def test_orders_look_random():
    count = 4096
    orders = [
        np.argsort(order_hash(seed, epoch, SEQUENCES, [0] * count, range(count)))
        for seed, epoch in [(1, 0), (1, 1), (2, 0)]
    ]
    for order in orders:
        # Neighbours are a third of the length apart on average, and the halves are mixed.
        assert abs(np.abs(np.diff(order)).mean() / count - 1 / 3) < 0.02
        assert abs((order[: count // 2] < count // 2).mean() - 0.5) < 0.04
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert (orders[a] == orders[b]).sum() < 10


def entries(count, tokens):
    generator = np.random.default_rng(0)
    ids = [
        generator.integers(-9, 99, n).astype(np.int32) for n in generator.integers(0, tokens, count)
    ]
    return generator.integers(0, 3, count), np.arange(count), ids


def fill(store, seed, files, numbers, ids, step=97):
    hashes = order_hash(seed, 0, DOCUMENTS, files, numbers)
    for start in range(0, len(ids), step):
        part = slice(start, start + step)
        store.add(hashes[part], files[part], numbers[part], ids[part])
    return hashes


def read(store):
    found = []
    for bucket in store.buckets():
        for files, numbers, ids in store.read(bucket):
            found += zip(files.tolist(), numbers.tolist(), [array.tolist() for array in ids])
    return found


@pytest.mark.parametrize("sorted_bytes", [1 << 30, 2000])
def test_entries_are_read_in_the_order_of_their_hashes(tmp_path, monkeypatch, sorted_bytes):
    monkeypatch.setattr(token_store, "SORTED_BYTES", sorted_bytes)
    monkeypatch.setattr(token_store, "BUFFERED_BYTES", 3000)
    monkeypatch.setattr(token_store, "BLOCK_TOKENS", 50)
    files, numbers, ids = entries(5000, 30)
    store = TokenStore(str(tmp_path / "store"))
    hashes = fill(store, 5, files, numbers, ids)
    order = np.lexsort((numbers, files, hashes))
    assert read(store) == [(files[i], numbers[i], ids[i].tolist()) for i in order]
    assert not list(tmp_path.glob("**/*.split"))
    store.remove()
    assert list(tmp_path.iterdir()) == []


def test_equal_hashes_are_sorted_by_key(tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "SORTED_BYTES", 100)
    store = TokenStore(str(tmp_path / "store"))
    for file, number in [(1, 0), (0, 7), (1, 3), (0, 2)]:
        store.add(np.zeros(1, np.uint64), [file], [number], [np.arange(40, dtype=np.int32)])
    assert [key[:2] for key in read(store)] == [(0, 2), (0, 7), (1, 0), (1, 3)]


@pytest.mark.parametrize("kept_in_order", [True, False])
def test_a_store_goes_on_from_its_state(tmp_path, monkeypatch, kept_in_order):
    monkeypatch.setattr(token_store, "SORTED_BYTES", 1000)
    monkeypatch.setattr(token_store, "BUFFERED_BYTES", 1500)
    files, numbers, ids = entries(300, 30)
    files.sort()
    seed = None if kept_in_order else 1
    hashes = np.zeros(300, np.uint64) if seed is None else order_hash(1, 0, 1, files, numbers)

    def add(store, part):
        store.add(hashes[part], files[part], numbers[part], ids[part])

    whole = TokenStore(str(tmp_path / "whole"), kept_in_order)
    add(whole, slice(0, 300))
    killed = TokenStore(str(tmp_path / "killed"), kept_in_order)
    add(killed, slice(0, 120))
    state = json.loads(json.dumps(killed.state()))
    add(killed, slice(120, 300))  # lost, but some of it is on the disk
    again = TokenStore(str(tmp_path / "killed"), kept_in_order)
    again.restore(state)
    add(again, slice(120, 300))
    assert read(again) == read(whole)
    if kept_in_order:
        assert [key[:2] for key in read(again)] == list(zip(files, numbers))
        assert len(whole.buckets()) > 5


def test_memory_is_bounded_by_the_constants(tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "SORTED_BYTES", 1 << 18)
    monkeypatch.setattr(token_store, "BUFFERED_BYTES", 1 << 18)
    monkeypatch.setattr(token_store, "BLOCK_TOKENS", 1 << 12)
    monkeypatch.setattr(token_store, "_BUCKET_BITS", 2)
    document = np.arange(400, dtype=np.int32)
    store = TokenStore(str(tmp_path / "store"))
    tracemalloc.start()
    for start in range(0, 6000, 100):  # 10 MB of tokens
        numbers = np.arange(start, start + 100)
        hashes = order_hash(1, 0, DOCUMENTS, np.zeros(100, np.int64), numbers)
        store.add(hashes, np.zeros(100, np.int64), numbers, [document.copy() for _ in range(100)])
    count = sum(len(s.numbers) for bucket in store.buckets() for s in store.read(bucket))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 6000
    # One store that is read by each time that it was split, and one that is filled.
    assert peak < 2 << 20
