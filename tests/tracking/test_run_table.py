"""Records as a table."""

import pytest

from scripts.list_runs import main
from tracking.metrics import now
from tracking.record import Record
from tracking.run_table import filter_rows, read_rows, sort_rows

EXPERIMENT = {"sources": [], "base_dir": ".", "dependencies": [], "repositories": []}


@pytest.fixture
def runs(tmp_path):
    """Three runs: complete, failed, and still going on."""
    folder = str(tmp_path / "runs")
    values = [("one", 2, 3.5), ("two", 12, 2.5), ("three", 12, None)]
    records = []
    for name, layers, loss in values:
        record = Record(folder)
        record.begin(EXPERIMENT | {"name": name}, {"n_layer": layers, "lr": 0.1}, {})
        record.info["latest"] = {"step": 7, "loss": 4.0, "piqa/acc": 0.5} | (
            {"val_loss": loss} if loss else {}
        )
        record.beat("")
        records.append(record)
    records[0].completed_event(now(), 3.5)
    records[1].failed_event(now(), ["why"])
    yield folder, records
    for record in records:
        record.close()


def ids(rows):
    return [row.fields["id"] for row in rows]


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([], [1, 2, 3]),
        (["val_loss < 3"], [2]),
        (["val_loss<=3.5"], [1, 2]),
        (["n_layer = 12", "val_loss > 0"], [2]),
        (["status == FAILED"], [2]),
        (["status != COMPLETED"], [2, 3]),
        (["name = 'three'"], [3]),
        (["step >= 8"], []),
        (["piqa/acc > 0.4", "id > 1"], [2, 3]),
        (["name < 3"], []),
        (["n_layer = '2'"], [1]),
        (["status = completed"], [1]),
        (["status != completed"], [2, 3]),
        (["started > 2000-01-01"], [1, 2, 3]),
    ],
)
def test_conditions(runs, conditions, found):
    assert ids(filter_rows(read_rows(runs[0]), conditions)) == found


def test_runs_without_a_value_are_last(runs):
    assert ids(sort_rows(read_rows(runs[0]), "val_loss")) == [2, 1, 3]


def test_a_run_whose_supervisor_is_gone_was_killed(runs):
    folder, records = runs
    assert [row.fields["status"] for row in read_rows(folder)] == ["COMPLETED", "FAILED", "RUNNING"]
    records[2].close()  # as the end of its process does
    assert read_rows(folder)[2].fields["status"] == "KILLED"


def test_the_table_shows_what_was_asked_for(runs, capsys):
    words = ["--runs_dir", runs[0], "n_layer = 12", "--sort", "val_loss", "--columns", "lr"]
    assert main(words) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == [
        *("id", "status", "name", "step", "loss", "val_loss", "started", "n_layer", "lr")
    ]
    assert [line.split()[0] for line in lines] == ["2", "3"]
    assert lines[1].split()[5] == "-"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["val_loss"], "a condition must be FIELD < VALUE, or with"),
        (["val_los < 3"], "got val_los, which is in none. Did you mean val_loss?"),
        (["loss << 3"], "a condition must be FIELD < VALUE"),
        (["loss < 3 and step > 5"], "several conditions as several arguments"),
        (["loss < 1 or 1=1"], "several conditions as several arguments"),
        (["step >= 1,000"], "step >= must be followed by a number, such as 1000 or 2.5; got 1,000"),
        (["loss = banana"], "loss = must be followed by a number, as it has in all records; got"),
        (["n_layer != true"], "n_layer != must be followed by a number"),
        (["status = interruptd"], "got interruptd. Did you mean INTERRUPTED?"),
        (["status = 3"], "status must be one of COMPLETED, FAILED, INTERRUPTED, KILLED, RUNNING"),
        (["loss < NaN"], "a value must be a finite number or a text; got NaN"),
        (["--runs_dir", "nowhere"], "--runs_dir must be a folder of records; got nowhere"),
        (["--runs_dir", "gs://b/x"], "--runs_dir: must be a local folder; got gs://b/x"),
        (["--sort", "nothing"], "a field must be in a record; got nothing, which is in none"),
    ],
)
def test_mistakes_are_one_line(runs, words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--runs_dir", runs[0], *words])
    assert stop.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_without_records_there_is_a_head_alone(tmp_path, capsys):
    assert main(["--runs_dir", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_name_may_look_like_a_number(runs):
    row = read_rows(runs[0])[0]
    row.fields["name"] = "12"
    assert filter_rows([row], ["name = 12"]) == [row]


@pytest.mark.parametrize(
    ("name", "content"), [("run.json", "{"), ("info.json", "{"), ("run.json", '{"status": 1}')]
)
def test_a_damaged_record_does_not_hide_the_others(runs, name, content, caplog):
    path = f"{runs[0]}/2/{name}"
    with open(path, "w") as file:
        file.write(content)
    assert ids(read_rows(runs[0])) == [1, 3]
    [message] = caplog.messages
    assert path in message
