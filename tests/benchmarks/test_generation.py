"""The generation benchmark on a tiny model."""

import json

import pytest

from tests.benchmarks.test_training import benchmark


def test_rate_time_to_the_first_token_and_memory():
    flags = ("--prompt", "5", "--new", "4", "--batch", "2", "--rounds", "2", "--json")
    result = json.loads(benchmark("generation", *flags).stdout)
    assert result["ceiling"]["float32"] > 1e9 and result["ceiling"]["read"] > 1e8
    ours = result["generate"]["results"]["ours"]
    assert ours["per_second"] == pytest.approx(2 * 4 / ours["seconds_median"])
    assert ours["peak_memory_bytes"] > 1e8
    assert result["first_token"]["results"]["ours"]["seconds_median"] > 0
