"""The benchmark of the server on a tiny model."""

import json

import pytest

from benchmarks.serving import main
from tests.benchmarks.test_training import benchmark


def test_rates_latencies_and_memory_under_load():
    """With fewer places than clients: some must come again, and all get their answers."""
    flags = ("--clients", "5", "--texts", "1", "--most_waiting", "1", "--seconds", "2")
    lengths = ("--prompt", "30", "--new", "9")
    result = json.loads(benchmark("serving", *flags, *lengths, "--json").stdout)
    count = result["answers"]
    assert count >= 5 and result["refused"] > 0
    seconds = result["seconds_to_the_last_answer"]
    assert seconds > 1
    assert result["requests_per_second"] == pytest.approx(count / seconds)
    assert 1 <= result["new_tokens_per_second"] / result["requests_per_second"] <= 9
    assert 1 <= result["prompt_tokens_per_second"] / result["requests_per_second"] <= 30
    for part in (result["latency"], result["first_token"]):
        assert 0 < part["p50"] <= part["p95"] <= part["p99"] < seconds
    assert result["first_token"]["p50"] <= result["latency"]["p50"]
    assert len(result["memory_bytes"]) == 4 and min(result["memory_bytes"]) > 1e8


def test_wrong_lengths(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--shape", "tiny", "--prompt", "500", "--new", "13"])
    assert caught.value.code == 2
    assert "--prompt and --new must be at most 512 together; got 513" in capsys.readouterr().err
