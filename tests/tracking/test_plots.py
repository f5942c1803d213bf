"""Pictures of runs."""

import json
import re

import pytest

from scripts.plot_runs import main
from tracking.plots import draw, names_of, read_curves

STEPS = range(10, 50, 10)


def write_run(folder, start=10.0):
    folder.mkdir()
    lines = [
        {"step": step, "loss": start - step / 9, "learning_rate": 0.1, "tokens_per_second": 70.0}
        for step in STEPS
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "eval_tiny.jsonl").write_text('{"global_step": 40, "loss": 6.0}\n')
    return str(folder)


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "first")


def test_a_run_is_drawn_into_its_folder(run, tmp_path, capsys):
    assert main([run]) == 0
    assert capsys.readouterr().out == f"{run}/loss.png\n{run}/loss.html\n"
    assert (tmp_path / "first/loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_needs_no_other_file(run, tmp_path):
    main([run])
    page = (tmp_path / "first/loss.html").read_text()
    assert "<svg" in page
    assert not re.search(r"(src|href)=\"(?!#)", page)
    assert "<th>val_loss</th>" in page
    assert "<td>40</td>" in page
    assert "<td>6</td>" in page


def test_runs_are_drawn_together(run, tmp_path, capsys):
    other = write_run(tmp_path / "second", start=12.0)
    out = tmp_path / "both"
    assert main([run, other, "--out", str(out)]) == 0
    page = out.with_suffix(".html").read_text()
    assert "first" in page
    assert "second" in page
    assert out.with_suffix(".png").exists()


def test_names_are_no_formulas(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("a$b_{$", "x_$y_{$")]
    out = tmp_path / "both"
    assert main([*runs, "--out", str(out)]) == 0
    figure = draw({name: read_curves(name) for name in runs}, "cost $5_{$ x")
    texts = [figure.axes[0].get_title(loc="left")]
    texts += [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert {"cost $5_{$ x", *runs} <= set(texts)


def test_every_panel_has_the_points_of_every_run(run, tmp_path):
    other = write_run(tmp_path / "second", start=12.0)
    figure = draw({"a": read_curves(run), "b": read_curves(other)}, "title")
    for axes, lines in zip(figure.axes, (4, 2, 2)):  # with the loss on held-out records
        assert len(axes.lines) == lines
        assert list(axes.lines[0].get_xdata()) == list(STEPS)
    assert list(figure.axes[0].lines[2].get_ydata()) == [12.0 - step / 9 for step in STEPS]
    assert list(figure.axes[0].lines[1].get_ydata()) == [6.0]


def test_a_record_is_drawn_as_its_run(run, tmp_path):
    record = tmp_path / "7"
    record.mkdir()
    (record / "run.json").write_text("{}")
    curves = read_curves(run)
    (record / "metrics.json").write_text(json.dumps(curves))
    assert read_curves(str(record)) == curves


def test_names_tell_runs_apart():
    assert names_of(["runs/a", "runs/b/"]) == ["a", "b"]
    assert names_of(["x/run", "y/run"]) == ["x/run", "y/run"]


def test_names_that_matplotlib_hides_are_in_the_legend(tmp_path):
    folders = [tmp_path / name for name in ("_a", "b")]
    for folder in folders:
        write_run(folder)
    names = names_of([str(folder) for folder in folders])
    figure = draw({name: read_curves(folder) for name, folder in zip(names, folders)}, "two")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[0::2] == ["./_a", "b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "a run must hold metrics.jsonl with at least one loss, or be a record"),
        (["gs://bucket/run"], "run: must be a local folder; got gs://bucket/run"),
        (["a", "b"], "--out must be given with several runs; got none"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
