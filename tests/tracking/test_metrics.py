"""Curves read from the files of a run while they grow, shrink and are replaced."""

import json
import os

import pytest

from tracking.metrics import Curve, RunMetrics


def lines_of(entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def entry(step, **more):
    return {"step": step, "loss": 10.0 - step / 7, "learning_rate": 0.1} | more


@pytest.fixture
def file(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def metrics(tmp_path):
    return RunMetrics(str(tmp_path), "5")


def points(metrics, name="loss"):
    curve = metrics.curves[name]
    return list(zip(curve.steps, curve.values))


def test_lines_are_taken_as_they_come(file, metrics):
    assert not metrics.refresh()
    first, second = lines_of([entry(1)]), lines_of([entry(3), entry(5)])
    file.write_text(first + second[:20])
    assert metrics.refresh()
    assert points(metrics) == [(1, entry(1)["loss"])]
    with file.open("a") as stream:
        stream.write(second[20:])
    assert metrics.refresh()
    assert [step for step, _ in points(metrics)] == [1, 3, 5]
    assert metrics.last_step == 5
    assert not metrics.refresh()


def test_a_resumed_run_does_its_last_steps_again(file, metrics):
    file.write_text(lines_of([entry(step) for step in range(1, 8)]))
    metrics.refresh()
    times = list(metrics.curves["loss"].timestamps)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(lines_of([entry(step) for step in range(1, 5)]))
    os.replace(temporary, file)
    with file.open("a") as stream:
        stream.write(lines_of([entry(step, loss=1.0) for step in range(5, 12)]))
    metrics.refresh()
    assert [value for _, value in points(metrics)][4:] == [1.0] * 7
    assert [step for step, _ in points(metrics)] == list(range(1, 12))
    assert metrics.curves["loss"].timestamps[:4] == times[:4]


def test_a_deleted_run_has_no_points(file, metrics):
    file.write_text(lines_of([entry(1), entry(2)]))
    metrics.refresh()
    file.unlink()
    assert metrics.refresh()
    assert metrics.curves == {}


def test_times_of_an_earlier_process_are_kept(file, tmp_path, metrics):
    file.write_text(lines_of([entry(1), entry(2)]))
    metrics.refresh()
    earlier = {name: curve.as_json() for name, curve in metrics.curves.items()}
    later = RunMetrics(str(tmp_path), "5", earlier)
    later.refresh()
    assert later.curves["loss"].timestamps == metrics.curves["loss"].timestamps


def test_no_point_is_drawn_of_what_is_no_number(file, metrics):
    file.write_text(
        '{"step": 1, "loss": NaN, "noise_scale": null, "grad_norm": Infinity, "epoch": 0.5}\n'
        'torn {"step\n[1]\n{"loss": 3}\n{"step": 2, "loss": 2.5, "note": "x", "flag": true}\n'
    )
    metrics.refresh()
    assert set(metrics.curves) == {"epoch", "loss"}
    assert points(metrics) == [(2, 2.5)]


def test_scores_on_held_out_records_have_names_of_their_own(tmp_path, file, metrics):
    file.write_text(lines_of([entry(1), entry(2)]))
    scores = [
        {"global_step": step, "loss": 4.0 - step / 9, "bits per byte": 2.0, "tokens": 22}
        for step in (0, 20, 20)
    ]
    scores += [{"global_step": 20, "lambada_openai/acc": 0.25}]
    (tmp_path / "eval_5.jsonl").write_text(lines_of(scores))
    (tmp_path / "eval_6.jsonl").write_text(lines_of([{"global_step": 7, "loss": 9.0}]))
    metrics.refresh()
    assert points(metrics, "val_loss") == [(0, 4.0), (20, 4.0 - 20 / 9)]
    assert points(metrics, "lambada_openai/acc") == [(20, 0.25)]
    assert set(metrics.curves) == {
        *("loss", "learning_rate", "lambada_openai/acc"),
        *("val_loss", "val_bits_per_byte"),
    }
    assert metrics.last_step == 2


@pytest.mark.parametrize(
    ("count", "stride"), [(8, 1), (9, 2), (16, 2), (17, 4), (33, 8), (1001, 128)]
)
def test_a_long_curve_is_thinned_evenly(count, stride):
    curve = Curve(limit=8)
    for step in range(count):
        curve.add(step, float(step), str(step))
    assert curve.steps == list(range(0, count, stride))
    assert curve.values == [float(step) for step in curve.steps]
    assert curve.timestamps == [str(step) for step in curve.steps]
    assert curve.last == count - 1


def test_only_lines_that_were_added_are_signs_of_life(file, metrics):
    file.write_text(lines_of([entry(1), entry(2), entry(3)]))
    metrics.refresh()
    file.write_text(lines_of([entry(1), entry(2)]))
    metrics.refresh()
    assert metrics.lines == 3
    with file.open("a") as stream:
        stream.write(lines_of([entry(3)]))
    metrics.refresh()
    assert metrics.lines == 4
