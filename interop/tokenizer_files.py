"""The tokenizer of a model, carried along with its weights."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any, Optional

from configs.schema import Config
from data.manifest import tokenizer_fingerprint
from data.tokenizers import GPT2_NAME, GPT2_SIZE, Tokenizer, load_byte_level, load_tokenizer
from utils.files import write_atomically

LOGGER = logging.getLogger(__name__)
TOKENIZER_FILE = "tokenizer.json"
_VOCABULARY, _MERGES = "vocab.json", "merges.txt"
FILES = (
    TOKENIZER_FILE,
    _VOCABULARY,
    _MERGES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# GPT-J's tokenizer has names for the rows that no token has.
_FILLER = re.compile(r"<\|extratoken_\d+\|>")


def tokenizer_in(folder: str) -> Optional[Tokenizer]:
    """The tokenizer of a folder: ``tokenizer.json``, or GPT-2's older pair of files.

    Returns:
        None if there is neither.

    Raises:
        ValueError: it is damaged.
    """
    path = os.path.join(folder, TOKENIZER_FILE)
    if os.path.isfile(path):
        return load_tokenizer(path, is_pretrained=False)
    pair = [os.path.join(folder, name) for name in (_VOCABULARY, _MERGES)]
    if not all(map(os.path.isfile, pair)):
        return None
    return load_byte_level(*pair)


def text_tokens(tokenizer: Tokenizer) -> int:
    """Ids up to the last one that stands for text; names of unused rows at the end do not."""
    by_id = {number: token for token, number in tokenizer.vocabulary.items()}
    count = tokenizer.size
    while count and _FILLER.fullmatch(by_id.get(count - 1, "")):
        count -= 1
    return count


def tokenizer_of_config(config: Config, folder: str) -> Optional[Tokenizer]:
    """The tokenizer that a run's records were made with.

    Args:
        config: of the run.
        folder: of the run, where a converted one has its tokenizer.

    Returns:
        None if the config names none and the vocabulary is too small for GPT-2's.

    Raises:
        ValueError: it cannot be loaded.
    """
    found = tokenizer_in(folder)
    if found is not None:
        return found
    dataset = config.dataset
    if dataset is not None:
        return load_tokenizer(dataset.tokenizer_path, dataset.tokenizer_is_pretrained)
    return load_tokenizer() if config.token_count >= GPT2_SIZE else None


def carry(source: str, target: str, tokenizer: Optional[Tokenizer], config: Config) -> None:
    """Copies the files of a tokenizer, and writes those that transformers or we would miss.

    Args:
        source: folder of the model.
        target: folder of the converted model.
        tokenizer: of the model; None if it has none.
        config: of the model.
    """
    names = [name for name in FILES if os.path.isfile(os.path.join(source, name))]
    for name in names:
        shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
    if tokenizer is None:
        LOGGER.warning("%s has no tokenizer, and neither has what was made of it", source)
        return
    by_id = {number: token for token, number in tokenizer.vocabulary.items()}
    end = by_id.get(config.eos_id)
    special = {} if end is None else {"bos_token": end, "eos_token": end}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.n_ctx,
        "clean_up_tokenization_spaces": False,
        **special,
    }
    texts = {
        TOKENIZER_FILE: tokenizer.to_json(),
        "tokenizer_config.json": json.dumps(settings, indent=2),
        "special_tokens_map.json": json.dumps(special, indent=2),
    }
    for name in texts.keys() - set(names):
        write_atomically(os.path.join(target, name), (texts[name].rstrip() + "\n").encode())


def dataset_entry(tokenizer: Tokenizer, folder: str, config_keys: dict[str, Any]) -> dict[str, Any]:
    """What a config says of a tokenizer that is not GPT-2's: a dataset, whose records may come.

    Args:
        tokenizer: of the model.
        folder: that the model is converted into.
        config_keys: of the model; its special ids, if it has any.
    """
    eos_id = config_keys.get("eos_id", tokenizer.eos_id)
    name = Path(folder).name
    entry = {
        "id": name,
        "n_vocab": text_tokens(tokenizer),
        "path": f"datasets/{name}/train_[0-9]*.tfrecords",
        "tokenizer_is_pretrained": False,
        "tokenizer_path": os.path.join(folder, TOKENIZER_FILE),
        "eos_id": 0 if eos_id is None else eos_id,
    }
    if "padding_id" in config_keys:
        entry["padding_id"] = config_keys["padding_id"]
    return entry


def is_gpt2(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer is the one that is built in."""
    return tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(load_tokenizer(GPT2_NAME))
