"""The quick start in a copy of the project, with fewer steps."""

import json
import os
import subprocess

import pytest

from tests.project_copy import copy_project


@pytest.fixture(scope="module")
def copy(repo_root, tmp_path_factory):
    """The project's files in a new folder, with the environment of this process."""
    target = copy_project(repo_root, tmp_path_factory.mktemp("clone") / "project")
    config = json.loads((target / "configs/tiny.json").read_text())
    config.update(train_steps=6, warmup_steps=2, eval_steps=1)
    (target / "configs/tiny.json").write_text(json.dumps(config))
    return target


def run(copy):
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(
        ["bash", "scripts/quickstart.sh"],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def test_quickstart_trains_evaluates_samples_and_is_reused(copy):
    first = run(copy)
    assert first.returncode == 0, first.stderr
    folder = copy / "runs/tiny"
    lines = (folder / "eval_nosacred.jsonl").read_text().splitlines()
    evaluations = [json.loads(line) for line in lines]
    assert [line["global_step"] for line in evaluations] == [0, 6, 6]
    assert 10.7 < evaluations[0]["cross_entropy"] < 10.9  # log of the vocabulary
    assert evaluations[-1]["loss"] < evaluations[0]["loss"] - 0.5
    assert "def main(" in first.stdout
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")

    records = {path: path.stat().st_mtime_ns for path in (copy / "datasets").rglob("*.tfrecords")}
    second = run(copy)
    assert second.returncode == 0, second.stderr
    assert "is trained: 6 of 6 steps" in second.stderr
    assert records == {path: path.stat().st_mtime_ns for path in records}
    assert second.stdout.count("def main(") == first.stdout.count("def main(")
