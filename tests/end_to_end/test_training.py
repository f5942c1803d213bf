"""Training through the command line: what a run leaves, and that no interruption changes it."""

import json
import math
import os
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from configs.load import load_config
from tests.end_to_end.workshop import (
    BATCH,
    LOG_EVERY,
    STEPS,
    STEPS_PER_CHECKPOINT,
    Result,
    finish,
    once,
    wait_for_step,
)

RECORDS = 23
METRICS = {"step", "loss", "learning_rate", "grad_norm", "tokens_per_second", "epoch"}
LOGGED = [1, *range(LOG_EVERY, STEPS + 1, LOG_EVERY)]


def assert_same(left, right):
    """Equal to the bit, in every variable: weights, optimizer slots and step."""
    assert left.keys() == right.keys()
    different = [name for name in left if not np.array_equal(left[name], right[name])]
    assert not different


def without_speed(line):
    return {key: value for key, value in line.items() if key != "tokens_per_second"}


# ---- a run from start to end -------------------------------------------------------------------


def test_a_run_ends_by_itself(trained):
    assert trained.code == 0
    assert trained.out == ""  # stdout is for results
    last = trained.err.splitlines()[-1]
    assert last.endswith(f"done: runs/trained/model.ckpt-{STEPS}")
    assert "Traceback" not in trained.err
    assert "Warning" not in trained.err


def test_progress_without_a_terminal_is_plain_lines(trained, workshop):
    steps = [line for line in trained.err.splitlines() if f"/{STEPS}  loss " in line]
    assert len(steps) == len(LOGGED)
    assert f"step {STEPS}/{STEPS}  loss " in steps[-1]
    assert "\r" not in trained.err
    log = (workshop.folder / "logs" / "trained.log").read_text()
    assert log.startswith(trained.err)  # other commands on this model append to it


def test_metrics_hold_a_line_per_interval(trained, workshop):
    lines = workshop.metrics("trained")
    assert [line["step"] for line in lines] == LOGGED
    for line in lines:
        assert line.keys() == METRICS
        assert all(math.isfinite(value) for value in line.values())
        assert line["epoch"] == pytest.approx(line["step"] * BATCH / RECORDS, abs=1e-4)
        assert line["tokens_per_second"] > 0
        assert line["grad_norm"] > 0
    assert lines[0]["loss"] == pytest.approx(math.log(60), abs=0.2)  # as good as guessing
    assert lines[-1]["loss"] < 2.5


def test_learning_rate_follows_the_schedule(trained, workshop):
    for line in workshop.metrics("trained"):
        made = line["step"] - 1  # updates before this one
        decayed = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * made / STEPS))
        expected = 0.01 * decayed * min(made / 3, 1)
        assert line["learning_rate"] == pytest.approx(expected, rel=1e-5)


def test_resolved_config_loads_again(trained, workshop):
    file = workshop.run_folder("trained") / "config.json"
    first = load_config(str(workshop.folder / "trained.json"), [], STEPS_PER_CHECKPOINT)
    again = load_config(str(file), [], STEPS_PER_CHECKPOINT)
    assert again == first
    assert again.warnings == first.warnings
    assert json.loads(file.read_text()) == first.to_json_dict()


def test_the_newest_checkpoints_are_kept(trained, workshop):
    every = range(0, STEPS + 1, STEPS_PER_CHECKPOINT)
    assert workshop.checkpoints("trained") == list(every)[-5:]  # max_to_keep by default
    state = tf.train.get_checkpoint_state(str(workshop.run_folder("trained")))
    names = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
    assert names == [f"model.ckpt-{step}" for step in list(every)[-5:]]
    assert state.model_checkpoint_path.endswith(f"model.ckpt-{STEPS}")


def test_checkpoints_hold_weights_and_optimizer(trained, workshop):
    variables = workshop.variables("trained")
    assert variables["global_step"] == STEPS
    weights = [name for name in variables if not name.endswith(("adam_m", "adam_v"))]
    weights.remove("global_step")
    assert {"gpt2/wte", "gpt2/wpe", "gpt2/h0/attn/q", "gpt2/h1/norm_1/g"} <= set(weights)
    slots = {f"{name}/{slot}" for name in weights for slot in ("adam_m", "adam_v")}
    assert variables.keys() == {*weights, *slots, "global_step"}
    assert all(np.isfinite(value).all() for value in variables.values())
    assert all(np.abs(variables[f"{name}/adam_v"]).max() > 0 for name in weights)


def test_a_run_that_is_done_says_so(trained, workshop, program):
    config = workshop.copy_run("trained", "done")
    files = sorted(workshop.run_folder("done").iterdir())
    before = [file.stat().st_mtime_ns for file in files]
    start = time.monotonic()
    result = program("--model", config)
    assert time.monotonic() - start < 5.0
    assert result.code == 0
    assert f"runs/done is trained: {STEPS} of {STEPS} steps. Raise train_steps" in result.err
    assert "building" not in result.err
    assert sorted(workshop.run_folder("done").iterdir()) == files
    assert [file.stat().st_mtime_ns for file in files] == before


def test_step_n_holds_exactly_n_updates(workshop, program):
    """Gradients clipped to nothing leave weight decay, which multiplies by 1 - 0.2 * 0.25."""
    config = workshop.config(
        "counted",
        train_steps=7,
        lr=0.2,
        weight_decay=0.25,
        gradient_clipping=1e-30,
        warmup_steps=0,
        lr_decay=None,
        lr_decay_end=None,
        max_to_keep=9,
    )
    assert program("--model", config, "--steps_per_checkpoint", 3).code == 0
    assert workshop.checkpoints("counted") == [3, 6, 7]
    first = workshop.variables("counted", 3)["gpt2/h0/attn/q"]
    for step in (3, 6, 7):
        variables = workshop.variables("counted", step)
        assert variables["global_step"] == step
        expected = first * 0.95 ** (step - 3)
        np.testing.assert_allclose(variables["gpt2/h0/attn/q"], expected, rtol=1e-5)


# ---- interruptions -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interrupted(workshop):
    """A run that is killed, resumed, asked to stop twice and resumed each time."""

    def make():
        config = workshop.config("interrupted")
        command = ["--model", config, "--steps_per_checkpoint", STEPS_PER_CHECKPOINT]
        ends = []
        for number, step in (
            (signal.SIGKILL, STEPS_PER_CHECKPOINT + 10),
            (signal.SIGTERM, 2 * STEPS_PER_CHECKPOINT + 10),
            (signal.SIGINT, 3 * STEPS_PER_CHECKPOINT + 5),
        ):
            process = workshop.start(*command)
            wait_for_step(workshop, "interrupted", step, process)
            process.send_signal(number)
            result = finish(process)
            metrics = workshop.run_folder("interrupted") / "metrics.jsonl"
            ends.append((result, workshop.checkpoints("interrupted"), metrics.read_text()))
        return [*ends, (workshop.run(*command), workshop.checkpoints("interrupted"), "")]

    return [
        (Result(*result), checkpoints, [json.loads(line) for line in text.splitlines()])
        for result, checkpoints, text in once(workshop, "interrupted", make)
    ]


def test_kill_leaves_the_checkpoint_before(interrupted):
    result, checkpoints, lines = interrupted[0]
    assert result.code == -signal.SIGKILL
    assert checkpoints[-1] < lines[-1]["step"]  # work is lost, and done again


@pytest.mark.parametrize(("number", "name"), [(1, "SIGTERM"), (2, "SIGINT")])
def test_signals_save_and_stop(interrupted, number, name):
    result, checkpoints, lines = interrupted[number]
    assert result.code == 0
    assert result.out == ""
    assert f"{name}: saving and stopping after this step" in result.err
    step = lines[-1]["step"]
    assert step < STEPS
    assert checkpoints[-1] == step
    assert result.err.splitlines()[-1].endswith(
        f"stopped by {name}: runs/interrupted/model.ckpt-{step}"
    )


def test_each_run_goes_on_where_the_one_before_stopped(interrupted):
    for before, after in zip(interrupted, interrupted[1:]):
        assert f"resuming from runs/interrupted/model.ckpt-{before[1][-1]}\n" in after[0].err
    assert interrupted[-1][0].code == 0


def test_an_interrupted_run_equals_an_unbroken_one(trained, interrupted, workshop):
    assert workshop.checkpoints("interrupted")[-1] == STEPS
    assert len(workshop.checkpoints("interrupted")) == 5  # those of all its processes together
    assert_same(workshop.variables("interrupted"), workshop.variables("trained"))


def test_metrics_of_an_interrupted_run_have_no_duplicates(trained, interrupted, workshop):
    lines = workshop.metrics("interrupted")
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps))
    assert set(steps) >= set(LOGGED)
    unbroken = {line["step"]: without_speed(line) for line in workshop.metrics("trained")}
    both = [line for line in lines if line["step"] in unbroken]
    assert len(both) == len(LOGGED)
    for line in both:
        assert without_speed(line) == unbroken[line["step"]]


# ---- meshes ------------------------------------------------------------------------------------

TWO = ["--gpu_ids", "device:CPU:0", "device:CPU:1"]
SPLIT = {"mesh_shape": "x:2", "layout": "batch:x"}
SHORT = {"train_steps": 20, "lr": 0.001, "log_every_steps": 1}


@pytest.fixture(scope="module")
def on_two(workshop):
    """The run ``two``, on two virtual devices."""

    def make():
        config = workshop.config("two", **SHORT, **SPLIT)
        return workshop.run("--model", config, "--steps_per_checkpoint", 10, *TWO)

    result = Result(*once(workshop, "two", make))
    assert result.code == 0, result.err


def test_equal_runs_on_a_mesh_are_equal(on_two, workshop, program):
    config = workshop.config("two_again", **SHORT, **SPLIT)
    assert program("--model", config, "--steps_per_checkpoint", 10, *TWO).code == 0
    assert_same(workshop.variables("two_again"), workshop.variables("two"))
    first, second = workshop.metrics("two"), workshop.metrics("two_again")
    assert [without_speed(line) for line in first] == [without_speed(line) for line in second]


def test_a_run_goes_on_on_another_mesh(on_two, workshop, program):
    config = workshop.copy_run("two", "moved", step=10, **SHORT)
    assert program("--model", config).code == 0
    moved, stayed = workshop.variables("moved"), workshop.variables("two")
    for name in stayed:
        np.testing.assert_allclose(moved[name], stayed[name], rtol=0, atol=1e-6, err_msg=name)
    first, second = workshop.metrics("moved"), workshop.metrics("two")
    assert [line["step"] for line in first] == list(range(1, 21))
    for line, other in zip(first, second):
        assert without_speed(line) == pytest.approx(without_speed(other), rel=1e-5)


def test_tensorboard_shows_what_the_metrics_say(on_two, workshop):
    [events] = workshop.run_folder("two").glob("events.out.tfevents.*")
    shown = {"loss": {}, "learning_rate": {}}
    for event in tf.compat.v1.train.summary_iterator(str(events)):
        for value in event.summary.value:
            if value.tag in shown:
                shown[value.tag][event.step] = value.simple_value
    lines = workshop.metrics("two")
    assert [line["step"] for line in lines] == list(range(1, 21))
    for tag, values in shown.items():
        assert values == {line["step"]: pytest.approx(line[tag], rel=1e-6) for line in lines}


# ---- what ends or refuses a run ----------------------------------------------------------------


@pytest.mark.parametrize("steps_per_checkpoint", [1, 100])
def test_a_loss_that_is_no_number_stops_the_run(trained, workshop, program, steps_per_checkpoint):
    name = f"diverged_{steps_per_checkpoint}"
    config = workshop.copy_run("trained", name, train_steps=STEPS + 100, lr=1e30)
    result = program("--model", config, "--steps_per_checkpoint", steps_per_checkpoint)
    assert result.code == 1
    assert result.out == ""
    message = result.err.splitlines()[-1]
    # The first update makes the weights huge; the second step shows it.
    expected = f"main.py: error: loss must be finite; got nan at step {STEPS + 2}. "
    assert message.startswith(expected)
    # A checkpoint that already gives that loss is not a good one.
    assert f"Last good checkpoint: runs/{name}/model.ckpt-{STEPS}. " in message
    assert "Traceback" not in result.err
    assert workshop.checkpoints(name)[-1] < STEPS + 2
    newest = tf.train.latest_checkpoint(str(workshop.run_folder(name)))
    assert newest.endswith(f"model.ckpt-{STEPS}")  # from which a resume goes on
    assert np.isfinite(workshop.variables(name, STEPS)["gpt2/wte"]).all()
    assert workshop.metrics(name)[-1]["step"] == STEPS + 1


def test_new_needs_a_yes(trained, workshop, program):
    config = workshop.copy_run("trained", "kept")
    result = program("--model", config, "--new")
    assert result.code == 2
    assert result.err.splitlines()[-1] == (
        "main.py: error: --new must be confirmed; got no terminal to ask on. Add --yes to delete "
        "runs/kept."
    )
    assert workshop.checkpoints("kept") == workshop.checkpoints("trained")


def test_new_starts_over(trained, workshop, program):
    config = workshop.copy_run("trained", "renewed", train_steps=3)
    for file in ("eval_nosacred.jsonl", "model.ckpt-9.index.tempstate1", "notes.txt"):
        (workshop.run_folder("renewed") / file).write_text("{}\n")
    result = program("--model", config, "--new", "--yes")
    assert result.code == 0, result.err
    assert "resuming" not in result.err
    assert workshop.checkpoints("renewed") == [3]  # none of the untrained model
    assert [line["step"] for line in workshop.metrics("renewed")] == [1, 3]
    assert workshop.metrics("renewed")[0]["loss"] == workshop.metrics("trained")[0]["loss"]
    assert "--new left what is no file of a run in runs/renewed: notes.txt\n" in result.err
    names = {file.name for file in workshop.run_folder("renewed").iterdir()}
    assert "notes.txt" in names
    assert not {"eval_nosacred.jsonl", "training.lock", "config.json.tmp"} & names
    assert not [name for name in names if "tempstate" in name]


def test_another_batch_size_goes_on_with_what_was_not_read(trained, workshop, program):
    made, before = [], "trained"
    for steps, size in ((5, 5), (10, 7)):
        keys = {"train_steps": STEPS + steps, "train_batch_size": size}
        result = program("--model", workshop.copy_run(before, f"resized_{size}", **keys))
        assert result.code == 0, result.err
        made.append(result.err)
        before = f"resized_{size}"
    # 300 steps of 4, 5 of 5, 5 of 7.
    assert "train_batch_size is 5 now and was 4: the data go on at sequence 1,200\n" in made[0]
    assert "train_batch_size is 7 now and was 5: the data go on at sequence 1,225\n" in made[1]
    assert "dataset tiny: 100.0% of the training sequences; 23 records in 3 file(s)" in made[0]
    kept = json.loads((workshop.run_folder("resized_7") / "batch_sizes.json").read_text())
    assert kept == [[0, 4], [STEPS, 5], [STEPS + 5, 7]]
    assert "the records of" not in made[0] + made[1]  # they are those of data.json
    lines = workshop.metrics("resized_7")
    assert [line["step"] for line in lines][-4:] == [301, 305, 306, 310]
    epochs = [1200 / RECORDS, 1205 / RECORDS, 1225 / RECORDS, 1232 / RECORDS, 1260 / RECORDS]
    assert [line["epoch"] for line in lines][-5:] == pytest.approx(epochs, abs=1e-4)


def test_other_layers_than_the_checkpoint_are_named(trained, workshop, program):
    config = workshop.copy_run(
        "trained",
        "deeper",
        train_steps=STEPS + 1,
        n_layer=3,
        attention_types=[[["global"], 3]],
    )
    result = program("--model", config)
    assert result.code == 2
    message = result.err.splitlines()[-1]
    assert message.startswith(
        "main.py: error: the model must stay that of runs/deeper/config.json, with which the "
        "weights were trained; got n_layer 3 (was 2), attention_types "
    )
    assert workshop.checkpoints("deeper") == workshop.checkpoints("trained")


@pytest.mark.parametrize("ending", ["data-00000-of-00001", "index"])
def test_a_lost_checkpoint_file_is_named(trained, workshop, program, ending):
    name = f"lost_{ending[:4]}"
    config = workshop.copy_run("trained", name, train_steps=STEPS + 1)
    (workshop.run_folder(name) / f"model.ckpt-{STEPS}.{ending}").unlink()
    start = time.monotonic()
    result = program("--model", config)
    assert time.monotonic() - start < 2.0
    assert result.code == 2
    assert f"checkpoint runs/{name}/model.ckpt-{STEPS} must " in result.err.splitlines()[-1]


def test_a_checkpoint_that_was_cut_short_is_named(trained, workshop, program):
    config = workshop.copy_run("trained", "cut", train_steps=STEPS + 1)
    file = workshop.run_folder("cut") / f"model.ckpt-{STEPS}.data-00000-of-00001"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    result = program("--model", config)
    assert result.code == 2
    assert f"checkpoint runs/cut/model.ckpt-{STEPS} must be readable; " in result.err


def test_a_wrong_record_is_named(workshop, program):
    """It is met while training: the run stops with one line that says which data set."""
    from data.record_writer import RecordWriter

    with RecordWriter(str(workshop.folder / "wrong"), "train") as writer:
        for number in range(9):
            writer.write([1] * (12 if number < 8 else 7))
    dataset = json.loads((workshop.folder / "base.json").read_text())["datasets"][0][0]
    dataset |= {"id": "wrong", "path": "wrong/train_*.tfrecords", "eval_path": None}
    config = workshop.config("wrong", datasets=[[dataset, None, None, None]])
    result = program("--model", config)
    assert result.code == 1
    message = result.err.splitlines()[-1]
    assert message.startswith("main.py: error: ")
    assert "records of wrong must hold n_ctx + 1 = 12 ids; got 7" in message
    assert "--chunk_size 11" in message
