"""A checkpoint of ours as a Hugging Face model."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Optional

from configs.load import load_config
from configs.schema import Config
from data.model_card import CARD_FILE, data_lines, description, result_lines, title
from interop.conversion import Output, check_place, parameter_count, run
from interop.formats import HF, OWN, file_identity, own_steps
from interop.hf_architectures import Architecture
from interop.hf_configs import generation_values, hf_architecture, to_hf_values
from interop.hf_target import HfTarget
from interop.links import AsTheirs, Link
from interop.tensors import DTYPES, Source, check_tensors
from interop.tokenizer_files import FILES, carry, tokenizer_of_config
from utils.stored_config import config_path, read_stored_config

_CONFIG, _GENERATION = "config.json", "generation_config.json"


@dataclass(frozen=True)
class Choices:
    """What may be chosen.

    Attributes:
        dtype: key of ``DTYPES``.
        most_bytes: of a shard.
        step: of the checkpoint; None for the newest.
        model: config of the run, for folders without one; None for that in the folder.
        overwrite: whether a conversion that is there is done again.
    """

    dtype: str
    most_bytes: int
    step: Optional[int]
    model: Optional[str]
    overwrite: bool


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


def convert(folder: str, output_folder: str, choices: Choices) -> str:
    """Converts, or goes on with it; optimizer slots are left out.

    Args:
        folder: of the run.
        output_folder: of the Hugging Face model.
        choices: of the user.

    Returns:
        One line about what is there now.

    Raises:
        ValueError: the input cannot be converted, or the output folder cannot be used.
        RuntimeError: what was written cannot be read back.
    """
    check_place(output_folder)
    config = run_config(folder, choices.model)
    model = hf_architecture(config)
    links = model.links(config)
    steps = own_steps(folder)
    if choices.step is not None and choices.step not in steps:
        raise ValueError(
            f"--step must be that of a checkpoint in {folder}; got {choices.step}, and there are "
            f"{', '.join(map(str, steps)) or 'none'}. Name one of them."
        )
    tokenizer = tokenizer_of_config(config, folder)

    from interop.own_files import OwnCheckpoint, is_state  # TensorFlow
    from utils.checkpoints import check_checkpoint, latest_checkpoint, step_in_name

    if choices.step is None:
        checkpoint = latest_checkpoint(folder) or ""
    else:
        checkpoint = os.path.join(folder, f"model.ckpt-{choices.step}")
        check_checkpoint(checkpoint)
    source = OwnCheckpoint(checkpoint)
    expected = {name: link.shape for link in links for name in link.ours}
    state = [name for name in source.specs if is_state(name)]
    check_tensors(source.specs, expected, checkpoint, state)
    _check_zeros(source, links, model)
    place, prefix = os.path.split(checkpoint)
    inputs = [name for name in os.listdir(place) if name.startswith(f"{prefix}.")]
    identity = {
        "from": OWN,
        "to": HF,
        "input": file_identity(place, inputs),
        "dtype": choices.dtype,
        "max_shard_size": choices.most_bytes,
    }
    output = Output(output_folder, identity, choices.overwrite)
    if output.is_finished():
        return f"{output_folder} is complete already; --overwrite converts again"
    target = HfTarget(output_folder, output.workshop, choices.most_bytes)
    view = AsTheirs(source, links, DTYPES[choices.dtype])
    parameters, step = parameter_count(view), step_in_name(checkpoint) or 0
    texts = {
        _GENERATION: json.dumps(generation_values(config), indent=2) + "\n",
        CARD_FILE: _card(config, model, folder, step, parameters, choices.dtype),
        _CONFIG: json.dumps(to_hf_values(config, DTYPES[choices.dtype].name), indent=2) + "\n",
    }
    count = run(
        view, target, output, texts, lambda: carry(folder, output_folder, tokenizer, config), FILES
    )
    slots = "; optimizer slots are left out" if len(state) > 1 else ""  # one is the step
    return (
        f"{output_folder}: {model.model_type} of {parameters:,} parameters, step {step}, "
        f"{choices.dtype}, {count} file{'s' * (count > 1)}{slots}"
    )


def _check_zeros(source: Source, links: list[Link], model: Architecture) -> None:
    for link in links:
        if link.theirs is None and source.read(link.ours[0]).any():
            raise ValueError(
                f"{link.ours[0]} must be all zeros to be exported, since {model.model_type} of "
                "transformers has no such tensor; got trained values. It cannot be exported."
            )


def _card(
    config: Config, model: Architecture, folder: str, step: int, parameters: int, dtype: str
) -> str:
    name = os.path.basename(os.path.abspath(folder))
    lines = [
        title(name, step),
        "",
        *description(config, parameters),
        "",
        f"A `{model.class_name}` for transformers, weights in {DTYPES[dtype].name}: "
        "`AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load this "
        "folder.",
        *data_lines(config),
        *result_lines(folder, step),
    ]
    return "\n".join(lines) + "\n"
