"""Every option has an example, as the reference shows it, that loads and has an effect."""

import json
from typing import Any, Optional

import pytest

from configs.datasets import DatasetConfig
from configs.load import parse_config
from configs.mixture_keys import MixtureKeys
from configs.schema import SECTIONS
from utils.command_line import DEFAULT_STEPS_PER_CHECKPOINT

MODELS = (*SECTIONS, MixtureKeys, DatasetConfig)
OPTIONS = [(model, name) for model in MODELS for name in model.model_fields]


def field(name: str, model: Optional[type] = None) -> Any:
    """A key of ``model``, or of the flat part of a config."""
    models = SECTIONS if model is None else (model,)
    return next(model.model_fields[name] for model in models if name in model.model_fields)


def example(name: str, model: Optional[type] = None) -> Any:
    return field(name, model).examples[0]


def with_needs(name: str, model: Optional[type] = None) -> dict[str, Any]:
    """The examples of a key and of all that it needs, directly or not."""
    found: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        key = waiting.pop()
        if key not in found:
            found[key] = example(key, model)
            waiting += field(key, model).json_schema_extra["needs"]
    return found


def required(*models: type) -> dict[str, Any]:
    fields = {name: field for model in models for name, field in model.model_fields.items()}
    return {name: field.examples[0] for name, field in fields.items() if field.is_required()}


def config_with(model: type, values: dict[str, Any]) -> dict[str, Any]:
    """The smallest config that holds ``values`` where keys of ``model`` belong."""
    base = required(*SECTIONS)
    if model is MixtureKeys:
        return base | {"moe_layers": example("moe_layers"), "moe_params": values}
    if model is DatasetConfig:
        return base | {"datasets": [required(DatasetConfig) | values]}
    return base | values


def loaded(model: type, values: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values of the keys of ``model`` in the config of ``config_with``, and its warnings."""
    written = json.loads(json.dumps(config_with(model, values)))
    config = parse_config(written, steps_per_checkpoint=DEFAULT_STEPS_PER_CHECKPOINT)
    part = {MixtureKeys: config.moe_params, DatasetConfig: config.dataset}.get(model, config)
    return part.model_dump(mode="json"), config.warnings


@pytest.mark.parametrize(("model", "name"), OPTIONS, ids=lambda x: getattr(x, "__name__", x))
def test_the_example_of_an_option_loads_and_has_an_effect(model, name):
    flat = None if model in SECTIONS else model
    value = example(name, flat)
    got, warnings = loaded(model, with_needs(name, flat))
    assert warnings == ()
    if name == "datasets":  # resolved: each entry has become what its dataset config says
        assert [(source["id"], source["weight"]) for source in got[name]] == [
            (entry[0], entry[3]) for entry in value
        ]
    elif name == "moe_params":
        assert value.items() <= got[name].items()
    else:
        assert got[name] == value
    if not field(name, flat).is_required():
        default, _ = loaded(model, {})
        assert default[name] != got[name], "an example shows another value than the default"


def test_an_option_needs_what_its_example_says():
    """Without them its example has no effect or does not load: nothing is asked for in vain.

    Dataset configs are left out: that a tokenizer does not fit shows when it is loaded.
    """
    for model, name in OPTIONS:
        if model is DatasetConfig:
            continue
        flat = None if model in SECTIONS else model
        for other in field(name, flat).json_schema_extra["needs"]:
            values = {key: value for key, value in with_needs(name, flat).items() if key != other}
            try:
                _, warnings = loaded(model, values)
            except ValueError:
                continue
            assert warnings, (name, other)
