"""Checkpoints that are whole, missing, cut short, or of another model: real files."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support import (
    Forward,
    copy_checkpoint,
    make_config,
    random_variables,
    write_checkpoint,
)
from utils.checkpoints import (
    check_checkpoint,
    check_variables,
    checkpoint_step,
    latest_checkpoint,
    make_saver,
    remove_partial_saves,
)

VALUES = {
    "gpt2/wte": np.arange(600.0, dtype=np.float32).reshape(20, 30),
    "gpt2/h0/attn/q": np.ones((30, 30), np.float32),
    "gpt2/wte/adam_v": np.ones((20, 30), np.float32),
}


@pytest.fixture
def run(tmp_path) -> Path:
    """A folder with checkpoints of steps 3 and 8."""
    write_checkpoint(tmp_path, VALUES, step=3)
    write_checkpoint(tmp_path, VALUES, step=8)
    return tmp_path


@pytest.fixture
def two_files(fixtures_dir, tmp_path) -> Path:
    """GPT-Neo's checkpoint of two data files, the first of which holds the step only."""
    copy_checkpoint(str(fixtures_dir / "A1_local_global" / "model.ckpt-12"), tmp_path)
    return tmp_path


def refused(folder: Path) -> str:
    """The error about a folder, which must come within a second."""
    started = time.monotonic()
    with pytest.raises(ValueError) as caught:
        latest_checkpoint(str(folder))
    assert time.monotonic() - started < 1.0
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_newest_is_found(run):
    assert latest_checkpoint(str(run)) == str(run / "model.ckpt-8")
    assert checkpoint_step(str(run / "model.ckpt-8")) == 8
    assert checkpoint_step(str(run / "model.ckpt-3")) == 3


def test_before_training_there_is_none(tmp_path):
    assert latest_checkpoint(str(tmp_path)) is None
    assert latest_checkpoint(str(tmp_path / "not_yet")) is None
    assert checkpoint_step(None) == 0


def test_checkpoints_of_gpt_neo_are_whole(two_files, fixtures_dir):
    path = latest_checkpoint(str(two_files))
    assert checkpoint_step(path) == 12
    check_checkpoint(str(fixtures_dir / "A1_local_global" / "model.ckpt-0"))


def test_a_folder_that_was_moved_still_works(run, tmp_path_factory):
    """The saver writes relative names."""
    moved = tmp_path_factory.mktemp("moved") / "run"
    shutil.move(str(run), str(moved))
    assert latest_checkpoint(str(moved)) == str(moved / "model.ckpt-8")


def test_missing_data_file(run):
    (run / "model.ckpt-8.data-00000-of-00001").unlink()
    text = refused(run)
    assert text.startswith(f"checkpoint {run}/model.ckpt-8 must be readable; got: ")
    assert "model.ckpt-8.data-00000-of-00001" in text
    assert text.endswith(
        "Restore its files from a copy, or name an older checkpoint in the file `checkpoint` "
        "beside it."
    )


@pytest.mark.parametrize("number", [0, 1])
def test_one_of_two_data_files_is_missing(two_files, number):
    (two_files / f"model.ckpt-12.data-0000{number}-of-00002").unlink()
    text = refused(two_files)
    assert f"checkpoint {two_files}/model.ckpt-12 must" in text
    assert f"data-0000{number}-of-00002" in text


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_data_file_that_is_cut_short(two_files, kept):
    """As a full disk or a broken copy leaves it."""
    file = two_files / "model.ckpt-12.data-00001-of-00002"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept)])
    assert f"checkpoint {two_files}/model.ckpt-12 must be readable; got: " in refused(two_files)


@pytest.mark.parametrize("name", VALUES)
def test_a_changed_byte_in_any_variable_is_found(run, name):
    """Not only in weights: optimizer slots are first read when a run is resumed."""
    file = run / "model.ckpt-8.data-00000-of-00001"
    content = file.read_bytes()
    start = content.index(VALUES[name].tobytes()[:240])
    file.write_bytes(content[: start + 100] + b"!" + content[start + 101 :])
    text = refused(run)
    assert f"checkpoint {run}/model.ckpt-8 must be readable; got: " in text
    assert "hecksum" in text


def test_large_checkpoints_are_not_read_whole(run, monkeypatch):
    monkeypatch.setattr("utils.checkpoints.FULLY_READ_BYTES", 1000)
    file = run / "model.ckpt-8.data-00000-of-00001"
    content = file.read_bytes()
    start = content.index(VALUES["gpt2/h0/attn/q"].tobytes()[:240])
    file.write_bytes(content[: start + 100] + b"!" + content[start + 101 :])
    check_checkpoint(str(run / "model.ckpt-8"))
    file.write_bytes(content[:-1])
    assert "must be readable; got: " in refused(run)


def test_missing_index(run):
    (run / "model.ckpt-8.index").unlink()
    assert refused(run) == (
        f"checkpoint {run}/model.ckpt-8 must have an .index file; got none. Restore the file, or "
        f"edit {run}/checkpoint to name another one."
    )


def test_the_remedies_of_those_errors_work(run):
    (run / "model.ckpt-8.index").unlink()
    (run / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    assert latest_checkpoint(str(run)) == str(run / "model.ckpt-3")


@pytest.mark.parametrize("content", [b"", b"no index at all", None])
def test_damaged_index(run, content):
    index = run / "model.ckpt-8.index"
    index.write_bytes(index.read_bytes()[:-20] if content is None else content)
    assert f"checkpoint {run}/model.ckpt-8 must be readable; got: " in refused(run)


@pytest.mark.parametrize("content", [b"", b"!! not a checkpoint state", b"\xff\xfe\x00"])
def test_damaged_state_file(run, content):
    """It must not look like a run that has not begun: that would train from the start."""
    (run / "checkpoint").write_bytes(content)
    assert refused(run) == (
        f"{run}/checkpoint must name the newest checkpoint; got a file that cannot be read. "
        'Write model_checkpoint_path: "model.ckpt-<step>" into it.'
    )


# --- variables -------------------------------------------------------------------------------


def shapes(values) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in values.items()}


def test_a_checkpoint_may_hold_more_than_is_asked_for(run):
    check_variables(str(run / "model.ckpt-8"), {"gpt2/wte": [20, 30]})
    check_variables(str(run / "model.ckpt-8"), shapes(VALUES))


MEASURED = "measurements/noise_scale/weight"


@pytest.mark.parametrize("stored", [True, False])
def test_measurements_go_on_if_they_are_stored_and_else_begin_anew(tmp_path, stored):
    """A run may begin to measure at any checkpoint."""
    values = {"gpt2/wte": np.ones(3, np.float32), MEASURED: np.float32(0.5)}
    if not stored:
        del values[MEASURED]
    path = write_checkpoint(tmp_path, values, step=4)
    check_variables(path, {"gpt2/wte": [3], MEASURED: []})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        initial = tf.compat.v1.zeros_initializer()
        names = {"gpt2/wte": [3], MEASURED: []}
        variables = [
            tf.compat.v1.get_variable(name, shape, initializer=initial)
            for name, shape in names.items()
        ]
        make_saver(max_to_keep=1).restore(session, path)
        weights, measured = session.run(variables)
    np.testing.assert_array_equal(weights, np.ones(3))
    assert measured == (0.5 if stored else 0.0)


def test_another_model_is_refused(run):
    path = str(run / "model.ckpt-8")
    wanted = shapes(VALUES) | {
        "gpt2/wte": [20, 31],
        "gpt2/h1/attn/q": [30, 30],
    }
    with pytest.raises(ValueError) as caught:
        check_variables(path, wanted)
    assert str(caught.value) == (
        f"checkpoint {path} must hold the variables of the config; got gpt2/h1/attn/q missing; "
        "gpt2/wte [20, 30] (the config makes it [20, 31]). Use the config that the checkpoint was "
        "trained with (config.json beside it), or another model_path."
    )


def test_another_number_of_layers_is_refused_with_the_first_few_names(tmp_path):
    """By the session that evaluates and generates."""
    two_layers = make_config()
    checkpoint = write_checkpoint(tmp_path, random_variables(two_layers, seed=1))
    Forward(two_layers, checkpoint)
    three = make_config(n_layer=3, attention_types=None)
    with pytest.raises(ValueError) as caught:
        Forward(three, checkpoint)
    assert str(caught.value).startswith(
        f"checkpoint {checkpoint} must hold the variables of the config; got "
        "gpt2/h2/attn/compute_output_bias/o_b missing; gpt2/h2/attn/k missing; "
        "gpt2/h2/attn/o missing; gpt2/h2/attn/q missing and 9 more. Use the config"
    )


def test_another_width_is_refused(tmp_path):
    checkpoint = write_checkpoint(tmp_path, random_variables(make_config(), seed=1))
    with pytest.raises(ValueError, match=r"gpt2/wpe \[10, 14\] \(the config makes it \[10, 16\]\)"):
        check_variables(checkpoint, {"gpt2/wpe": [10, 16]})


def test_checkpoints_that_no_state_file_names_are_not_overwritten(tmp_path):
    (tmp_path / "model.ckpt-7.index").write_bytes(b"")
    with pytest.raises(ValueError, match=r"must name the newest checkpoint; got none beside model"):
        latest_checkpoint(str(tmp_path))


# --- what killed saves leave -----------------------------------------------------------------


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_what_killed_saves_left_is_removed(run, caplog):
    caplog.set_level("INFO")
    whole = names_in(run)
    left = [
        "model.ckpt-12.data-00000-of-00001",  # the index was never written
        "model.ckpt-12.index.tempstate77",
        "model.ckpt-13.data-00000-of-00001.tempstate1234567890123456789",
        "model.ckpt-3.data-00000-of-00001.tempstate5",  # of a kill long ago
    ]
    for name in left:
        (run / name).write_bytes(b"half")
    remove_partial_saves(str(run), latest_checkpoint(str(run)))
    assert names_in(run) == whole
    assert caplog.messages == [f"removed what a killed save left in {run}: {', '.join(left)}"]
    remove_partial_saves(str(run), latest_checkpoint(str(run)))
    assert len(caplog.messages) == 1


def test_whole_checkpoints_and_other_files_stay(run):
    write_checkpoint(run, VALUES, step=20)  # whole, and not listed: killed before the state
    (run / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-8"\n')
    (run / "model.ckpt-3.index").unlink()  # not newer than what is listed
    for name in ("model.ckpt-99.data-00000-of-00001.bak", "old.tempstate1", "model.ckpt-99"):
        (run / name).write_bytes(b"")
    before = names_in(run)
    remove_partial_saves(str(run), str(run / "model.ckpt-8"))
    assert names_in(run) == before


def test_without_a_listed_checkpoint_data_files_stay(tmp_path):
    """They may be half of a checkpoint that is being copied there."""
    (tmp_path / "model.ckpt-12.data-00000-of-00001").write_bytes(b"")
    (tmp_path / "model.ckpt-0.data-00000-of-00001.tempstate9").write_bytes(b"")
    remove_partial_saves(str(tmp_path), None)
    assert names_in(tmp_path) == ["model.ckpt-12.data-00000-of-00001"]
    remove_partial_saves(str(tmp_path), str(tmp_path / "pretrained"))
    assert names_in(tmp_path) == ["model.ckpt-12.data-00000-of-00001"]
