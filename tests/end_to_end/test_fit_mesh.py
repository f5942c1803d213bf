"""The config of a larger machine on the devices at hand: training, evaluation and samples."""

import json

import pytest

TWO = ["--gpu_ids", "device:CPU:0", "device:CPU:1"]
LARGE = {"mesh_shape": "x:4,y:2", "layout": "batch:x,heads:y", "train_steps": 4, "lr_decay_end": 4}


@pytest.fixture(scope="module")
def fitted(workshop):
    """A run of a config for 8 processors that was trained on 2."""
    config = workshop.config("fitted", **LARGE)
    return workshop.run("--model", config, "--fit_mesh", "--steps_per_checkpoint", 4, *TWO)


def test_it_trains(fitted, workshop):
    assert fitted.code == 0, fitted.err
    assert "mesh_shape x:4,y:2 = 8 processors becomes x:" in fitted.err
    assert "on 2 devices: least memory per processor in training" in fitted.err
    assert workshop.checkpoints("fitted")[-1] == 4
    kept = json.loads((workshop.run_folder("fitted") / "config.json").read_text())
    assert kept["mesh_shape"] in ("x:2,y:1", "x:1,y:2")


def test_without_it_the_way_out_is_named(workshop, program):
    result = program("--model", workshop.config("unfitted", **LARGE), *TWO)
    assert result.code == 2
    assert "got x:4,y:2 = 8 on 2 (device:CPU:0, device:CPU:1). Add --fit_mesh to" in result.err


def test_it_is_evaluated_on_one_device_as_on_two(fitted, workshop, program):
    words = ["--model", workshop.config("fitted", **LARGE), "--eval", "--fit_mesh"]
    one, two = program(*words), program(*words, *TWO)
    assert (one.code, two.code) == (0, 0), one.err + two.err
    assert "becomes x:1,y:1 on 1 device, the only mesh that the config allows" in one.err
    assert "does not fit" not in one.err + two.err  # no second notice
    losses = [json.loads(result.out)["loss"] for result in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_it_continues_a_prompt(fitted, workshop, program):
    config = workshop.config("fitted", **LARGE)
    (workshop.folder / "fitted_prompt.txt").write_text("night")
    words = ["--model", config, "--predict", "--fit_mesh", "--prompt", "fitted_prompt.txt"]
    result = program(*words, "--temperature", 0)
    assert result.code == 0, result.err
    assert result.out.startswith("night")
