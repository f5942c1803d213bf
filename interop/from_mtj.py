"""Reads a model of Mesh Transformer JAX, such as the released GPT-J."""

from __future__ import annotations

import logging
import os
from typing import Optional

from configs.schema import Config
from interop.formats import file_identity
from interop.model import Model, Weights
from interop.mtj_configs import DEFAULT_MODEL, mtj_config
from interop.mtj_files import STEP_FOLDER, MtjFiles, step_folder
from interop.mtj_source import MtjSource
from interop.tokenizer_files import tokenizer_of_config

LOGGER = logging.getLogger(__name__)


def read(folder: str, step: Optional[int], model: Optional[str]) -> Model:
    """The model of a folder.

    Args:
        folder: of a run, or of a step.
        step: of the checkpoint; None for the newest.
        model: config of ours or file of one of theirs; None for GPT-J's.

    Raises:
        ValueError: it cannot be converted.
    """
    name = model or DEFAULT_MODEL
    config, shards = mtj_config(name)
    place = step_folder(folder, step)
    return Model(
        kind="mesh-transformer-jax",
        origin="Converted from a checkpoint of Mesh Transformer JAX",
        config=config,
        folder=folder,
        tokenizer=tokenizer_of_config(config, folder),
        open=lambda: _open(place, config, shards, name),
    )


def _open(place: str, config: Config, shards: int, model: str) -> Weights:
    files = MtjFiles(place)
    if shards and shards != files.shards:
        raise ValueError(
            f"a checkpoint must have the {shards} shards that cores_per_replica in {model} says; "
            f"got {files.shards} in {place}. Copy the rest, or name the config of this model."
        )
    source = MtjSource(files, config)
    match = STEP_FOLDER.fullmatch(os.path.basename(os.path.abspath(place)))
    if match is not None and int(match[1]) != source.step:
        LOGGER.warning(
            "%s is called the step %s, and its state says that the weights have seen %d updates, "
            "which is what counts",
            place,
            match[1],
            source.step,
        )
    identity = file_identity(place, files.names)
    if not source.has_optimizer:
        return Weights(source, source.step, identity)
    return Weights(
        source,
        source.step,
        identity,
        state_step=source.adam_count,  # which the bias correction of the moments needs
        check_state=lambda: _check_state(source, config),
        left_out="moments of the embedding's bias, which is part of the embedding now",
    )


def _check_state(source: MtjSource, config: Config) -> None:
    """Refuses other optimizers, and says what is known to go on in another way than there."""
    if config.opt_name != "adam":
        raise ValueError(
            f"opt_name must be adam to take Adam's moments; got {config.opt_name}. Change it in "
            "the config, or leave the moments out with --slim."
        )
    if not config.adam_bias_correction:
        LOGGER.warning(
            "adam_bias_correction is false in the config, and was true where the moments are from"
        )
    if len({source.step, source.adam_count, source.schedule_count}) > 1:
        LOGGER.warning(
            "the moments have seen %s updates, the schedule %s and the weights %s, as after "
            "fine-tuning: the converted step is that of the moments; choose the schedule of what "
            "comes accordingly",
            source.adam_count,
            source.schedule_count,
            source.step,
        )
