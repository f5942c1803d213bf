"""Folders that are a run, become one, or are something else."""

import json

import pytest

from tests.support import make_config
from utils.files import check_model_path
from utils.run_folder import (
    check_resumable,
    check_trained,
    delete_run,
    files_of_run,
)

HUGGING_FACE = {"n_head": 12, "n_layer": 12, "model_type": "gpt2", "activation_function": "gelu"}
WRITTEN = [
    "checkpoint",
    "checkpoint.tmp1f",
    "config.json",
    "batch_sizes.json",
    "data.json",
    ".batch_sizes.json.partial",
    ".data.json.partial",
    "eval_nosacred.jsonl",
    "events.out.tfevents.1796165283.host",
    "graph.pbtxt",
    "loss.png",
    "metrics.jsonl",
    "model.ckpt-0.data-00000-of-00001",
    "model.ckpt-0.index",
    "model.ckpt-0.meta",
    "model.ckpt-8.data-00000-of-00001.tempstate1234",
    "predictions_7_100.txt",
]
NOT_WRITTEN = [
    "config.json.bak",
    "eval",
    "model.ckpt",
    "model.ckpt-0.index.old",
    "model.safetensors",
    "my_predictions_7_100.txt",
    "tokenizer.json",
]


def run_in(folder, names=WRITTEN):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("")
    (folder / "batch_sizes.json").write_text("[[0, 6]]")
    stored = make_config().to_json_dict()
    (folder / "config.json").write_text(json.dumps(stored))
    return str(folder)


def names_of(folder):
    return sorted(file.name for file in folder.iterdir())


# ---- deletion ----------------------------------------------------------------------------------


def test_the_files_of_a_run_are_deleted(tmp_path, caplog):
    delete_run(run_in(tmp_path))
    assert names_of(tmp_path) == []
    assert caplog.text == ""


def test_all_else_stays_and_is_named(tmp_path, caplog):
    path = run_in(tmp_path, [*WRITTEN, *NOT_WRITTEN])
    (tmp_path / "samples").mkdir()
    (tmp_path / "training.lock").write_text("")  # held by the process that deletes
    delete_run(path)
    assert names_of(tmp_path) == sorted([*NOT_WRITTEN, "samples", "training.lock"])
    assert (
        f"--new left what is no file of a run in {path}: config.json.bak, eval, model.ckpt, "
        "model.ckpt-0.index.old, model.safetensors and 3 more"
    ) in caplog.text


@pytest.mark.parametrize(
    "names", [["tokenizer.json"], ["metrics.jsonl", "notes.txt"], ["model.ckpt-3.index"]]
)
def test_what_is_no_run_is_not_touched(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError) as caught:
        delete_run(str(tmp_path))
    assert str(caught.value) == (
        f"--new must only delete the files of a run; got {tmp_path}, which holds no checkpoint "
        "and no config.json of one. Correct model_path, or empty the folder yourself."
    )
    assert names_of(tmp_path) == names


@pytest.mark.parametrize("more", [[], ["checkpoint", "model.ckpt-0.index", "metrics.jsonl"]])
def test_a_hugging_face_folder_is_not_touched(tmp_path, more):
    for name in more:
        (tmp_path / name).write_text("")
    (tmp_path / "config.json").write_text(json.dumps(HUGGING_FACE))
    with pytest.raises(ValueError, match=r"config\.json must be the config of a run, since"):
        delete_run(str(tmp_path))
    assert names_of(tmp_path) == sorted([*more, "config.json"])


def test_a_run_with_a_damaged_config_can_be_deleted(tmp_path):
    path = run_in(tmp_path)
    (tmp_path / "config.json").write_text("")
    delete_run(path)
    assert names_of(tmp_path) == []


def test_there_may_be_nothing_to_delete(tmp_path):
    (tmp_path / "training.lock").write_text("")
    assert files_of_run(str(tmp_path)) == ([], [])
    assert files_of_run(str(tmp_path / "absent")) == ([], [])


# ---- before a run ------------------------------------------------------------------------------


def test_a_model_path_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    for path in ("file", "file/run", "file/runs/a"):
        with pytest.raises(ValueError) as caught:
            check_model_path(str(tmp_path / path))
        assert str(caught.value) == (
            f"model_path must be a folder; got {tmp_path / path}, where {tmp_path / 'file'} is a "
            "file."
        )
    check_model_path(str(tmp_path / "run"))
    check_model_path(str(tmp_path))


def test_evaluation_needs_a_checkpoint_of_the_same_model(tmp_path):
    config = make_config(model_path=str(tmp_path / "run"), n_head=7)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"must hold a checkpoint; got none in .*run\. Train"):
            check_trained(config)
        (tmp_path / "run").mkdir(exist_ok=True)
    run_in(tmp_path / "run")
    with pytest.raises(ValueError, match=r"got n_head 7 \(was 2\)"):
        check_trained(config)
    check_trained(make_config(model_path=str(tmp_path / "run")))
    (tmp_path / "run" / "config.json").unlink()  # brought along from elsewhere
    check_trained(config)


def test_training_goes_on_with_the_same_model_only(tmp_path):
    path = run_in(tmp_path)
    with pytest.raises(ValueError, match=r"got n_head 7 \(was 2\)"):
        check_resumable(make_config(model_path=path, n_head=7))
    check_resumable(make_config(model_path=path))


def test_a_run_without_a_checkpoint_begins_again_with_any_config(tmp_path):
    path = run_in(tmp_path, ["metrics.jsonl"])
    check_resumable(make_config(model_path=path, n_head=7, train_batch_size=9))
    check_resumable(make_config(model_path=str(tmp_path / "new")))


def test_training_does_not_replace_the_config_of_something_else(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(HUGGING_FACE))
    with pytest.raises(ValueError) as caught:
        check_resumable(make_config(model_path=str(tmp_path)))
    assert str(caught.value) == (
        f"{tmp_path}/config.json must be the config of a run, since training replaces it; got one "
        "without model_path and train_steps. Move it away, or use another model_path."
    )


@pytest.mark.parametrize("content", ["", "null", "[1]"])
def test_a_damaged_config_is_named(tmp_path, content):
    path = run_in(tmp_path)
    (tmp_path / "config.json").write_text(content)
    for check in (check_resumable, check_trained):
        with pytest.raises(ValueError, match=r"/config\.json must hold the config of the run as"):
            check(make_config(model_path=path))


def test_damaged_batch_sizes_are_refused(tmp_path):
    path = run_in(tmp_path)
    (tmp_path / "batch_sizes.json").write_text("")
    with pytest.raises(ValueError, match=r"/batch_sizes\.json must be a list of .*an empty file"):
        check_resumable(make_config(model_path=path))
