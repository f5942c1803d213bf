"""The training benchmark on a tiny model: it measures what it says, and names what is missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.shapes import TRAINING
from inspection.measure import measure
from tests.support import make_config

ROOT = Path(__file__).resolve().parents[2]


def benchmark(name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"benchmarks/{name}.py", "--shape", "tiny", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_rates_memory_and_the_share_of_the_limit():
    result = json.loads(benchmark("training", "--rounds", "2", "--json").stdout)
    assert result["ceiling"]["float32"] > 1e9 and result["ceiling"]["read"] > 1e8
    ours = result["results"]["ours"]
    shape = TRAINING["tiny"]
    assert ours["per_second"] == pytest.approx(shape.tokens / ours["seconds_median"])
    assert 0 < ours["of_ceiling"] < 1
    assert ours["peak_memory_bytes"] > 1e8


def test_a_peer_that_is_not_installed_is_named(tmp_path):
    """An interpreter without packages."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    run = benchmark("training", "--peer", "torch-compiled", "--peer_python", str(python))
    assert run.returncode == 2
    assert run.stderr.startswith("training.py: error: --peer must be installed; got no torch")
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("training", ("--rounds", "0"), "argument --rounds: must be a whole number of at least 1"),
        ("generation", ("--batch", "0"), "argument --batch: must be a whole number of at least 1"),
        ("generation", ("--prompt", "60", "--new", "5"), "must be at most 64 together; got 65"),
    ],
)
def test_a_wrong_flag_is_one_line(name, flags, message):
    run = benchmark(name, *flags)
    assert run.returncode == 2
    [line] = run.stderr.splitlines()
    assert message in line


@pytest.mark.parametrize("name", ["medium", "small"])
def test_arithmetic_is_that_of_the_dry_run(name):
    """Which adds what blocks of attention compute beyond the keys that are seen."""
    shape = TRAINING[name]
    flops = measure(make_config(**shape.config("float32"))).flops
    assert 1.0 <= (flops.forward + flops.backward) / shape.step_flops < 1.08
