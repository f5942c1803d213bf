"""Meshes for the devices at hand."""

import json
import math

import pytest

from configs.errors import ConfigError
from configs.files import shipped_configs
from configs.load import load_config, parse_config
from inspection import mesh_fit, prediction
from inspection.mesh_fit import axis_sizes, fit_mesh
from inspection.prediction import Need
from tests.support import cpus, make_config
from utils.devices import place_training

TWO_AXES = {"mesh_shape": "x:64,y:2", "train_batch_size": 64, "n_head": 2, "n_layer": 1} | {
    "attention_types": [[["global"], 1]],
    "eval_batch_size": 64,
}


@pytest.fixture
def predicted(monkeypatch):
    """Predictions by mesh_shape; what is asked for and not there fails."""
    needs = {}

    def predict(config):
        return Need(needs[config.mesh_shape], 0, 0)

    monkeypatch.setattr(prediction, "predict_need", predict)
    return needs


def test_axis_sizes():
    assert list(axis_sizes(1, 6)) == [(6,)]
    assert list(axis_sizes(2, 6)) == [(6, 1), (3, 2), (2, 3), (1, 6)]
    assert len(list(axis_sizes(3, 8))) == 10
    assert all(math.prod(sizes) == 8 for sizes in axis_sizes(3, 8))


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configs_on_few_devices(name, monkeypatch):
    """A mesh is found for 1, 2, 4 and 8; for others it is found or the numbers are named."""
    monkeypatch.setattr(prediction, "predict_need", lambda config: Need(1, 0, 0))
    config = load_config(name)
    for count in range(1, 9):
        try:
            fit = fit_mesh(config, count)
        except ValueError as error:
            assert count not in (1, 2, 4, 8)
            assert f"on {count} devices; got none" in str(error)
            continue
        assert fit.config.mesh_size == count
        assert [axis for axis, _ in fit.config.mesh_axes] == [a for a, _ in config.mesh_axes]
        assert fit.config.layout == config.layout
        parse_config(fit.config.to_json_dict())  # it obeys every rule
        assert (
            place_training(fit.config, cpus(count) if count > 1 else ()).mesh_layout.size == count
        )


def test_the_least_memory_is_chosen(predicted):
    config = make_config(layout="batch:x,heads:y", **TWO_AXES)
    predicted.update({"x:4,y:1": 5000, "x:2,y:2": 3000})  # two heads: y:4 breaks a rule
    fit = fit_mesh(config, 4)
    assert fit.config.mesh_shape == "x:2,y:2"
    assert fit.notices == (
        "mesh_shape x:64,y:2 = 128 processors becomes x:2,y:2 on 4 devices: least memory per "
        "processor in training, 3.00 kB (estimates; x:4,y:1 5.00 kB)",
    )


def test_among_equals_the_batch_is_split_most(predicted):
    config = make_config(layout="batch:y,heads:x", **TWO_AXES | {"mesh_shape": "x:2,y:32"})
    predicted.update({"x:2,y:1": 1000, "x:1,y:2": 1005})
    assert fit_mesh(config, 2).config.mesh_shape == "x:1,y:2"
    predicted.update({"x:1,y:2": 1011})
    assert fit_mesh(config, 2).config.mesh_shape == "x:2,y:1"


def test_real_predictions():
    """Activations are the most of many sequences, weights of few."""
    config = make_config(layout="batch:x,embd:y", **TWO_AXES)
    assert fit_mesh(config, 2).config.mesh_shape == "x:2,y:1"
    wide = {"n_embd": 512, "n_ctx": 2, "train_batch_size": 2, "eval_batch_size": 2}
    config = make_config(layout="batch:x,embd:y", **TWO_AXES | wide | {"mesh_shape": "x:2,y:2"})
    assert fit_mesh(config, 2).config.mesh_shape == "x:1,y:2"


def test_one_choice_needs_no_prediction(predicted):
    config = make_config(layout="batch:x,heads:y", **TWO_AXES)
    fit = fit_mesh(config, 1)
    assert fit.config.mesh_shape == "x:1,y:1"
    assert fit.notices == (
        "mesh_shape x:64,y:2 = 128 processors becomes x:1,y:1 on 1 device, the only mesh that "
        "the config allows",
    )


def test_a_mesh_that_fits_is_left_alone(predicted):
    config = make_config()
    fit = fit_mesh(config, 1)
    assert fit.config == config
    assert fit.notices == (
        "--fit_mesh changes nothing: mesh_shape x:1 has as many processors as there are devices, 1",
    )


def test_the_rest_of_the_run_stays(predicted):
    """What the flags decided stays too, here the length of device loops."""
    config = parse_config(
        make_config(mesh_shape="x:2").to_json_dict() | {"iterations": None},
        steps_per_checkpoint=7,
    )
    fitted = fit_mesh(config, 1).config
    assert (fitted.iterations, config.iterations) == (7, 7)
    assert "iterations" not in fitted.to_json_dict()


def test_a_key_that_loses_its_effect_is_named(predicted):
    config = make_config(mesh_shape="x:2", optimizer_shard_axis="x")
    assert config.warnings == ()
    _, warning = fit_mesh(config, 1).notices
    assert warning.startswith("optimizer_shard_axis: has no effect")


def test_a_warning_about_the_old_mesh_goes_with_it():
    config = parse_config(
        make_config().to_json_dict()
        | {"mesh_shape": "x:2", "train_batch_size": 8, "eval_batch_size": 8, "predict_steps": 1}
    )
    assert [line.partition(":")[0] for line in config.warnings] == ["predict_batch_size"]
    fit = fit_mesh(config, 1)
    assert fit.config.warnings == ()
    assert len(fit.notices) == 1
    assert config.warnings


def test_no_mesh_fits():
    config = make_config(layout="batch:x,heads:y", **TWO_AXES)
    with pytest.raises(ValueError) as caught:
        fit_mesh(config, 6)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(
        "--fit_mesh must find sizes for the axes of mesh_shape x:64,y:2 on 6 devices; got none "
        "that the config allows: x:6,y:1 (train_batch_size: must be a multiple of 6, "
    )
    assert "; and 1 more. Name 4 device(s) with --gpu_ids, or change layout." in message


def test_only_rules_of_the_config_refuse_a_mesh(monkeypatch):
    """Other errors are not taken for a mesh that does not fit."""

    def broken(values):
        raise RuntimeError("broken")

    monkeypatch.setattr(mesh_fit, "parse_config", broken)
    with pytest.raises(RuntimeError, match="broken"):
        fit_mesh(make_config(mesh_shape="x:2"), 1)
    assert issubclass(ConfigError, ValueError)


def test_a_mesh_that_breaks_the_rules_is_fitted(tmp_path):
    """Its own sizes are judged nowhere, those that are chosen are."""
    path = tmp_path / "seven.json"
    path.write_text(json.dumps(make_config().to_json_dict() | {"mesh_shape": "x:7"}))
    with pytest.raises(ConfigError, match="train_batch_size: must be a multiple of 7"):
        load_config(str(path))
    config = load_config(str(path), mesh_is_fitted=True)
    assert fit_mesh(config, 1).config.mesh_shape == "x:1"
    with pytest.raises(ValueError, match=r"on 7 devices; got none .*must be a multiple of 7"):
        fit_mesh(config, 7)
