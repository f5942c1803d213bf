"""The exact stream of training sequences, wherever it is entered; evaluation; wrong data."""

import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from configs.load import parse_config
from data.records import RecordWriter
from inputs import (
    epoch_of_step,
    evaluation_input,
    mixed_choices,
    open_sources,
    training_input,
)

N_CTX, N_VOCAB, BATCH = 11, 997, 3
LENGTH = N_CTX + 1
EOS = N_VOCAB - 1


def config_of(folder, entries=None, **values):
    """A config of data sets below `folder`, each a name or [name, stitch, mode, weight]."""
    entries = entries or ["tiny"]
    datasets = []
    for entry in entries:
        name, *options = entry if isinstance(entry, list) else [entry, None, None, None]
        dataset = {
            "id": name,
            "n_vocab": values.get("n_vocab", N_VOCAB),
            "path": str(folder / name / "train_*.tfrecords"),
            "eval_path": str(folder / name / "eval_*.tfrecords"),
            "tokenizer_is_pretrained": False,
            "tokenizer_path": "none.json",
            "eos_id": values.get("n_vocab", N_VOCAB) - 1,
        }
        datasets.append([dataset, *options])
    standard = {
        "model_path": str(folder / "run"),
        "n_layer": 2,
        "n_embd": 20,
        "n_head": 5,
        "n_ctx": N_CTX,
        "n_vocab": N_VOCAB,
        "train_steps": 100,
        "train_batch_size": BATCH,
        "shuffle_input_filenames": False,
        "seed": 0,
    }
    return parse_config(standard | {"datasets": datasets} | values)


def write(folder, name, records, files_per=100_000):
    with RecordWriter(str(folder), name, files_per) as writer:
        for record in records:
            writer.write(record)


def numbered(count, first=0):
    """Records that show their number: record r holds r * 12 ... r * 12 + 11."""
    return (np.arange(first * LENGTH, (first + count) * LENGTH)).reshape(count, LENGTH)


def batches_of(input_fn, seed, count=None):
    """Runs an input function as an Estimator does: in a graph with the seed of the run."""
    read = []
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(seed)
        iterator = tf.compat.v1.data.make_initializable_iterator(input_fn({}))
        following = iterator.get_next()
        with tf.compat.v1.Session() as session:
            session.run(iterator.initializer)
            while count is None or len(read) < count:
                try:
                    read.append(session.run(following))
                except tf.errors.OutOfRangeError:
                    assert count is None, f"the stream ended after {len(read)} batches"
                    break
    return read


def sequences(config, start_step, steps):
    """The training sequences [steps * batch, n_ctx + 1] from `start_step` on."""
    input_fn = training_input(config, open_sources(config, training=True), start_step)
    rows = []
    for features, labels in batches_of(input_fn, config.seed, steps):
        assert features["inputs"].shape == labels.shape == (config.train_batch_size, N_CTX)
        assert features["inputs"].dtype == labels.dtype == np.int32
        np.testing.assert_array_equal(features["inputs"][:, 1:], labels[:, :-1])
        rows.append(np.concatenate([features["inputs"], labels[:, -1:]], 1))
    return np.concatenate(rows)


@pytest.fixture(scope="module")
def chunks(tmp_path_factory):
    """17 numbered records in files of 1, 7, 0, 5 and 4, whose names sort wrongly as text."""
    folder = tmp_path_factory.mktemp("chunks")
    records, first = numbered(17), 0
    for index, count in ((1, 1), (2, 7), (9, 0), (10, 5), (100, 4)):
        path = folder / "tiny" / f"train_{index}_{count}.tfrecords"
        if count:
            write(folder / "parts", f"part{index}", records[first : first + count])
            (folder / "tiny").mkdir(exist_ok=True)
            shutil.move(folder / "parts" / f"part{index}_0_{count}.tfrecords", path)
        else:
            path.write_bytes(b"")
        first += count
    return folder


# ---- chunks ------------------------------------------------------------------------------------


def test_chunks_are_read_in_natural_order_over_every_border(chunks):
    config = config_of(chunks)
    [source] = open_sources(config, training=True)
    assert [path.rsplit("/", 1)[1] for path in source.files] == [
        "train_1_1.tfrecords",
        "train_2_7.tfrecords",
        "train_9_0.tfrecords",
        "train_10_5.tfrecords",
        "train_100_4.tfrecords",
    ]
    assert source.records == source.sequences == 17
    read = sequences(config, 0, 20)  # 60 sequences: into epoch 3
    np.testing.assert_array_equal(read[0], numbered(1)[0])  # record 0 is used
    np.testing.assert_array_equal(read, np.tile(numbered(17), (4, 1))[:60])


def test_chunks_resume_at_any_step_with_exactly_the_rest(chunks):
    config = config_of(chunks)
    whole = np.tile(numbered(17), (5, 1))
    # Records 3, 9, 15 of epoch 0, 16 of epoch 1, 0 and 6 of epoch 3: all files, first and last.
    for start in (1, 3, 5, 11, 17, 19):
        read = sequences(config, start, 6)
        np.testing.assert_array_equal(read, whole[start * BATCH : (start + 6) * BATCH])


def test_file_order_is_shuffled_by_the_seed(chunks):
    def order(seed):
        config = config_of(chunks, shuffle_input_filenames=True, seed=seed)
        return open_sources(config, training=True)[0].files

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(6)}) > 1
    assert sorted(order(1)) == sorted(order(2))
    config = config_of(chunks, shuffle_input_filenames=True, seed=1)
    read = sequences(config, 0, 17)
    assert not np.array_equal(read[:17], numbered(17))
    np.testing.assert_array_equal(np.sort(read[:17], 0), numbered(17))  # each once per epoch
    np.testing.assert_array_equal(read[17:34], read[:17])
    np.testing.assert_array_equal(sequences(config, 7, 10), read[21:])


def test_files_without_a_number_in_their_name_are_counted(tmp_path):
    write(tmp_path / "tiny", "train", numbered(5))
    (tmp_path / "tiny" / "train_0_5.tfrecords").rename(tmp_path / "tiny" / "train_a.tfrecords")
    config = config_of(tmp_path)
    assert open_sources(config, training=True)[0].counts == (5,)
    np.testing.assert_array_equal(sequences(config, 1, 2), np.tile(numbered(5), (2, 1))[3:9])


def test_exactly_one_batch_lasts_for_thousands_of_steps(tmp_path):
    write(tmp_path / "tiny", "train", numbered(BATCH))
    read = sequences(config_of(tmp_path), 0, 2000)
    np.testing.assert_array_equal(read, np.tile(numbered(BATCH), (2000, 1)))


def test_another_batch_size_goes_on_with_the_batches_of_that_size(chunks):
    config = config_of(chunks, train_batch_size=5)
    np.testing.assert_array_equal(sequences(config, 4, 2), np.tile(numbered(17), (2, 1))[20:30])


def test_epochs_are_counted_over_all_sources(chunks):
    sources = open_sources(config_of(chunks), training=True)
    assert epoch_of_step(sources, BATCH)(17) == 3.0
    assert epoch_of_step(sources * 2, BATCH)(17) == 1.5


# ---- several sources ---------------------------------------------------------------------------


def test_shares_follow_the_weights():
    choices = mixed_choices([1.0, 3.0, 0.5], 5, 0, 100_000)
    shares = np.bincount(choices, minlength=3) / 100_000
    # Six standard deviations of a share of 1/4.5 among 100,000.
    np.testing.assert_allclose(shares, np.array([1.0, 3.0, 0.5]) / 4.5, atol=0.008)
    # A window of a thousand is mixed too, and neighbours are independent.
    pairs = np.bincount(choices[:-1] * 3 + choices[1:], minlength=9) / 99_999
    np.testing.assert_allclose(pairs, np.outer(shares, shares).ravel(), atol=0.008)
    assert mixed_choices([1.0], 5, 0, 50).max() == 0


def test_choices_depend_on_seed_and_number_alone():
    whole = mixed_choices([2.0, 1.0], 7, 0, 500)
    for start in (0, 1, 77, 499):
        np.testing.assert_array_equal(
            mixed_choices([2.0, 1.0], 7, start, 500 - start), whole[start:]
        )
    assert not np.array_equal(whole, mixed_choices([2.0, 1.0], 8, 0, 500))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    write(folder / "few", "train", numbered(5), files_per=2)
    write(folder / "many", "train", numbered(19, first=30), files_per=8)
    return folder


def test_each_source_of_a_mix_is_read_in_its_own_order(mixture):
    config = config_of(mixture, [["few", None, None, 1.0], ["many", None, None, 3.0]], seed=4)
    read = sequences(config, 0, 40)
    numbers = read[:, 0] // LENGTH
    choices = mixed_choices([1.0, 3.0], 4, 0, 120)
    np.testing.assert_array_equal(numbers >= 30, choices == 1)
    few, many = numbers[choices == 0], numbers[choices == 1]
    np.testing.assert_array_equal(few, np.arange(len(few)) % 5)
    np.testing.assert_array_equal(many, 30 + np.arange(len(many)) % 19)
    assert len(few) > 10  # more than two epochs of the small one
    assert len(many) > 57  # three of the large one


def test_a_mix_resumes_with_exactly_the_rest(mixture):
    config = config_of(mixture, [["few", None, None, 1.0], ["many", None, None, 3.0]], seed=4)
    whole = sequences(config, 0, 44)
    for start in (1, 13, 39):
        np.testing.assert_array_equal(sequences(config, start, 5), whole[start * BATCH :][:15])


def test_a_mix_resumes_past_the_block_in_which_choices_are_counted(mixture, monkeypatch):
    config = config_of(mixture, [["few", None, None, 1.0], ["many", None, None, 3.0]], seed=4)
    whole = sequences(config, 0, 30)
    monkeypatch.setattr("inputs._MIX_BLOCK", 7)
    np.testing.assert_array_equal(sequences(config, 0, 30), whole)
    np.testing.assert_array_equal(sequences(config, 11, 19), whole[33:])


# ---- documents ---------------------------------------------------------------------------------

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


def test_too_few_tokens_in_stitched_documents_are_named_while_reading(documents):
    config = config_of(documents, [["tiny", 1, "documents_fixed", 1.0]], input_fn="generic_text")
    with pytest.raises(tf.errors.InvalidArgumentError, match="stitch more documents"):
        sequences(config, 0, 1)


# ---- evaluation --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held_out")
    write(folder / "one", "eval", numbered(7), files_per=3)
    write(folder / "two", "eval", numbered(4, first=20))
    for name in ("one", "two"):
        write(folder / name, "train", numbered(3))
    return folder


def evaluated(config, max_batches=0):
    input_fn = evaluation_input(config, open_sources(config, training=False), max_batches)
    read = batches_of(input_fn, config.seed)
    for features, labels in read:
        assert features["inputs"].shape == labels.shape == (config.eval_batch_size, N_CTX)
        np.testing.assert_array_equal(features["inputs"][:, 1:], labels[:, :-1])
    weights = np.stack([features["row_weights"] for features, _ in read])
    rows = np.stack([np.concatenate([f["inputs"], ls[:, -1:]], 1) for f, ls in read])
    return rows, weights


def test_evaluation_covers_each_record_once_and_fills_the_last_batch(held_out):
    config = config_of(held_out, ["one", "two"], eval_batch_size=4, shuffle_input_filenames=True)
    rows, weights = evaluated(config)
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]])
    expected = np.concatenate([numbered(7), numbered(4, first=20)])
    np.testing.assert_array_equal(rows[weights > 0], expected)
    assert rows[weights == 0].max() < N_VOCAB


def test_evaluation_without_a_rest_has_no_empty_batch(held_out):
    config = config_of(held_out, ["two"], eval_batch_size=2)
    _, weights = evaluated(config)
    np.testing.assert_array_equal(weights, np.ones([2, 2]))


def test_evaluation_stops_after_max_batches(held_out):
    config = config_of(held_out, ["one"], eval_batch_size=2)
    rows, weights = evaluated(config, max_batches=3)
    np.testing.assert_array_equal(rows[weights > 0], numbered(6))


def test_evaluation_of_fewer_records_than_a_batch(held_out):
    config = config_of(held_out, ["two"], eval_batch_size=9)
    rows, weights = evaluated(config)
    np.testing.assert_array_equal(weights, [[1] * 4 + [0] * 5])
    np.testing.assert_array_equal(rows[0, :4], numbered(4, first=20))


# ---- wrong data --------------------------------------------------------------------------------


def test_no_file(tmp_path):
    pattern = tmp_path / "tiny" / "train_*.tfrecords"
    message = f"dataset tiny must match at least one record file; got none for {pattern}. "
    with pytest.raises(ValueError, match=re.escape(message)):
        open_sources(config_of(tmp_path), training=True)


def test_no_evaluation_data(tmp_path):
    entry = [str(tmp_path / "train_*"), "", 1, "documents_random", 1.0]
    config = config_of(tmp_path, datasets=[entry], eos_id=0, padding_id=0)
    with pytest.raises(ValueError, match="must name at least one dataset with a eval_path"):
        open_sources(config, training=False)


def test_wrong_length_names_the_length_and_the_file(tmp_path):
    write(tmp_path / "tiny", "train", numbered(4)[:, :9])
    file = tmp_path / "tiny" / "train_0_4.tfrecords"
    message = f"records of tiny must hold n_ctx + 1 = 12 ids; got 9 in {file}. Set n_ctx to 8, "
    with pytest.raises(ValueError, match=re.escape(message)):
        open_sources(config_of(tmp_path), training=True)


@pytest.mark.parametrize("wrong", [N_VOCAB, -1])
def test_ids_out_of_range_are_named(tmp_path, wrong):
    records = numbered(4)
    records[0, 5] = wrong
    write(tmp_path / "tiny", "train", records)
    message = rf"ids of tiny must lie in \[0, n_vocab = {N_VOCAB}\); got .*{wrong}.* in .*train_0_4"
    with pytest.raises(ValueError, match=message):
        open_sources(config_of(tmp_path), training=True)


def test_fewer_sequences_than_a_batch(tmp_path):
    write(tmp_path / "tiny", "train", numbered(2))
    message = "train_batch_size must not exceed the sequences of the data; got 3 with 2 sequence(s)"
    with pytest.raises(ValueError, match=re.escape(message)):
        open_sources(config_of(tmp_path), training=True)


def test_fewer_stitched_sequences_than_a_batch(documents):
    config = documents_config(documents, "documents_fixed", train_batch_size=7)
    with pytest.raises(ValueError, match=re.escape("got 7 with 6 sequence(s)")):
        open_sources(config, training=True)


def test_a_data_set_without_records(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "train_0_0.tfrecords").write_bytes(b"")
    with pytest.raises(ValueError, match="dataset tiny must hold records; got 0"):
        open_sources(config_of(tmp_path), training=True)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "tiny").mkdir()
    file = tmp_path / "tiny" / "train_0_5.tfrecords"
    file.write_bytes(json.dumps({"text": "no record file"}).encode() * 9)
    with pytest.raises(ValueError, match=f"must exist and be whole; got {re.escape(str(file))}"):
        open_sources(config_of(tmp_path), training=True)


@pytest.mark.parametrize("training", [True, False])
def test_a_later_record_of_wrong_length_is_named_while_reading(tmp_path, training):
    records = [*numbered(4), numbered(1)[0, :9], *numbered(4)]
    for name in ("train", "eval"):
        write(tmp_path / "tiny", name, records)
    config = config_of(tmp_path)
    read = sequences if training else lambda config, *unused: evaluated(config)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        read(config, 0, 2)
    assert "sequences of tiny must hold n_ctx + 1 ids" in str(caught.value)
    assert f"--chunk_size {N_CTX}" in str(caught.value)


@pytest.mark.parametrize("wrong", [N_VOCAB, -1])
def test_a_later_id_out_of_range_is_named_while_reading(tmp_path, wrong):
    records = numbered(6)
    records[4, 2] = wrong
    write(tmp_path / "tiny", "train", records)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ids of tiny must"):
        sequences(config_of(tmp_path), 0, 2)
