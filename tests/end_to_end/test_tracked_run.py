"""run_experiment.py: what is recorded of runs that end well, are stopped, or fail."""

import json
import os
import re
import signal
import subprocess
import sys

import gridfs
import pytest

from tests.browser import chromium
from tests.end_to_end.workshop import ROOT, finish, wait_for_step
from tests.tracking.services import DATABASE, PASSWORD, WEB_USER, mongo_server, omniboard

STEPS, STEPS_PER_CHECKPOINT = 360, 90


def start(workshop, *words, runs="records", **variables):
    """Starts ``python run_experiment.py`` in the workshop; records are in ``runs``."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run_experiment.py"), *map(str, words), "--runs_dir", runs],
        cwd=workshop.folder,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def record(workshop, runs, number, name="run.json"):
    return json.loads((workshop.folder / runs / str(number) / name).read_text())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with mongo_server(tmp_path_factory.mktemp("mongo") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def journey(workshop, server):
    """A run that is stopped by SIGTERM, and started again while its database is away.

    Returns:
        Both results, and record, curves and database as the first one left them.
    """
    config = workshop.config(
        "tracked",
        train_steps=STEPS,
        eval_steps=1,
        predict_steps=1,
        eval_batch_size=2,
        predict_batch_size=2,
        predict_max_steps=2,
    )
    words = ["--model", config, "--steps_per_checkpoint", STEPS_PER_CHECKPOINT]
    words += ["--experiment_name", "a tiny GPT"]
    process = start(workshop, *words, runs="journey", MONGO_URL=server.url())
    wait_for_step(workshop, "tracked", STEPS_PER_CHECKPOINT + 10, process)
    process.send_signal(signal.SIGTERM)
    first = finish(process)
    stopped, curves = (
        record(workshop, "journey", 1, f"{name}.json") for name in ("run", "metrics")
    )
    with server.root() as client:
        [document] = client[DATABASE]["runs"].find()
    server.stop()
    process = start(workshop, *words, runs="journey", MONGO_URL=server.url())
    wait_for_step(workshop, "tracked", 2 * STEPS_PER_CHECKPOINT + 10, process)
    server.start()
    second = finish(process)
    return first, stopped, curves, document, second


def test_a_stopped_run_is_interrupted(journey, workshop):
    first, stopped, _, document, _ = journey
    assert first.code == 0
    assert first.err.splitlines()[-1] == "journey/1: INTERRUPTED (stopped by SIGTERM)"
    assert stopped["status"] == document["status"] == "INTERRUPTED"
    assert journey[2]["loss"]["steps"][-1] < STEPS


def test_resuming_continues_the_same_record(journey, workshop):
    second = journey[-1]
    assert second.code == 0, second.err
    assert second.err.splitlines()[-1] == "journey/1: COMPLETED"
    assert not (workshop.folder / "journey" / "2").exists()
    run, info = (record(workshop, "journey", 1, name) for name in ("run.json", "info.json"))
    assert run["status"] == "COMPLETED"
    assert [start["step"] > STEPS_PER_CHECKPOINT for start in info["starts"]] == [False, True]
    assert all(len(start.get("commit", "")) in (0, 40) for start in info["starts"])
    output = (workshop.folder / "journey/1/cout.txt").read_text()
    assert "step 1/" in output
    assert "resuming from runs/tracked/model.ckpt-" in output
    assert f"done: runs/tracked/model.ckpt-{STEPS}\n" in output


def test_curves_are_those_of_the_run(journey, workshop):
    curves = record(workshop, "journey", 1, "metrics.json")
    lines = workshop.metrics("tracked")
    for name in ("loss", "learning_rate", "grad_norm", "tokens_per_second", "epoch"):
        assert curves[name]["steps"] == [line["step"] for line in lines]
        assert curves[name]["values"] == [line[name] for line in lines]
        assert curves[name]["timestamps"] == sorted(curves[name]["timestamps"])
    file = workshop.run_folder("tracked") / "eval_1.jsonl"
    scores = [json.loads(line) for line in file.read_text().splitlines()]
    assert curves["val_loss"]["steps"] == [score["global_step"] for score in scores]
    assert curves["val_loss"]["values"] == [score["loss"] for score in scores]
    assert curves["val_loss"]["steps"][:: len(scores) - 1] == [0, STEPS]
    assert record(workshop, "journey", 1)["result"] == curves["val_loss"]["values"][-1]
    earlier = journey[2]["loss"]
    assert curves["loss"]["timestamps"][: len(earlier["steps"])][:20] == earlier["timestamps"][:20]


def test_config_samples_and_sources_are_in_the_record(journey, workshop):
    folder = workshop.folder / "journey/1"
    config = record(workshop, "journey", 1, "config.json")
    assert (config["n_embd"], config["train_steps"]) == (14, STEPS)
    resolved = record(workshop, "journey", 1, "resolved_config.json")
    assert resolved == json.loads((workshop.run_folder("tracked") / "config.json").read_text())
    run = record(workshop, "journey", 1)
    samples = f"predictions_1_{STEPS}.txt"
    assert {samples, "curves.png"} <= set(run["artifacts"])
    assert (folder / samples).read_text() == (workshop.run_folder("tracked") / samples).read_text()
    sources = {name for name, _ in run["experiment"]["sources"]}
    assert {"main.py", "model_fns.py", "models/dimensions.py", "configs/schema.py"} <= sources
    assert any(package.startswith("tensorflow==") for package in run["experiment"]["dependencies"])
    assert run["meta"]["command_line"][:2] == ["main.py", "--model"]


def test_a_database_that_was_away_has_everything(journey, workshop, server):
    assert "cannot be written for now" in journey[-1].err
    assert "is up to date again" in journey[-1].err
    curves = record(workshop, "journey", 1, "metrics.json")
    with server.root() as client:
        [document] = client[DATABASE]["runs"].find()
        assert document["status"] == "COMPLETED"
        sources = dict(document["experiment"]["sources"])
        code = gridfs.GridFS(client[DATABASE]).get(sources["models/dimensions.py"]).read()
        assert code == (ROOT / "models/dimensions.py").read_bytes()
        stored = {curve["name"]: curve for curve in client[DATABASE]["metrics"].find()}
    assert {name: curve["steps"] for name, curve in stored.items()} == {
        name: curve["steps"] for name, curve in curves.items()
    }
    assert all(stored[name]["values"] == curve["values"] for name, curve in curves.items())


def test_the_run_is_seen_in_omniboard(journey, workshop, server, tmp_path):
    """With SCREENSHOTS, the folder for it, this takes the picture of docs/tracking.md."""
    login = {"username": WEB_USER, "password": PASSWORD}
    with omniboard(server.url(), tmp_path) as address, chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 900}, http_credentials=login)
        problems = []
        page.on("pageerror", lambda error: problems.append(error))
        page.goto(address)
        page.click("text=►")
        details = page.locator(".drilldown-view")
        curves = record(workshop, "journey", 1, "metrics.json")
        details.locator("text.legendtext").nth(len(curves) - 1).wait_for()
        shown = details.locator("text.legendtext").all_text_contents()
        assert sorted(shown) == sorted(curves)

        choice = details.locator("button.multiselect").first
        choice.click()
        for name in ("Select all", "loss", "val_loss"):
            named = re.compile(rf"^\s*{name}\s*$")
            details.locator(".multiselect-container label", has_text=named).first.click()
        choice.click()
        details.locator("text.legendtext").nth(2).wait_for(state="detached")
        shown = details.locator("text.legendtext").all_text_contents()
        assert sorted(shown) == ["loss", "val_loss"]
        drawn = details.locator(".scatterlayer path.js-line")
        drawn.nth(1).wait_for()
        paths = [drawn.nth(number).get_attribute("d") for number in range(2)]
        assert [len(re.findall("[ML]", path)) > 3 for path in paths] == [True, True]
        if "SCREENSHOTS" in os.environ:
            page.screenshot(path=os.path.join(os.environ["SCREENSHOTS"], "omniboard.png"))

        for tab, text in {
            "Captured Out": f"done: runs/tracked/model.ckpt-{STEPS}",
            "Artifacts": f"predictions_1_{STEPS}.txt",
            "Source Files": "commands/training.py",
            "Config": '"train_batch_size"',
        }.items():
            details.locator("a", has_text=re.compile(f"^{tab}$")).click()
            details.get_by_text(text).first.wait_for(state="attached")
        assert not problems


def test_a_failed_run_leaves_its_traceback(workshop):
    config = workshop.config("diverging", lr=1e30, warmup_steps=0, gradient_clipping=None)
    result = finish(start(workshop, "--model", config, "--restart_wait", 0))
    assert result.code == 1
    assert "main.py: error: " in result.err
    assert "restart" not in result.err  # it would come to the same step
    number = int(result.err.splitlines()[-1].partition(":")[0].rpartition("/")[2])
    run = record(workshop, "records", number)
    assert run["status"] == "FAILED"
    trace = "".join(run["fail_trace"])
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "NonFiniteLossError: " in trace
    assert trace.endswith("the training process ended with exit code 1\n")


def test_mistakes_are_one_line_and_leave_no_record(workshop):
    result = finish(start(workshop, "--model", "tracked.json", "--set", "n_head=3", runs="none"))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("run_experiment.py: error: ")
    assert "n_embd: must be a multiple of n_head 3" in result.err
    assert not (workshop.folder / "none").exists()


def test_other_hosts_have_no_metrics_to_track(workshop):
    hosts = {"chief": ["h0:1"], "worker": ["h1:1"]}
    variable = json.dumps({"cluster": hosts, "task": {"type": "worker", "index": 0}})
    result = finish(start(workshop, "--model", "tracked.json", runs="none", TF_CONFIG=variable))
    assert result.code == 2
    assert "must run on the chief, which has the metrics; got worker 0 (h1:1)" in result.err
