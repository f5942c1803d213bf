"""Reads a Hugging Face model."""

from __future__ import annotations

import logging
import os
from typing import Any, Optional

import numpy as np

from configs.errors import shown
from configs.schema import Config
from data.tokenizers import Tokenizer
from interop.formats import file_identity
from interop.hf_configs import (
    EOS_KEY,
    PADDING_KEY,
    architecture_of,
    known_eos_id,
    to_own_config,
    to_own_values,
)
from interop.hf_files import hf_source, read_json_object, weight_files
from interop.links import AsOurs, Link
from interop.model import Model, Weights
from interop.tensors import DTYPES, Source, check_tensors, checksum
from interop.tokenizer_files import dataset_entry, is_gpt2, text_tokens, tokenizer_in

LOGGER = logging.getLogger(__name__)
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
    if type(keys["n_vocab"]) is not int or type(keys.get(PADDING_KEY, 0)) is not int:
        return to_own_config(values, path, _RUN_KEYS | {"model_path": folder}, tokens)  # refused
    count = keys["n_vocab"] - keys.get(PADDING_KEY, 0)
    if tokens is not None and tokens > count:
        raise ValueError(
            f"the tokenizer must fit into the model's vocabulary of {count}; got {tokens} tokens "
            f"beside {path}. Restore tokenizer.json, or remove it to convert the weights alone."
        )
    run_keys = _RUN_KEYS | {"model_path": folder}
    eos_id = keys.get("eos_id", _end_of(tokenizer, count))
    if eos_id is not None:
        run_keys["eos_id"] = eos_id
    if tokenizer is not None and not is_gpt2(tokenizer):
        entry = dataset_entry(tokenizer, folder, keys | run_keys)
        run_keys |= {"datasets": [[entry, None, None, None]], "eos_id": entry["eos_id"]}
    config = to_own_config(values, path, run_keys, tokens)
    if "eos_id" not in keys:
        _warn_of_end(values, path, config)
    return config


def _end_of(tokenizer: Optional[Tokenizer], count: int) -> Optional[int]:
    """The end of text of a tokenizer, if one of ``count`` tokens is."""
    eos_id = None if tokenizer is None else tokenizer.eos_id
    return eos_id if eos_id is not None and eos_id < count else None


def _warn_of_end(values: dict[str, Any], path: str, config: Config) -> None:
    """Says what stands for an id that a model's config has not; its weights are what they are."""
    end = known_eos_id(config)
    got = "leaves eos_id out" if end is None else f"gets eos_id {end}"
    LOGGER.warning(
        "%s in %s is %s, no id of the %s tokens: the converted config %s; correct it if documents "
        "end otherwise",
        EOS_KEY,
        path,
        shown(values.get(EOS_KEY)) if EOS_KEY in values else "not there",
        f"{config.token_count:,}",
        got,
    )


def read(folder: str, output_folder: str) -> Model:
    """The model of a folder.

    Args:
        folder: of the Hugging Face model.
        output_folder: where its tokenizer will lie, which the config names.

    Raises:
        ValueError: it cannot be converted.
    """
    path = os.path.join(folder, CONFIG)
    values = read_json_object(path)
    model = architecture_of(values, path)
    tokenizer = tokenizer_in(folder)
    config = own_config(values, path, output_folder, tokenizer)
    return Model(
        kind=model.model_type,
        origin=f"Converted from a Hugging Face model of type `{model.model_type}`",
        config=config,
        folder=folder,
        tokenizer=tokenizer,
        open=lambda: _open(folder, config, model.links(config)),
    )


def _open(folder: str, config: Config, links: list[Link]) -> Weights:
    inputs = [CONFIG, *weight_files(folder)]
    source = _FullNames(hf_source(folder))
    _check(source, links, folder)
    return Weights(
        AsOurs(source, links, DTYPES["fp32"]),
        step=0,
        files=file_identity(folder, inputs),
        check=lambda: _check_tied_head(source, config),
    )


def _check(source: Source, links: list[Link], folder: str) -> None:
    expected = {link.theirs: link.their_shape for link in links if link.theirs is not None}
    ignored = [name for name in source.specs if name.endswith(_BUFFERS)]
    if _HEAD not in expected:
        ignored.append(_HEAD)  # the embedding once more
    check_tensors(source.specs, expected, folder, ignored)


def _check_tied_head(source: Source, config: Config) -> None:
    """A head beside a config that ties it must be the embedding: transformers drops it."""
    if not config.tied_embeddings or _HEAD not in source.specs:
        return
    if checksum(source.read(_HEAD)) != checksum(source.read(_EMBEDDING)):
        raise ValueError(
            f"{_HEAD} must be {_EMBEDDING} where tie_word_embeddings is true; got another "
            "tensor. Set tie_word_embeddings to false in config.json if it is meant."
        )
