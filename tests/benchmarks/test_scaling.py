"""Points of growth are measured and put beside the dry run."""

import json

from benchmarks import scaling
from benchmarks.shapes import TRAINING
from configs.load import parse_config
from inspection.measure import measure


def test_a_point_is_measured(capsys, monkeypatch):
    """Two devices, which the worker must make: the dry run counts both."""
    monkeypatch.setattr(scaling, "BASE", TRAINING["tiny"])
    monkeypatch.setattr(scaling, "SERIES", {"mesh": (2, 1)})
    assert scaling.main(["--points", "1", "--steps", "1", "--json"]) == 0
    [result] = json.loads(capsys.readouterr().out)
    run = measure(parse_config(scaling.Point(TRAINING["tiny"], 2).config("float32")))
    assert result["point"] == "mesh 2"
    assert result["predicted_bytes"] == 2 * run.peak_bytes + run.master_bytes
    assert result["step_flops"] == 2 * run.flops.per_processor
    assert 0.1 < result["graph_seconds"] < 100
    # So small a graph may stay below what the imports needed for a moment.
    assert 0 <= result["graph_bytes"] < 1e9
    assert 0 <= result["measured_bytes"] < 1e9
    [line] = scaling.table([result | {"measured_bytes": 3e9}]).splitlines()[2:]
    assert line.startswith("| mesh 2 | ")


def test_series_grow_in_one_size():
    for series, sizes in scaling.SERIES.items():
        points = [scaling.point(series, size) for size in sizes]
        changed = [point.devices if series == "mesh" else getattr(point.shape, series)
                   for point in points]  # fmt: skip
        assert changed == list(sizes)
        assert len({str(point) for point in points}) == len(sizes)
        for point in points:
            parse_config(point.config("float32"))
