"""Records in a real MongoDB: as Sacred writes them, complete whatever happens on the way."""

import json
import threading

import gridfs
import pytest
from pymongo.errors import AutoReconnect

from scripts import upload_run
from tests.tracking.services import DATABASE, wait_until
from tracking.database import Database
from tracking.metrics import RunMetrics, now
from tracking.mirror import Mirror
from tracking.mirroring import Mirroring
from tracking.record import Record

POINTS = 5


@pytest.fixture
def database(server):
    with Database(server.url()) as made:
        yield made


class Run:
    """A record that grows.

    Args:
        folder: for the run and the folder of records.
    """

    def __init__(self, folder, number=0):
        self.folder = folder / f"run{number}"
        self.folder.mkdir()
        (folder / "code.py").write_text("print(1)\n")
        self.record = Record(str(folder / "runs"))
        experiment = {"name": "tiny", "base_dir": str(folder), "sources": [("code.py", "")]}
        config = {"n_layer": 2, "datasets": [["tiny", None]]}
        self.record.begin(experiment, config, {"command_line": ["main.py"]})
        self.metrics = RunMetrics(str(self.folder), "1")
        self.points = 0

    def grow(self, points=POINTS):
        with (self.folder / "metrics.jsonl").open("a") as file:
            for step in range(self.points, self.points + points):
                file.write(json.dumps({"step": step, "loss": 9.0 - step / 7, "lr": 0.1}) + "\n")
        self.points += points
        self.metrics.refresh()
        self.record.write_curves(self.metrics)
        self.record.beat(f"{self.points} steps\n", 2.5)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def curve(database, number, name="loss"):
    [found] = database.metrics.find({"run_id": number, "name": name})
    return found


def test_a_run_is_there_as_sacred_writes_it(run, database, tmp_path):
    run.grow()
    text = tmp_path / "text.txt"
    text.write_text("a sample")
    run.record.add_artifact("predictions_1_4.txt", str(text))
    number = Mirror(run.record.dir, database).update()
    document = database.runs.find_one({"_id": number})
    assert (number, document["status"], document["format"]) == (
        *(1, "RUNNING"),
        "MongoObserver-0.7.0",
    )
    assert document["config"] == {"n_layer": 2, "datasets": [["tiny", None]]}
    assert document["captured_out"] == "5 steps\n"
    assert document["result"] == 2.5
    assert (now() - document["heartbeat"]).total_seconds() < 3600
    names = {metric["name"]: metric["id"] for metric in document["info"]["metrics"]}
    assert set(names) == {"loss", "lr"}
    loss = curve(database, 1)
    assert str(loss["_id"]) == names["loss"]
    assert loss["steps"] == list(range(POINTS))
    assert loss["values"] == [9.0 - step / 7 for step in range(POINTS)]
    assert all(time.year >= 2020 for time in loss["timestamps"])
    [artifact], [[source, identifier]] = document["artifacts"], document["experiment"]["sources"]
    assert artifact["name"] == "predictions_1_4.txt"
    assert database.files.get(artifact["file_id"]).read() == b"a sample"
    assert source == "code.py"
    assert database.files.get(identifier).read() == b"print(1)\n"


def test_updates_bring_what_is_new_and_double_nothing(run, database):
    mirror = Mirror(run.record.dir, database)
    for _ in range(3):
        run.grow()
        assert [mirror.update(), mirror.update()] == [1, 1]
    Mirror(run.record.dir, database).update()  # that of another process
    assert curve(database, 1)["steps"] == list(range(3 * POINTS))
    assert database.metrics.count_documents({}) == 2
    assert len(list(database.files.find())) == 1


def test_a_write_whose_answer_is_lost_is_done_once(run, database, monkeypatch):
    mirror = Mirror(run.record.dir, database)
    run.grow()
    mirror.update()
    run.grow()
    collection = type(database.metrics)
    write = collection.update_one

    def write_without_answer(*words, **options):
        write(*words, **options)
        monkeypatch.undo()
        raise AutoReconnect("the connection was closed")

    monkeypatch.setattr(collection, "update_one", write_without_answer)
    with pytest.raises(AutoReconnect):
        mirror.update()
    mirror.update()
    for name in ("loss", "lr"):
        assert curve(database, 1, name)["steps"] == list(range(2 * POINTS))


def test_steps_that_are_done_again_replace_the_first(run, database):
    mirror = Mirror(run.record.dir, database)
    run.grow(6)
    mirror.update()
    (run.folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(4))
    )
    run.points = 4
    run.grow(1)
    mirror.update()
    assert curve(database, 1)["values"] == [1.0] * 4 + [9.0 - 4 / 7]


def test_a_single_point_is_drawn_as_a_short_line(run, database):
    run.grow(1)
    mirror = Mirror(run.record.dir, database)
    mirror.update()
    assert (curve(database, 1)["steps"], curve(database, 1)["values"]) == ([0, 1], [9.0, 9.0])
    run.grow(1)
    mirror.update()
    assert curve(database, 1)["steps"] == [0, 1]
    assert curve(database, 1)["values"][1] != 9.0


def test_a_run_that_goes_on_is_the_same_run(run, database):
    run.grow()
    run.record.failed_event(now(), ["why\n"])
    Mirror(run.record.dir, database).update()
    assert database.runs.find_one()["fail_trace"] == ["why\n"]
    run.record.close()
    later = Record(run.record.basedir)
    later.go_on(1, {"n_layer": 2})
    later.beat("more\n")
    Mirror(later.dir, database).update()
    [document] = database.runs.find()
    assert (document["_id"], document["status"]) == (1, "RUNNING")
    assert not {"fail_trace", "stop_time"} & document.keys()


def test_runs_that_start_at_once_have_numbers_of_their_own(server, tmp_path):
    with server.root() as client:
        client[DATABASE]["runs"].insert_one({"_id": "named by someone else"})
        client[DATABASE]["runs"].insert_one({"_id": 6})
    runs = [Run(tmp_path, number) for number in range(20)]
    numbers = []
    gate = threading.Barrier(20)

    def carry(run):
        database = Database(server.url())
        gate.wait(60)
        numbers.append(Mirror(run.record.dir, database).update())
        database.close()

    threads = [threading.Thread(target=carry, args=[run]) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(7, 27))
    with Database(server.url()) as database:
        for document in database.runs.find({"_id": {"$in": numbers}}):
            [[_, identifier]] = document["experiment"]["sources"]
            assert database.files.get(identifier).read() == b"print(1)\n"


def test_files_that_several_runs_store_at_once_are_whole(server):
    content = bytes(range(251)) * 2500  # in three pieces
    identifiers = []
    gate = threading.Barrier(12)

    def store():
        with Database(server.url()) as database:
            gate.wait(60)
            identifiers.append(database.store("source://code.py", content))

    threads = [threading.Thread(target=store) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(identifiers) == 12
    [identifier] = set(identifiers)
    with Database(server.url()) as database:
        assert database.files.get(identifier).read() == content
        other = database.store("source://code.py", b"another state of it")
        assert database.files.get(identifier).read() == content
        assert database.files.get(other).read() == b"another state of it"


@pytest.mark.parametrize(
    "emptied",
    [("runs", "metrics", "fs.files", "fs.chunks"), ("fs.files", "fs.chunks"), ("metrics",)],
)
def test_a_database_that_is_emptied_is_filled_again(run, database, server, emptied):
    mirror = Mirror(run.record.dir, database)
    run.grow()
    mirror.update()
    with server.root() as client:
        for name in emptied:
            client[DATABASE][name].drop()
    number = mirror.update()
    document = database.runs.find_one({"_id": number})
    [[_, identifier]] = document["experiment"]["sources"]
    assert database.files.get(identifier).read() == b"print(1)\n"
    assert curve(database, number)["steps"] == list(range(POINTS))


def test_an_outage_loses_no_point(run, server, caplog):
    caplog.set_level("INFO")
    server.stop()
    mirroring = Mirroring(run.record.dir, Database(server.url()), interval=0.05)
    mirroring.start()
    run.grow()
    wait_until(lambda: "cannot be written for now" in caplog.text, "a notice of the outage")
    server.start()
    wait_until(lambda: "is up to date again" in caplog.text, "a notice of its end")
    run.grow()
    server.stop()
    run.grow()
    server.start()
    run.grow()
    run.record.completed_event(now(), 2.5)
    mirroring.finish()
    with server.root() as client:
        database = client[DATABASE]
        assert database["runs"].find_one()["status"] == "COMPLETED"
        assert database["metrics"].find_one({"name": "loss"})["steps"] == list(range(4 * POINTS))
        assert gridfs.GridFS(database).find_one() is not None


def test_what_never_reached_the_database_is_uploaded_later(
    run, server, caplog, capsys, monkeypatch
):
    monkeypatch.setattr("tracking.mirroring.FINAL_SECONDS", 0.0)
    server.stop()
    mirroring = Mirroring(run.record.dir, Database(server.url()), interval=0.05)
    mirroring.start()
    run.grow()
    run.record.completed_event(now(), 2.5)
    mirroring.finish()
    assert f"nothing is lost: python scripts/upload_run.py {run.record.dir}" in caplog.text
    words = [run.record.dir, "--mongo_url", server.url()]
    server.start()
    assert upload_run.main(words) == upload_run.main(words) == 0
    name = f"127.0.0.1:{server.port}/{DATABASE}"
    assert capsys.readouterr().out == f"{run.record.dir}: run 1 in {name}\n" * 2
    with server.root() as client:
        [document] = client[DATABASE]["runs"].find()
        assert document["status"] == "COMPLETED"


@pytest.mark.parametrize(
    ("folder", "url", "message"),
    [
        ("missing", None, r"a record must be a folder that run_experiment.py has written; got "),
        (None, "postgres://x/y", r"--mongo_url must be mongodb://USER:PASSWORD@HOST:PORT/DATABASE"),
        (None, "", r"--mongo_url must be given; got none"),
    ],
)
def test_an_upload_that_cannot_be_is_one_line(run, server, folder, url, message, capsys):
    run.grow()
    url = server.url() if url is None else url
    with pytest.raises(SystemExit) as stop:
        upload_run.main([folder or run.record.dir, "--mongo_url", url])
    assert stop.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert "secret" not in line


def test_a_wrong_password_is_said_before_the_run(server):
    refused = r"got one whom it refuses \(Authentication failed"
    with (
        Database(server.url(password="wrong")) as database,
        pytest.raises(ValueError, match=refused) as no,
    ):
        database.check_access()
    assert "wrong" not in str(no.value)


def test_a_user_who_may_only_read_is_said_before_the_run(server):
    with server.root() as client:
        if not client[DATABASE].command("usersInfo", "reader")["users"]:
            client[DATABASE].command("createUser", "reader", pwd="secret", roles=["read"])
    refused = r"must name a user who may read and write .*; got one whom it refuses \(not auth"
    with (
        Database(server.url().replace("trainer", "reader")) as database,
        pytest.raises(ValueError, match=refused),
    ):
        database.check_access()
