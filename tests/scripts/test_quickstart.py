"""The quick start in a copy of the project, with fewer steps."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def copy(repo_root, tmp_path_factory):
    """The project's files in a new folder, with the environment of this process."""
    target = tmp_path_factory.mktemp("clone") / "project"
    target.mkdir()
    listed = subprocess.run(
        ["git", "ls-files"], cwd=repo_root, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (repo_root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repo_root / name, target / name)
    (target / ".venv").symlink_to(Path(sys.prefix))
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
