"""Fine-tuning through the command line: what a run begins with, and that it keeps to it."""

import json
import os
import shutil

import numpy as np
import pytest

import convert_checkpoint
from tests.end_to_end.workshop import Result, once

# The rate of the first update is 0: after it the weights are still those of the base.
KEYS = {"train_steps": 1, "warmup_steps": 1, "lr_decay": None, "lr_decay_end": None}
SLOTS = ("/adam_m", "/adam_v")


def weights(variables):
    return {
        name: value
        for name, value in variables.items()
        if not name.endswith(SLOTS) and name != "global_step"
    }


def assert_same_weights(left, right):
    left, right = weights(left), weights(right)
    assert left.keys() == right.keys()
    assert [name for name in left if not np.array_equal(left[name], right[name])] == []


@pytest.fixture(scope="session")
def tuned(workshop, trained):
    """A run with a new optimizer, from the ``trained`` one as a Hugging Face model."""

    def make():
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(workshop.folder)
            assert convert_checkpoint.main(["runs/trained", "hf"]) == 0
        config = workshop.config("tuned", **KEYS)
        return workshop.run("--model", config, "--init_from", "hf", "--fresh_opt")

    result = Result(*once(workshop, "tuned", make))
    assert result.code == 0, result.err
    return result


def refusal(program, *words):
    result = program(*words)
    assert result.code == 2, result.err
    assert result.out == ""
    assert "Traceback" not in result.err
    start = result.err.index("main.py: error: ")  # problems of a config have a line each
    return result.err[start:]


def test_a_hugging_face_model_is_converted_on_the_fly(workshop, tuned):
    assert "began with the weights of hf and a new optimizer: " in tuned.err
    got = workshop.variables("tuned")
    assert got["global_step"] == 1
    assert_same_weights(got, workshop.variables("trained"))
    # Moments of a single gradient, which began at 0.
    for name in ("gpt2/h0/attn/q", "gpt2/wte"):
        gradient = got[f"{name}/adam_m"] / 0.1
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(got[f"{name}/adam_v"] / 0.001, gradient**2, 1e-4, 1e-12)


def test_the_base_is_in_the_config_of_the_run(workshop, tuned):
    config = json.loads((workshop.run_folder("tuned") / "config.json").read_text())
    assert (config["init_from"], config["fresh_opt"], config["earlier_updates"]) == ("hf", True, 0)


def test_a_checkpoint_brings_its_optimizer(workshop, trained, program):
    config = workshop.config("kept_optimizer", **KEYS)
    result = program("--model", config, "--init_from", "runs/trained/model.ckpt-250")
    assert result.code == 0, result.err
    assert "model.ckpt-250 and its optimizer: " in result.err
    assert workshop.metrics("kept_optimizer")[0]["step"] == 1
    got, base = workshop.variables("kept_optimizer"), workshop.variables("trained", 250)
    assert_same_weights(got, base)
    slot = "gpt2/wte/adam_v"
    assert not np.array_equal(got[slot], base[slot])
    np.testing.assert_allclose(got[slot], base[slot] * 0.999, rtol=0, atol=base[slot].max())
    assert np.corrcoef(got[slot].ravel(), base[slot].ravel())[0, 1] > 0.99
    config = json.loads((workshop.run_folder("kept_optimizer") / "config.json").read_text())
    assert config["earlier_updates"] == 250


def copy_tuned(workshop, name):
    """The tuned run under another name, with files that its base's times still match."""
    return workshop.copy_run("tuned", name, **KEYS)


def test_the_same_command_resumes_a_begun_run(workshop, tuned, program):
    config = copy_tuned(workshop, "same")
    words = ("--model", config, "--init_from", "hf", "--fresh_opt")
    result = program(*words)
    assert result.code == 0
    assert "is trained: 1 of 1 steps" in result.err
    # Without the flags as well, and its base stays on record.
    result = program("--model", config, "--set", "train_steps=2")
    assert result.code == 0
    assert "hf is the base of this run" in result.err
    assert "resuming from runs/same/model.ckpt-1" in result.err
    assert "began with" not in result.err
    stored = json.loads((workshop.run_folder("same") / "config.json").read_text())
    assert (stored["init_from"], stored["fresh_opt"]) == ("hf", True)


def test_a_begun_run_takes_no_other_base(workshop, tuned, program):
    config = copy_tuned(workshop, "other")
    line = refusal(program, "--model", config, "--init_from", "runs/trained")
    assert "--init_from must stay hf, from which runs/other began; got runs/trained." in line
    line = refusal(program, "--model", config, "--init_from", "hf")
    assert "fresh_opt must stay true" in line
    config = workshop.copy_run("trained", "plain")
    line = refusal(program, "--model", config, "--init_from", "hf", "--fresh_opt")
    assert "runs/plain, which has a checkpoint and began without a base" in line


def test_a_base_that_was_replaced_is_noticed(workshop, tuned, program):
    config = copy_tuned(workshop, "replaced")
    copy = shutil.copytree(workshop.folder / "hf", workshop.folder / "hf_copy")
    os.utime(copy / "model.safetensors", (1, 1))
    record = workshop.run_folder("replaced") / "base.json"
    record.write_text(record.read_text().replace('/hf"', '/hf_copy"').replace("/hf/", "/hf_copy/"))
    line = refusal(program, "--model", config, "--init_from", "hf_copy", "--fresh_opt")
    assert "the base of a run must stay as it was; got another " in line
    record.write_text("[]")
    line = refusal(program, "--model", config, "--init_from", "hf_copy", "--fresh_opt")
    assert "base.json must tell which base the run began from" in line


REFUSED = {
    "weights alone": (("hf",), {}, "got hf, which holds weights alone. Add --fresh_opt."),
    "another model": (
        ("hf", "--fresh_opt"),
        {"n_head": 7, "local_attention_radius": 4},
        "of the model in hf; got n_head 7 (was 2), local_attention_radius 4 (was 3). Set",
    ),
    "another model of ours": (
        ("runs/trained",),
        {"n_layer": 4, "attention_types": [[["global", "local"], 2]]},
        "of the model in runs/trained/model.ckpt-300; got n_layer 4 (was 2), ",
    ),
    "another optimizer": (
        ("runs/trained",),
        {"opt_name": "adafactor"},
        "got opt_name adafactor, and runs/trained has been trained with adam.",
    ),
    "nothing": (("nowhere",), {}, "--init_from must be a folder that exists; got nowhere."),
    "no model": (("records",), {}, "--init_from must hold a Hugging Face model or a checkpoint"),
    "itself": (("runs/refused_base",), {}, "init_from: must not be model_path runs/refused"),
}


@pytest.mark.parametrize("words, keys, text", REFUSED.values(), ids=REFUSED)
def test_refusals(workshop, tuned, program, words, keys, text):
    config = workshop.config("refused_base", **KEYS | keys)
    assert text in refusal(program, "--model", config, "--init_from", *words)
    assert workshop.checkpoints("refused_base") == []


def test_flags_that_have_no_base(workshop, program):
    config = workshop.config("refused_base", **KEYS)
    assert "fresh_opt: needs init_from" in refusal(program, "--model", config, "--fresh_opt")
    line = refusal(program, "--model", config, "--init_from", "hf", "--eval")
    assert "--init_from is for training only; got --eval as well." in line


def test_a_damaged_base_is_named(workshop, tuned, program):
    folder = workshop.folder / "damaged_base"
    folder.mkdir()
    for file in workshop.run_folder("trained").glob("model.ckpt-300.*"):
        shutil.copy(file, folder)
    [data] = folder.glob("*.data-*")
    data.write_bytes(data.read_bytes()[:-900])
    config = workshop.config("refused_base", **KEYS)
    line = refusal(program, "--model", config, "--init_from", "damaged_base/model.ckpt-300")
    assert "checkpoint damaged_base/model.ckpt-300 must be readable" in line
