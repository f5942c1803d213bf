"""A checkpoint as a Hugging Face model."""

from __future__ import annotations

import json
import logging
import os
from functools import partial

from data.model_card import CARD_FILE, data_lines, description, result_lines, title
from interop.conversion import Output, parameter_count, run
from interop.formats import HF
from interop.hf_architectures import Architecture
from interop.hf_configs import generation_values, hf_architecture, known_eos_id, to_hf_values
from interop.hf_target import HfTarget
from interop.links import AsTheirs, Link
from interop.model import Model
from interop.tensors import DTYPES, Source, check_tensors
from interop.tokenizer_files import FILES, carry

LOGGER = logging.getLogger(__name__)
_CONFIG, _GENERATION = "config.json", "generation_config.json"


def convert(model: Model, output_folder: str, dtype: str, most_bytes: int, overwrite: bool) -> str:
    """Converts, or goes on with it; state of training is left out.

    Args:
        model: to convert.
        output_folder: of the Hugging Face model.
        dtype: of the weights, key of ``DTYPES``.
        most_bytes: of a shard.
        overwrite: whether a conversion that is there is done again.

    Returns:
        One line about what is there now.

    Raises:
        ValueError: the input cannot be converted, or the output folder cannot be used.
        RuntimeError: what was written cannot be read back.
    """
    config = model.config
    theirs = hf_architecture(config)
    links = theirs.links(config)
    weights = model.open()
    source = weights.source

    from interop.own_files import is_slot, is_weight  # TensorFlow, see Model.open

    expected = {name: link.shape for link in links for name in link.ours}
    state = [name for name in source.specs if not is_weight(name)]
    check_tensors(source.specs, expected, model.folder, state)
    _check_zeros(source, links, theirs)
    identity = {
        "from": model.kind,
        "to": HF,
        "input": weights.files,
        "dtype": dtype,
        "max_shard_size": most_bytes,
    }
    output = Output(output_folder, identity, overwrite)
    if output.is_finished():
        return f"{output_folder} is complete already; --overwrite converts again"
    target = HfTarget(output_folder, output.workshop, most_bytes)
    view = AsTheirs(source, links, DTYPES[dtype])
    parameters = parameter_count(view)
    texts = {
        _GENERATION: json.dumps(generation_values(config), indent=2) + "\n",
        CARD_FILE: _card(model, theirs, weights.step, parameters, dtype),
        _CONFIG: json.dumps(to_hf_values(config, DTYPES[dtype].name), indent=2) + "\n",
    }
    if known_eos_id(config) is None:
        LOGGER.warning("no eos_id is known among the %s tokens: %s of %s says null",
                       f"{config.token_count:,}", _CONFIG, output_folder)  # fmt: skip
    carried = partial(carry, model.folder, output_folder, model.tokenizer, config)
    count = run(view, target, output, texts, carried, FILES)
    slots = "; optimizer slots are left out" if any(map(is_slot, state)) else ""
    return (
        f"{output_folder}: {theirs.model_type} of {parameters:,} parameters, step {weights.step}, "
        f"{dtype}, {count} file{'s' * (count > 1)}{slots}"
    )


def _check_zeros(source: Source, links: list[Link], model: Architecture) -> None:
    for link in links:
        if link.theirs is None and source.read(link.ours[0]).any():
            raise ValueError(
                f"{link.ours[0]} must be all zeros to be exported, since {model.model_type} of "
                "transformers has no such tensor; got trained values. It cannot be exported."
            )


def _card(model: Model, theirs: Architecture, step: int, parameters: int, dtype: str) -> str:
    lines = [
        title(os.path.basename(os.path.abspath(model.folder)), step),
        "",
        *description(model.config, parameters),
        "",
        f"A `{theirs.class_name}` for transformers, weights in {DTYPES[dtype].name}: "
        "`AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load this "
        "folder.",
        *data_lines(model.config),
        *result_lines(model.folder, step),
    ]
    return "\n".join(lines) + "\n"
