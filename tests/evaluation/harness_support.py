"""A small converted model with a tokenizer, here and in the harness's own class."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from configs.schema import Config
from data.tokenizers import load_tokenizer
from evaluation.scoring import Scorer
from model_fns import Placement
from serving.engine import Engine
from tests.interop.support import FIXTURES, config_of, convert, copy_model
from utils.devices import place_inference

LETTERS = "abcdefghijklmnopqrstuvwxyzĠ"
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("o", "f"), ("w", "o"), ("Ġ", "a"), ("Ġa", "n")]


def save_tokenizer(path: Path, size: int) -> None:
    """Of letters and a few merges; the last id ends a document."""
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    for left, right in MERGES:
        vocabulary[left + right] = len(vocabulary)
    for number in range(len(vocabulary), size - 1):
        vocabulary[f"<unused{number}>"] = number
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.save(str(path))


def texts(count: int, longest: int, seed: int) -> list[str]:
    """Words of few letters, so that merges occur."""
    random = np.random.default_rng(seed)
    letters = list("thewofan")
    return [
        " ".join(
            "".join(random.choice(letters, random.integers(1, 6)))
            for _ in range(random.integers(1, longest))
        )
        for _ in range(count)
    ]


def convert_model(fixtures_dir: Path, kind: str, folder: Path, padding: int = 0) -> Path:
    """Puts a fixture of transformers with a tokenizer into ``folder/theirs``; converts it.

    The tokenizer leaves ``padding`` rows of the vocabulary without a token.
    """
    values = json.loads((fixtures_dir / FIXTURES[kind] / "config.json").read_text())
    size = values["vocab_size"] - padding
    theirs = copy_model(fixtures_dir, kind, folder / "theirs", eos_token_id=size - 1)
    save_tokenizer(theirs / "tokenizer.json", size)
    convert(theirs, folder / "ours")
    return folder / "ours"


def placement(config: Config, rows: int) -> Placement:
    fit = place_inference(config, (), rows, "batch_size")
    return Placement(fit.mesh_layout, fit.devices)


def our_model(folder: Path, batch_size: int = 4, **keys: object) -> Any:
    """The adapter of a converted model."""
    from evaluation.harness_model import HarnessModel

    config = config_of(folder, **keys)
    tokenizer = load_tokenizer(str(folder / "tokenizer.json"), is_pretrained=False)
    checkpoint = str(folder / "model.ckpt-0")

    @functools.cache
    def scorer() -> Scorer:
        made = Scorer(config, placement(config, batch_size), batch_size)
        made.load(checkpoint)
        return made

    @functools.cache
    def engine() -> Engine:
        made = Engine(config, placement(config, batch_size), batch_size, tokenizer)
        made.load(checkpoint)
        return made

    return HarnessModel(config, tokenizer, scorer, engine)


def requests(kind: str, arguments: Sequence[tuple]) -> list[Any]:
    """What the harness asks for; ``arguments`` are those of one request each."""
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, given, 0, ("own", n, 1)) for n, given in enumerate(arguments)]
