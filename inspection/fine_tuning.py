"""Learning rate and steps for fine-tuning, from the number of sequences."""

from __future__ import annotations

import json
from typing import Any

from configs.schema import Config

LARGEST_LR, SMALLEST_LR = 5e-5, 1e-5
WARMUP_SHARE = 0.1


def suggested_keys(sequences: int, config: Config) -> dict[str, Any]:
    """Keys of a config that trains for one epoch.

    Source: the guide to fine-tuning GPT-J in Mesh Transformer JAX, whose example this is for 1,147
    sequences in batches of 16: a peak of 5e-5 to 1e-5 for 6B parameters, an end of a fifth to a
    tenth of it, a warm-up over 5 to 10 % of the steps, and annealing over all others.

    Args:
        sequences: of one epoch.
        config: train_batch_size; a decay that stands in the way is taken out.

    Returns:
        Values by key, null for keys that are to be removed.
    """
    steps = max(-(-sequences // config.train_batch_size), 2)
    warmup = int(steps * WARMUP_SHARE)
    keys = {
        "train_steps": steps,
        "lr": LARGEST_LR,
        "end_lr": LARGEST_LR / 5,
        "warmup_steps": warmup,
        "anneal_steps": steps - warmup,
    }
    given = config.model_fields_set
    others = {"lr_decay", "lr_decay_end"} & given
    return keys | {key: None for key in sorted(others) if getattr(config, key) is not None}


def suggestion_lines(sequences: int, config: Config) -> list[str]:
    """The suggestion as text, keys in a line that can be pasted; arguments as above."""
    keys = suggested_keys(sequences, config)
    return [
        f"To fine-tune a model of billions of parameters for one epoch ({keys['train_steps']:,} "
        f"steps of {config.train_batch_size}): lr {SMALLEST_LR:g} to {LARGEST_LR:g}, more for small"
        " ones. Keys to begin with:",
        json.dumps(keys)[1:-1],
    ]
