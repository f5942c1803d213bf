"""The dataset config that belongs to freshly made records."""

from __future__ import annotations

import os
from typing import Any

from data.records import SUFFIX
from data.tokenizers import Tokenizer


def dataset_config(
    tokenizer: Tokenizer, is_pretrained: bool, eos_id: int, output_dir: str, name: str
) -> dict[str, Any]:
    """Describes records so that a model trains on them without an edit.

    Paths are absolute, so that the config works from any folder. The path of
    held-out records is empty, since nothing is known of them here.

    Args:
        tokenizer: the tokenizer of the records.
        is_pretrained: whether it was loaded by name rather than from a file.
        eos_id: id that ends a document.
        output_dir: folder of the records, local or `gs://`.
        name: first part of their file names.

    Returns:
        Content of the JSON file. Where the vocabulary has no padding token,
        `padding_id` is the end of text.
    """
    folder = output_dir if "://" in output_dir else os.path.abspath(output_dir)
    return {
        "n_vocab": tokenizer.size,
        "path": os.path.join(folder, f"{name}_*{SUFFIX}"),
        "eval_path": "",
        "tokenizer_is_pretrained": is_pretrained,
        "tokenizer_path": tokenizer.name if is_pretrained else os.path.abspath(tokenizer.name),
        "eos_id": eos_id,
        "padding_id": eos_id if tokenizer.padding_id is None else tokenizer.padding_id,
    }
