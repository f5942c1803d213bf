"""Flags and globs that are refused before anything slow begins."""

import os

import pytest

from inspection.measure import measure
from tests.support import make_config
from utils.early_checks import (
    check_evaluation_files,
    check_output_file,
    check_output_folder,
    check_run_id,
    check_weights_fit,
)


@pytest.mark.parametrize("run_id", [None, "7", "run 7", "2024-01-31_é", "..", "x" * 100])
def test_ids_that_fit_into_a_file_name(run_id):
    check_run_id(run_id)


@pytest.mark.parametrize("run_id", ["a/b", "/", "", "a\nb", "a\0b", "x" * 101])
def test_ids_that_do_not(run_id):
    with pytest.raises(ValueError, match="--sacred_id must be 1 to 100 characters") as caught:
        check_run_id(run_id)
    assert "\n" not in str(caught.value)


def test_output_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.txt").write_text("")
    for path in (None, "new.txt", "old.txt", str(tmp_path / "new.txt"), "/dev/stdout"):
        check_output_file(path)
    for path, message in [
        (".", "--out must name a file; got the folder .. Add the name of a file."),
        (f"{tmp_path}/", f"--out must name a file; got the folder {tmp_path}/. Add"),
        ("", "--out must name a file; got an empty name"),
        ("absent/new.txt", "--out must be in a folder that exists; got absent/new.txt"),
        ("old.txt/new.txt", "--out must be in a folder that exists; got old.txt/new.txt"),
    ]:
        with pytest.raises(ValueError) as caught:
            check_output_file(path)
        assert str(caught.value).startswith(message)
    monkeypatch.setattr(os, "access", lambda *unused: False)
    with pytest.raises(ValueError, match=r"must be a file that can be written; got old\.txt"):
        check_output_file("old.txt")


def test_an_output_that_cannot_be_made_is_refused_whatever_permissions_say(tmp_path):
    with pytest.raises(ValueError, match="--out must be a file that can be written; got /proc/no"):
        check_output_file("/proc/none")
    check_output_file(str(tmp_path / "new.txt"))
    assert os.listdir(tmp_path) == []


def test_an_output_folder_is_tried_and_leaves_nothing(tmp_path, monkeypatch):
    for path, subject in (("/proc/none", "--out"), (None, "model_path")):
        with pytest.raises(ValueError) as caught:
            check_output_folder(path, "/proc/none")
        assert str(caught.value) == (
            f"{subject} must be a folder that can be made and written; got /proc/none (no such "
            "file or directory). Change its permissions, or name another folder with --out."
        )
    (tmp_path / "old").mkdir()
    check_output_folder(str(tmp_path / "old" / "new" / "newer"), "unused")
    assert os.listdir(tmp_path / "old") == []
    check_output_folder(str(tmp_path / "old"), "unused")
    assert os.listdir(tmp_path) == ["old"]
    monkeypatch.setattr(os, "access", lambda *unused: False)
    with pytest.raises(ValueError, match=r"old \(permission denied\)"):
        check_output_folder(str(tmp_path / "old"), "unused")


def test_weights_beyond_the_memory_of_the_machine_are_refused(monkeypatch):
    pages = {"SC_PAGE_SIZE": 1000, "SC_PHYS_PAGES": 8_000_000}
    monkeypatch.setattr(os, "sysconf", pages.get)
    config = make_config()
    check_weights_fit(config)
    with pytest.raises(ValueError) as caught:
        check_weights_fit(config.model_copy(update={"n_embd": 2**20, "n_vocab": 64}))
    assert str(caught.value).endswith(
        ", and 8.0 GB of memory. Lower them, or run on several machines; --dry_run tells what a "
        "job needs."
    )


@pytest.mark.parametrize(
    "changes",
    [{}, {"attention_types": [[["none"], 2]]}, {"moe_layers": [1]}, {"rotary_emb": True}],
)
def test_no_more_weights_are_counted_than_there_are(monkeypatch, changes):
    """At exactly as much memory as the dry run says that they need."""
    sizes = {"n_layer": 2, "attention_types": [[["global"], 2]], "n_embd": 30, "n_head": 5}
    config = make_config(**sizes | changes)
    pages = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 4 * measure(config).parameters}
    monkeypatch.setattr(os, "sysconf", pages.get)
    check_weights_fit(config)
    if not changes:  # and nearly all of them
        pages["SC_PHYS_PAGES"] = int(0.9 * pages["SC_PHYS_PAGES"])
        with pytest.raises(ValueError, match="must fit into the memory"):
            check_weights_fit(config)


def config_of(*globs):
    datasets = [["train_*", glob, 1, "documents_random", 1.0] for glob in globs]
    return make_config(datasets=datasets)


def test_evaluation_records_that_may_be_there(tmp_path):
    (tmp_path / "eval_0_3.tfrecords").write_text("")
    (tmp_path / ".eval_1_3.tfrecords").write_text("")
    for name in ("eval_*", "eval_0_3.tfrecords", "*", "?eval*", "eval_[0-9]*", r"\eval_0*"):
        check_evaluation_files(config_of(str(tmp_path / name)))
    check_evaluation_files(config_of(f"{tmp_path}*/ev*"))  # left to the reader
    check_evaluation_files(config_of("gs://bucket/eval_*"))
    check_evaluation_files(config_of(None, str(tmp_path / "eval_*")))


@pytest.mark.parametrize("pattern", ["nowhere/eval_*", "eval_*", "empty/[a-z]*"])
def test_evaluation_records_that_are_not_there(tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train_0_3.tfrecords").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError) as caught:
        check_evaluation_files(config_of(pattern))
    assert f"must match at least one record file; got none for {pattern}. " in str(caught.value)


def test_no_evaluation_records_at_all():
    with pytest.raises(ValueError, match="at least one dataset with an eval_path; got none"):
        check_evaluation_files(config_of(None))
