"""A run that is killed, changed to another batch size and resumed reads what it would have read."""

import numpy as np
import pytest

from inputs import epoch_of_step, open_sources, training_input
from tests.input_support import MODES, batches_of, config_in_mode, write
from utils.batch_sizes import BatchSizes, read_batch_sizes

IDS = 14  # of a record in the document modes; 12 in chunks
COUNTS = (1, 7, 2, 5)  # records of the files
# (step at which a process begins, steps that it makes before it is killed, batch size); the
# checkpoint from which the next one begins may be older. Of 15 records, epoch 3 is the last one.
PROCESSES = [(0, 7, 3), (6, 5, 5), (9, 9, 1), (17, 7, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two datasets, each of files with different numbers of records; an id tells its record."""
    folder = tmp_path_factory.mktemp("resized")
    for length, kind in ((12, "chunks"), (IDS, "documents")):
        first = 0
        for name in ("one", "two"):
            for index, count in enumerate(COUNTS):
                records = np.arange(first * length, (first + count) * length).reshape(count, length)
                write(folder / kind / name, f"part{index}", records)
                path = folder / kind / name / f"part{index}_0_{count}.tfrecords"
                path.rename(folder / kind / name / f"train_{index}_{count}.tfrecords")
                first += count
    return folder


def config_for(folder, mode, names, batch_size, stitch=1):
    kind = "chunks" if mode == "chunks" else "documents"
    return config_in_mode(
        folder / kind, mode, names, stitch=stitch, train_batch_size=batch_size, seed=4
    )


def read(config, sources, first, steps):
    """Rows [steps * batch, n_ctx + 1] from sequence ``first`` on."""
    pairs = batches_of(training_input(config, sources, first), config.seed, steps)
    return np.concatenate([np.concatenate([f["inputs"], labels[:, -1:]], 1) for f, labels in pairs])


@pytest.mark.parametrize(
    ("mode", "stitch", "names"),
    [
        *((mode, 1, ("one",)) for mode in MODES),
        ("chunks", 1, ("one", "two")),
        ("documents_random", 2, ("one", "two")),
    ],
)
def test_each_record_is_read_once_whatever_the_batch_sizes(folder, tmp_path, mode, stitch, names):
    alone = config_for(folder, mode, names, 1, stitch)
    sources = open_sources(alone, training=True)
    rows = {}  # of each step, those of steps that are done again replaced
    for start, steps, batch_size in PROCESSES:
        sizes = read_batch_sizes(str(tmp_path), None, batch_size).going_on(start, batch_size)
        sizes.write(str(tmp_path))
        config = config_for(folder, mode, names, batch_size, stitch)
        got = read(config, sources, sizes.sequences_before(start), steps)
        rows |= {start + i: got[i * batch_size : (i + 1) * batch_size] for i in range(steps)}
    got = np.concatenate([rows[step] for step in sorted(rows)])
    assert sizes.segments == ((0, 3), (6, 5), (9, 1), (17, 4))
    assert len(got) == sizes.sequences_before(24) == 69  # 4.6 epochs of 15 records
    np.testing.assert_array_equal(got, read(alone, sources, 0, 69))
    if len(names) > 1 or stitch > 1:
        return
    records = got[:, 0] // (12 if mode == "chunks" else IDS)
    for epoch in range(4):
        assert sorted(records[epoch * 15 : (epoch + 1) * 15]) == list(range(15))


def test_epochs_are_counted_by_the_sequences_that_were_read(folder):
    sources = open_sources(config_for(folder, "chunks", ("one", "two"), 3), training=True)
    epochs = epoch_of_step(sources, BatchSizes(((0, 3), (10, 6))).sequences_before)
    assert [epochs(step) for step in (5, 10, 15)] == [0.5, 1.0, 2.0]
