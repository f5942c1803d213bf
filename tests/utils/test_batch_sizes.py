"""Which steps of a run used which batch size."""

import json
import re

import pytest

from tests.support import make_config
from utils.batch_sizes import BATCH_SIZES_FILE, BatchSizes, read_batch_sizes

STORED = json.loads(json.dumps(make_config().to_json_dict()))  # train_batch_size 6


def test_sequences_are_summed_over_the_stretches():
    sizes = BatchSizes(((0, 4), (10, 6), (13, 1)))
    steps = [0, 1, 9, 10, 11, 13, 14, 20]
    assert [sizes.sequences_before(step) for step in steps] == [0, 4, 36, 40, 46, 58, 59, 65]


def test_another_size_begins_where_a_run_goes_on():
    sizes = BatchSizes(((0, 4),)).going_on(10, 6)
    assert sizes.segments == ((0, 4), (10, 6))
    assert sizes.going_on(12, 6) == sizes  # no change
    assert sizes.going_on(12, 4).segments == ((0, 4), (10, 6), (12, 4))


def test_steps_that_are_done_again_are_forgotten():
    sizes = BatchSizes(((0, 4), (10, 6), (20, 8)))
    assert sizes.going_on(15, 5).segments == ((0, 4), (10, 6), (15, 5))
    assert sizes.going_on(10, 6).segments == ((0, 4), (10, 6))  # killed before it saved
    assert sizes.going_on(10, 4).segments == ((0, 4),)
    assert sizes.going_on(0, 3).segments == ((0, 3),)


def test_the_file_reads_as_it_was_written(tmp_path):
    sizes = BatchSizes(((0, 4), (10, 6)))
    sizes.write(str(tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == [BATCH_SIZES_FILE]
    assert json.loads((tmp_path / BATCH_SIZES_FILE).read_text()) == [[0, 4], [10, 6]]
    assert read_batch_sizes(str(tmp_path), STORED, 9) == sizes


def test_runs_without_the_file_have_had_one_size(tmp_path):
    assert read_batch_sizes(str(tmp_path), STORED, 9).segments == ((0, 6),)
    other_program = {"train_batch_size": 32, "architectures": ["GPT2LMHeadModel"]}
    for stored in (None, STORED | {"train_batch_size": None}, other_program):
        assert read_batch_sizes(str(tmp_path), stored, 9).segments == ((0, 9),)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "[[0, 4", "[[1, 4]]", "[[0, 4], [0, 5]]", "[[0, 0]]", "[[0, true]]", "[[0]]"]
    + ["[" * 100_000],
)
def test_a_damaged_file_is_refused(tmp_path, text):
    path = tmp_path / BATCH_SIZES_FILE
    path.write_text(text)
    message = f"{path} must be a list of [first step, batch size], from step 0 on; got "
    with pytest.raises(ValueError, match=re.escape(message)):
        read_batch_sizes(str(tmp_path), STORED, 9)
