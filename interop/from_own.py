"""Reads a checkpoint of this project, or of GPT-Neo, whose variables have the same names."""

from __future__ import annotations

import os
from typing import Optional

from configs.load import load_config
from configs.schema import Config
from interop.formats import file_identity, own_steps
from interop.model import Model, Weights
from interop.tensors import check_tensors
from interop.tokenizer_files import tokenizer_of_config
from utils.errors import there_are
from utils.stored_config import config_path, read_stored_config


def run_config(folder: str, model: Optional[str]) -> Config:
    """The config of a run's folder, or the one that is named in its place.

    Raises:
        ValueError: there is none, or both.
    """
    there = read_stored_config(folder) is not None
    if there and model is not None:
        raise ValueError(
            f"--model must be given for folders without a config.json only; got {model} and "
            f"{config_path(folder)}. Leave it out."
        )
    if not there and model is None:
        raise ValueError(
            f"a checkpoint must have its config; got no config.json in {folder}. Name it with "
            "--model."
        )
    return load_config(model or config_path(folder), mesh_is_fitted=True)


def read(folder: str, step: Optional[int], model: Optional[str]) -> Model:
    """The model of a run's folder.

    Args:
        folder: of the run.
        step: of the checkpoint; None for the newest.
        model: config of the run, for folders without one; None for that in the folder.

    Raises:
        ValueError: it cannot be converted.
    """
    config = run_config(folder, model)
    steps = own_steps(folder)
    if step is not None and step not in steps:
        raise ValueError(
            f"--step must be that of a checkpoint in {folder}; got {step}, and "
            f"{there_are(steps)}. Name another one."
        )
    return Model(
        kind="gpt",
        origin=f"Converted from the run {os.path.basename(os.path.abspath(folder))}",
        config=config,
        folder=folder,
        tokenizer=tokenizer_of_config(config, folder),
        open=lambda: _open(folder, step, config),
    )


def _open(folder: str, step: Optional[int], config: Config) -> Weights:
    from interop.own_files import (  # TensorFlow: what is wrong was said before
        OwnCheckpoint,
        is_weight,
        model_variables,
    )
    from utils.checkpoints import check_checkpoint, latest_checkpoint, step_in_name

    if step is None:
        checkpoint = latest_checkpoint(folder) or ""
    else:
        checkpoint = os.path.join(folder, f"model.ckpt-{step}")
        check_checkpoint(checkpoint)
    source = OwnCheckpoint(checkpoint)
    place, prefix = os.path.split(checkpoint)
    inputs = [name for name in os.listdir(place) if name.startswith(f"{prefix}.")]

    def check() -> None:
        state = [name for name in source.specs if not is_weight(name)]
        check_tensors(source.specs, model_variables(config), checkpoint, state)

    return Weights(source, step_in_name(checkpoint) or 0, file_identity(place, inputs), check)
