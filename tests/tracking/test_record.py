"""Local records: Sacred's format, one number each, continued and never torn."""

import json
import threading

import pytest

from tracking.metrics import RunMetrics, now
from tracking.record import Record, is_written

EXPERIMENT = {
    "name": "tiny",
    "sources": [],
    "base_dir": ".",
    "dependencies": [],
    "repositories": [],
    "mainfile": "main.py",
}


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def begin(runs, **config):
    record = Record(str(runs))
    record.begin(dict(EXPERIMENT), config, {"command_line": ["main.py"]})
    return record


def run_json(runs, number=1):
    return json.loads((runs / str(number) / "run.json").read_text())


def test_runs_that_start_at_once_have_numbers_of_their_own(runs):
    records = []
    gate = threading.Barrier(20)

    def start():
        gate.wait(30)
        records.append(begin(runs))

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record.id for record in records) == list(range(1, 21))
    assert len({record.key for record in records}) == 20


def test_a_record_says_what_was_run_and_what_came_of_it(runs, tmp_path):
    source = tmp_path / "code.py"
    source.write_text("print(1)\n")
    record = Record(str(runs))
    experiment = EXPERIMENT | {"sources": [("code.py", "")], "base_dir": str(tmp_path)}
    record.begin(experiment, {"n_layer": 2}, {"command_line": ["main.py"]})
    record.beat("some output\n", 3.5)
    record.add_artifact("text.txt", str(source))
    source.write_text("print(2)\n")
    record.add_artifact("text.txt", str(source))
    run = run_json(runs)
    assert (run["status"], run["result"], run["artifacts"]) == ("RUNNING", 3.5, ["text.txt"])
    [[name, stored]] = run["experiment"]["sources"]
    assert name == "code.py"
    assert (runs / stored).read_text() == "print(1)\n"
    assert (runs / "1/text.txt").read_text() == "print(2)\n"
    assert (runs / "1/cout.txt").read_text() == "some output\n"
    assert json.loads((runs / "1/config.json").read_text()) == {"n_layer": 2}


def test_a_record_is_written_by_one_process(runs):
    record = begin(runs)
    assert is_written(record.dir)
    with pytest.raises(ValueError, match=r"must be tracked by one process at a time; got .*/1"):
        Record(str(runs)).go_on(1, {})
    record.close()
    assert not is_written(record.dir)


def test_a_record_goes_on(runs, tmp_path):
    record = begin(runs, lr=0.1)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    metrics = RunMetrics(str(tmp_path), "1")
    metrics.refresh()
    record.write_curves(metrics)
    record.failed_event(now(), ["why\n"])
    record.close()
    later = Record(str(runs))
    later.go_on(1, {"lr": 0.2})
    assert later.key == record.key
    later.beat("")
    run = run_json(runs)
    assert run["status"] == "RUNNING"
    assert "fail_trace" not in run
    assert "stop_time" not in run
    assert json.loads((runs / "1/config.json").read_text()) == {"lr": 0.2}
    assert json.loads((runs / "1/metrics.json").read_text())["loss"]["values"] == [2.0]


def test_a_refused_start_changes_nothing(runs):
    record = begin(runs, lr=0.1)
    record.completed_event(now(), 2.0)
    record.close()
    before = run_json(runs)
    later = Record(str(runs))
    later.go_on(1, {"lr": 0.2})
    later.beat("")
    later.put_back()
    assert run_json(runs) == before
    assert json.loads((runs / "1/config.json").read_text()) == {"lr": 0.1}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", None, r"runs/1/run.json must be there to continue the record; got no such"),
        ("run.json", "{", r"runs/1/run.json must be a JSON file; got one that is damaged"),
        ("info.json", "[1]", r"runs/1/info.json must hold a JSON object; got list"),
    ],
)
def test_a_damaged_file_of_a_record_is_named(runs, name, content, message):
    begin(runs).close()
    path = runs / "1" / name
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        Record(str(runs)).go_on(1, {})
