"""A Hugging Face model as a checkpoint of ours."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple, Optional

import numpy as np

from configs.schema import Config
from data.model_card import CARD_FILE, description, title
from data.tokenizers import Tokenizer
from interop.conversion import Output, check_place, parameter_count, run
from interop.formats import HF, OWN, file_identity
from interop.hf_architectures import Architecture
from interop.hf_configs import architecture_of, to_own_config, to_own_values
from interop.hf_files import hf_source, read_json_object, weight_files
from interop.links import AsOurs, Link
from interop.tensors import Source, check_tensors, checksum
from interop.tokenizer_files import (
    FILES,
    carry,
    dataset_entry,
    is_gpt2,
    text_tokens,
    tokenizer_in,
)

CONFIG = "config.json"
# A start for whoever trains on; a config must have them.
_RUN_KEYS: dict[str, Any] = {"train_steps": 1000, "train_batch_size": 8}
# Masks and constants that older versions of transformers saved beside the weights.
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".attn.attention.bias",
            ".attn.attention.masked_bias", ".attn.embed_positions")  # fmt: skip
_PREFIX, _HEAD, _EMBEDDING = "transformer.", "lm_head.weight", "transformer.wte.weight"


class _FullNames:
    """A source whose names lack the prefix that models without a head were saved without."""

    def __init__(self, source: Source):
        self._source = source
        self._names = {
            name if name.startswith((_PREFIX, "lm_head.")) else f"{_PREFIX}{name}": name
            for name in source.specs
        }
        self.specs = {name: source.specs[given] for name, given in self._names.items()}

    def read(self, name: str) -> np.ndarray:
        """Reads one tensor."""
        return self._source.read(self._names[name])


def own_config(
    values: dict[str, Any], path: str, folder: str, tokenizer: Optional[Tokenizer]
) -> Config:
    """The config that is written beside the checkpoint.

    Args:
        values: of the Hugging Face ``config.json``.
        path: of that file.
        folder: of the output.
        tokenizer: of the model, if it has one.

    Raises:
        ValueError: the model cannot be expressed, or the tokenizer is not the model's.
    """
    tokens = None if tokenizer is None else text_tokens(tokenizer)
    keys = to_own_values(values, path, tokens)
    count = keys["n_vocab"] - keys.get("vocab_padding", 0)
    if tokens is not None and tokens > count:
        raise ValueError(
            f"the tokenizer must fit into the model's vocabulary of {count}; got {tokens} tokens "
            f"beside {path}. Restore tokenizer.json, or remove it to convert the weights alone."
        )
    run_keys = _RUN_KEYS | {"model_path": folder}
    if keys.get("eos_id", count) >= count:  # some keep the id of a larger vocabulary
        eos_id = tokenizer.eos_id if tokenizer is not None else 50256
        if eos_id is None or eos_id >= count:
            raise ValueError(
                f"eos_token_id must be given, the id that ends a document; got none below {count} "
                f"in {path}. Add it."
            )
        run_keys |= {"eos_id": eos_id, "padding_id": eos_id}
    if tokenizer is not None and not is_gpt2(tokenizer):
        entry = dataset_entry(tokenizer, folder, keys | run_keys)
        run_keys["datasets"] = [[entry, None, None, None]]
    return to_own_config(values, path, run_keys, tokens)


class HfModel(NamedTuple):
    """A Hugging Face model whose tensors are those that its config describes.

    Attributes:
        architecture: which of the known ones.
        config: of ours, as it is written beside the checkpoint.
        source: of its tensors, under their full names.
        links: between these and our variables.
        tokenizer: if it has one.
    """

    architecture: Architecture
    config: Config
    source: Source
    links: list[Link]
    tokenizer: Optional[Tokenizer]


def read_model(folder: str, output_folder: str) -> HfModel:
    """Looks at a model; reads no weight.

    Args:
        folder: of the Hugging Face model.
        output_folder: model_path of its config.

    Raises:
        ValueError: it cannot be expressed, or its files are not those that its config describes.
    """
    path = os.path.join(folder, CONFIG)
    values = read_json_object(path)
    architecture = architecture_of(values, path)
    tokenizer = tokenizer_in(folder)
    config = own_config(values, path, output_folder, tokenizer)
    links = architecture.links(config)
    source = _FullNames(hf_source(folder))
    _check(source, links, folder)
    return HfModel(architecture, config, source, links, tokenizer)


def convert(folder: str, output_folder: str, overwrite: bool) -> str:
    """Converts, or goes on with it.

    Args:
        folder: of the Hugging Face model.
        output_folder: of the checkpoint, config and tokenizer.
        overwrite: whether a conversion that is there is done again.

    Returns:
        One line about what is there now.

    Raises:
        ValueError: the input cannot be converted, or the output folder cannot be used.
        RuntimeError: what was written cannot be read back.
    """
    check_place(output_folder)
    model, config, source, links, tokenizer = read_model(folder, output_folder)
    inputs = [CONFIG, *weight_files(folder)]
    identity = {"from": HF, "to": OWN, "input": file_identity(folder, inputs)}
    output = Output(output_folder, identity, overwrite)
    if output.is_finished():
        return f"{output_folder} is complete already; --overwrite converts again"
    check_tied_head(source, config)

    from interop.own_files import OwnTarget  # TensorFlow: what is wrong was said before

    target = OwnTarget(output_folder, output.workshop, step=0)
    view = AsOurs(source, links, np.dtype(np.float32))
    parameters = parameter_count(view)
    texts = {
        CONFIG: json.dumps(config.to_json_dict(), indent=2) + "\n",
        CARD_FILE: _card(config, model, parameters),
        "checkpoint": f'model_checkpoint_path: "{os.path.basename(target.path)}"\n',
    }
    run(view, target, output, texts, lambda: carry(folder, output_folder, tokenizer, config), FILES)
    return f"{output_folder}: {model.model_type} of {parameters:,} parameters, float32"


def _check(source: Source, links: list[Link], folder: str) -> None:
    expected = {link.theirs: link.their_shape for link in links if link.theirs is not None}
    ignored = [name for name in source.specs if name.endswith(_BUFFERS)]
    if _HEAD not in expected:
        ignored.append(_HEAD)  # the embedding once more
    check_tensors(source.specs, expected, folder, ignored)


def check_tied_head(source: Source, config: Config) -> None:
    """A head beside a config that ties it must be the embedding: transformers drops it."""
    if not config.tied_embeddings or _HEAD not in source.specs:
        return
    if checksum(source.read(_HEAD)) != checksum(source.read(_EMBEDDING)):
        raise ValueError(
            f"{_HEAD} must be {_EMBEDDING} where tie_word_embeddings is true; got another "
            "tensor. Set tie_word_embeddings to false in config.json if it is meant."
        )


def _card(config: Config, model: Architecture, parameters: int) -> str:
    name = os.path.basename(os.path.abspath(config.model_path))
    lines = [
        title(name, 0),
        "",
        *description(config, parameters),
        "",
        f"Converted from a Hugging Face model of type `{model.model_type}`; weights are float32. "
        f"`python main.py --predict --model {os.path.join(config.model_path, CONFIG)}` continues "
        "a prompt.",
    ]
    return "\n".join(lines) + "\n"
