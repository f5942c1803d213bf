"""The loss curve."""

import json

import numpy as np
import pytest

from scripts.plot_metrics import main, read_points


def write(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_curve_is_drawn_into_the_run(tmp_path, capsys):
    write(tmp_path / "metrics.jsonl", [{"step": s, "loss": 10 - s / 9} for s in range(10, 50, 10)])
    write(tmp_path / "eval_tiny.jsonl", [{"global_step": 40, "loss": 6.0, "perplexity": 403.4}])
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_run_without_metrics_is_refused(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "must hold metrics.jsonl with at least one loss; got" in capsys.readouterr().err


def test_last_value_of_a_step_counts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [{"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.5}, {"step": 10, "loss": 2.0}])
    with path.open("a") as file:
        file.write('{"step": 30, "lo')  # stopped while writing
    np.testing.assert_array_equal(read_points([path], "step"), [[10, 2.0], [20, 2.5]])


def test_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 1.0}\nbroken\n{"step": 2, "loss": 1.0}\n')
    with pytest.raises(ValueError, match=r"got 'broken' in .*metrics\.jsonl, line 2\. Remove"):
        read_points([path], "step")
