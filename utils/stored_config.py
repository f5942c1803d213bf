"""The config that a run has stored in its folder, and what of it must stay as it was."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from typing import Any, Optional

from pydantic import ValidationError

from configs.effects import inert_keys
from configs.errors import shown
from configs.messages import problems_of
from configs.model_keys import ArchitectureKeys, SizeKeys
from configs.schema import Config, canonical_key
from configs.training_keys import RunKeys
from utils.files import exists, read_bytes

LOGGER = logging.getLogger(__name__)
CONFIG_FILE = "config.json"

# Two names of one architecture, noise of training, and scales of the initial values: weights
# mean the same without them.
_FREE_MODEL_KEYS = {
    "model",
    "embed_dropout",
    "attn_dropout",
    "res_dropout",
    "scale_by_depth",
    "scale_by_in",
}
MODEL_KEYS = tuple(
    key
    for section in (SizeKeys, ArchitectureKeys)
    for key in section.model_fields
    if key not in _FREE_MODEL_KEYS
)
"""Keys that decide what the weights of a checkpoint mean."""

DATA_KEYS = ("seed", "input_fn", "datasets", "shuffle_input_filenames")
"""Keys that decide which sequences the next steps read."""

_SIGNATURE = {key for key, field in RunKeys.model_fields.items() if field.is_required()}


def config_path(model_path: str) -> str:
    """Where the config of a run is stored."""
    return os.path.join(model_path, CONFIG_FILE)


def is_run_config(values: dict[str, Any]) -> bool:
    """Whether an object is the config of a run and not, for instance, a Hugging Face model's."""
    return values.keys() >= _SIGNATURE


def read_stored_config(model_path: str) -> Optional[dict[str, Any]]:
    """The object in ``config.json`` of a run's folder, under today's keys; None without a file.

    Raises:
        ValueError: the file holds no JSON object.
    """
    path = config_path(model_path)
    if not exists(path):
        return None
    text = read_bytes(path).decode("utf-8", errors="replace")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ValueError(
            f"{path} must hold the config of the run as a JSON object; got "
            f"{shown(text.strip()) if text.strip() else 'an empty file'}. Restore it from a copy, "
            "or delete it if the config of --model is the one the run was trained with."
        )
    return {canonical_key(key): value for key, value in values.items()}


def check_same_model(config: Config, stored: Optional[dict[str, Any]]) -> None:
    """Refuses a model in which the weights of the run would mean something else.

    Args:
        config: a checked config.
        stored: of ``read_stored_config``; None and configs of other programs say nothing.

    Raises:
        ValueError: names the keys, with their stored and new values.
    """
    path = config_path(config.model_path)
    changed = changed_model_keys(config, stored, path)
    if changed:
        raise ValueError(
            f"the model must stay that of {path}, with which the weights were trained; got "
            f"{', '.join(changed)}. Set it back, or use another model_path."
        )


def changed_model_keys(config: Config, stored: Optional[dict[str, Any]], path: str) -> list[str]:
    """What in a config differs from the model that the weights of a run belong to.

    Variables of equal shapes fit many models: other numbers of heads, activations, kinds of
    attention. Keys that the stored config does not have are not compared.

    Args:
        config: a checked config.
        stored: of ``read_stored_config``; None and configs of other programs say nothing.
        path: of the stored config, for the error.

    Returns:
        A line per key, with its new and its stored value.

    Raises:
        ValueError: the stored config holds values that no config can have.
    """
    if stored is None or not is_run_config(stored):
        return []
    known = {key: stored[key] for key in MODEL_KEYS if key in stored}
    current = {key: value for key, value in config.to_json_dict().items() if key != "datasets"}
    try:
        before = Config.model_validate(current | known)
    except ValidationError as error:
        raise ValueError(
            f"{path} must hold the config of the run; got {problems_of(error)[0]}. Restore it "
            "from a copy, or correct it."
        ) from error
    return other_model_keys(config, before, known)


def other_model_keys(config: Config, before: Config, keys: Iterable[str]) -> list[str]:
    """A line per key of the model with another value than in ``before``, but for inert ones."""
    inert = inert_keys(config)
    return [
        f"{key} {shown(getattr(config, key))} (was {shown(getattr(before, key))})"
        for key in keys
        if key not in inert and _differ(key, config, before)
    ]


def _differ(key: str, left: Config, right: Config) -> bool:
    if getattr(left, key) == getattr(right, key):
        return False
    # One choice of attention has several spellings.
    return key != "attention_types" or left.attention_layers != right.attention_layers


def check_resumed_config(config: Config, stored: Optional[dict[str, Any]]) -> None:
    """Refuses to go on with another model; warns of other data.

    Args:
        config: a checked config.
        stored: of ``read_stored_config``.

    Raises:
        ValueError: the model differs.
    """
    if stored is None or not is_run_config(stored):
        return
    check_same_model(config, stored)
    current = json.loads(json.dumps(config.to_json_dict()))
    changed = [key for key in DATA_KEYS if key in stored and stored[key] != current.get(key)]
    if changed:
        LOGGER.warning(
            "%s not as in %s: from here on the run reads other sequences than it would have read",
            f"{', '.join(changed)} {'is' if len(changed) == 1 else 'are'}",
            config_path(config.model_path),
        )
