"""The benchmark of the preparation of data at a tiny size."""

import json
import subprocess
import sys
import sysconfig

import pytest

from benchmarks import data as benchmark


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Instead of the standard library, which takes seconds to list."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(60):
        (source / f"{number}.py").write_text(f"def f{number}(): return {number}  # é\n" * 40)
    paths = {"stdlib": str(source), "purelib": str(source)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda *unused: paths)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # back to what it was at the end
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")


def test_all_programs_find_the_same_tokens(corpus):
    def run(program, *arguments):
        found = benchmark.PROGRAMS[program](*arguments)
        return found | {"process_seconds": 1e9, "peak_memory_bytes": 1}

    result = benchmark.measure(50_000, rounds=1, processes=1, run=run)
    assert result["megabytes"] == 0.05
    assert 10_000 < result["tokens"] < 80_000
    rates = result["tokens_per_second"]
    over = result["create_tfrecords_over"]
    for other in ("encode_batch", "one_at_a_time"):
        ratio = rates["create_tfrecords"] / rates[other]
        assert abs(over[other] - ratio) < 0.01 + 0.01 * ratio
    assert over["encode_batch, with the start of the process"] == 0


def test_each_program_runs_in_a_process_of_its_own(corpus, tmp_path, repo_root):
    benchmark.write_corpus(tmp_path / "corpus", 20_000)
    words = [str(tmp_path / "corpus"), str(tmp_path / "out"), "2"]
    done = subprocess.run(
        [sys.executable, str(repo_root / "benchmarks" / "data.py"), "--program", "encode_batch"]
        + words,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["tokens"] > 5000


def test_a_peer_that_is_not_installed_is_named(tmp_path, repo_root):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    words = ["--peer", "transformers", "--peer_python", str(python)]
    command = [sys.executable, str(repo_root / "benchmarks" / "data.py"), *words]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    [line] = run.stderr.splitlines()
    assert line.startswith("data.py: error: --peer must be installed; got no torch for ")
