"""A checkpoint of any format as one of ours."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any, Optional

from data.model_card import CARD_FILE, data_lines, description, result_lines, title
from interop.conversion import Output, parameter_count, run
from interop.formats import OWN
from interop.links import Rounded
from interop.model import Model, Weights
from interop.tensors import DTYPES
from interop.tokenizer_files import FILES, TOKENIZER_FILE, carry, is_gpt2

_CONFIG = "config.json"


def convert(model: Model, output_folder: str, slim: Optional[str], overwrite: bool) -> str:
    """Converts, or goes on with it.

    Args:
        model: to convert.
        output_folder: of the checkpoint, config and tokenizer.
        slim: number format of weights alone, key of ``DTYPES``; None for float32 weights and the
            state of training if there is any.
        overwrite: whether a conversion that is there is done again.

    Returns:
        One line about what is there now.

    Raises:
        ValueError: the input cannot be converted, or the output folder cannot be used.
        RuntimeError: what was written cannot be read back.
    """
    weights = model.open()

    from interop.own_files import OwnTarget, is_slot, is_weight  # TensorFlow, see Model.open

    names = [name for name in weights.source.specs if is_weight(name)]
    parameters = parameter_count(Rounded(weights.source, names, DTYPES["fp32"]))
    slots = [name for name in weights.source.specs if is_slot(name)] if slim is None else []
    dtype = slim or "fp32"
    step = weights.step
    if slots:
        weights.check_state()
        step = step if weights.state_step is None else weights.state_step
    identity = {"from": model.kind, "to": OWN, "input": weights.files, "slim": slim}
    output = Output(output_folder, identity, overwrite)
    if output.is_finished():
        return f"{output_folder} is complete already; --overwrite converts again"
    weights.check()
    target = OwnTarget(output_folder, output.workshop, step)
    view = Rounded(weights.source, names + slots, DTYPES[dtype])
    settings = _settings(model, output_folder)
    words = DTYPES[dtype].name + (", with the optimizer's slots" if slots else "")
    texts = {
        _CONFIG: json.dumps(settings, indent=2) + "\n",
        CARD_FILE: _card(model, weights, output_folder, parameters, words),
        "checkpoint": f'model_checkpoint_path: "{os.path.basename(target.path)}"\n',
    }
    carried = partial(carry, model.folder, output_folder, model.tokenizer, model.config)
    run(view, target, output, texts, carried, FILES)
    left = f"; left out: {weights.left_out}" if slots and weights.left_out else ""
    return f"{output_folder}: {model.kind} of {parameters:,} parameters, step {step}, {words}{left}"


def _settings(model: Model, output_folder: str) -> dict[str, Any]:
    """The config, with the folder and the tokenizer that is carried into it."""
    settings = model.config.to_json_dict() | {"model_path": output_folder}
    if model.tokenizer is not None and not is_gpt2(model.tokenizer):
        for entry, *_ in settings["datasets"]:
            entry["tokenizer_path"] = os.path.join(output_folder, TOKENIZER_FILE)
    return settings


def _card(model: Model, weights: Weights, output_folder: str, parameters: int, words: str) -> str:
    lines = [
        title(os.path.basename(os.path.abspath(output_folder)), weights.step),
        "",
        *description(model.config, parameters),
        "",
        f"{model.origin}; weights are {words}. "
        f"`python main.py --predict --model {os.path.join(output_folder, _CONFIG)}` continues "
        "a prompt.",
        *data_lines(model.config),
        *result_lines(model.folder, weights.step),
    ]
    return "\n".join(lines) + "\n"
