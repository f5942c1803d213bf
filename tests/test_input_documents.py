"""Windows out of stitched documents."""

import re

import numpy as np
import pytest
import tensorflow as tf

from inputs import open_sources
from tests.input_support import EOS, LENGTH, config_of, sequences, write

STITCH = 3
DOCUMENTS = [[7 * number + i for i in range(5 + number % 3)] for number in range(20)]


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """20 documents of 5 to 7 ids; every id is in one document only, so a slice shows them."""
    folder = tmp_path_factory.mktemp("documents")
    write(folder / "tiny", "train", DOCUMENTS, files_per=6)
    return folder


def documents_config(folder, mode, **values):
    return config_of(folder, [["tiny", STITCH, mode, 1.0]], input_fn="generic_text", **values)


def stitched(window):
    """The numbers of the documents in a window, and where in the first one it begins.

    Fails unless the window is a contiguous slice of whole documents joined by the end of text.
    """
    first = int(window[0]) if window[0] != EOS else None
    assert first is not None, "no document is empty, and a slice at eos hides its document"
    number, offset = divmod(first, 7)
    numbers, expected = [number], [*DOCUMENTS[number][offset:], EOS]
    while len(expected) < len(window):
        following = int(window[len(expected)])
        number, begin = divmod(following, 7)
        assert begin == 0, "the id after the end of text starts a document"
        numbers.append(number)
        expected += [*DOCUMENTS[number], EOS]
    np.testing.assert_array_equal(window, expected[: len(window)])
    return numbers, offset


@pytest.mark.parametrize("seed", [0, 3])
def test_fixed_windows_are_the_beginnings_of_stitched_documents(documents, seed):
    config = documents_config(documents, "documents_fixed", seed=seed)
    [source] = open_sources(config, training=True)
    assert source.sequences == 6  # 20 documents, 3 each, 2 left over
    epochs = []
    for epoch in sequences(config, 0, 6).reshape(3, 6, LENGTH):
        found = [stitched(window) for window in epoch]
        assert {offset for _, offset in found} == {0}
        firsts = [numbers[0] for numbers, _ in found]
        seen = [number for numbers, _ in found for number in numbers]
        assert len(set(seen)) == len(seen)  # no document twice in an epoch
        epochs.append(firsts)
    assert epochs[0] != epochs[1] != epochs[2]  # another order in each


@pytest.mark.parametrize("seed", [0, 3])
def test_random_windows_are_slices_of_stitched_documents(documents, seed):
    config = documents_config(documents, "documents_random", seed=seed)
    windows = [w for w in sequences(config, 0, 60) if w[0] != EOS]
    begins = [stitched(window) for window in windows]
    assert len({offset for _, offset in begins}) >= 4
    # Windows do not all begin in the first of the stitched documents, and reach the last one.
    assert max(len(numbers) for numbers, _ in begins) == STITCH


@pytest.mark.parametrize("mode", ["documents_fixed", "documents_random"])
def test_document_stream_is_a_function_of_the_seed(documents, mode):
    first, again, other = (
        sequences(documents_config(documents, mode, seed=seed), 0, 4) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(again, first)
    assert not np.array_equal(other, first)


@pytest.mark.parametrize(("mode", "seed"), [("documents_fixed", 0), ("documents_random", 5)])
def test_document_stream_resumes_with_exactly_the_rest(documents, mode, seed):
    config = documents_config(documents, mode, seed=seed, train_batch_size=4)  # 6 per epoch
    whole = sequences(config, 0, 9)
    for start in (1, 3, 7):  # within epoch 0, where epoch 2 begins, within epoch 4
        np.testing.assert_array_equal(sequences(config, start, 2), whole[start * 4 :][:8])


def test_fewer_stitched_sequences_than_a_batch(documents):
    config = documents_config(documents, "documents_fixed", train_batch_size=7)
    with pytest.raises(ValueError, match=re.escape("got 7 with 6 sequence(s)")):
        open_sources(config, training=True)


@pytest.mark.parametrize("mode", ["documents_fixed", "documents_random"])
def test_documents_that_may_be_too_short_for_a_window_are_refused_at_the_start(tmp_path, mode):
    # The shortest, of 5 ids, is in the second file; each document gets an end of text.
    write(tmp_path / "tiny", "train", [[1] * 11, [2] * 9, [3] * 5, [4] * 11], files_per=2)
    config = config_of(tmp_path, [["tiny", 1, mode, 1.0]], input_fn="generic_text")
    with pytest.raises(ValueError) as caught:
        open_sources(config, training=True)
    assert str(caught.value) == (
        "1 stitched documents of tiny must hold n_ctx + 1 = 12 ids; got 5 in the shortest. "
        "Raise stitch to 2."
    )
    enough = config_of(
        tmp_path, [["tiny", 2, mode, 1.0]], input_fn="generic_text", train_batch_size=2
    )
    assert sequences(enough, 0, 6).shape == (12, LENGTH)


def test_a_document_without_ids_is_no_reason_to_stitch_more(tmp_path):
    write(tmp_path / "tiny", "train", [[1] * 11, [], [3] * 5])
    config = config_of(tmp_path, [["tiny", 3, None, 1.0]], input_fn="generic_text")
    message = "got 0 in the shortest. Make the records again without empty documents."
    with pytest.raises(ValueError, match=re.escape(message)):
        open_sources(config, training=True)


def test_fewer_documents_than_are_stitched_are_refused_in_a_mix_too(tmp_path):
    write(tmp_path / "few", "train", [[1] * 12] * 2)
    write(tmp_path / "many", "train", [[1] * 12] * 9)
    entries = [["many", 1, None, 1.0], ["few", 4, None, 1.0]]
    message = "dataset few must hold at least stitch = 4 documents; got 2. Lower stitch"
    with pytest.raises(ValueError, match=message):
        open_sources(config_of(tmp_path, entries, input_fn="generic_text"), training=True)


def test_short_documents_behind_those_measured_are_named_while_reading(tmp_path, monkeypatch):
    monkeypatch.setattr("data.sources.DOCUMENTS_MEASURED", 2)
    write(tmp_path / "tiny", "train", [[1] * 11] * 2 + [[2] * 5], files_per=2)
    config = config_of(tmp_path, [["tiny", 1, "documents_fixed", 1.0]], input_fn="generic_text")
    message = (
        "1 stitched documents of tiny must hold n_ctx + 1 = 12 ids; got 6, the shortest in record "
        f"1 of {tmp_path}/tiny/train_1_1.tfrecords. Raise the stitch"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        sequences(config, 0, 1)
