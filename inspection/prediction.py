"""What a training run would need, predicted from models that have few of its layers.

Layers of one kind are alike: each adds the same to memory, arithmetic and communication. So a
model with one layer of each kind, and one more of them at a time, tells what all of them need,
in a fraction of the time that the whole model's graph takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from configs.load import parse_config
from configs.schema import Config
from inspection.measure import measure


class LayerKind(NamedTuple):
    """What tells layers apart.

    Attributes:
        attention: type of the attention.
        experts: whether the feed-forward layer is a mixture of experts.
    """

    attention: str
    experts: bool


class Need(NamedTuple):
    """What one processor needs for a training step.

    Attributes:
        peak_bytes: memory at its fullest: weights, slots, gradients and activations.
        sent_bytes: sent to other processors.
        flops: arithmetic of matrix products.
    """

    peak_bytes: int
    sent_bytes: int
    flops: int


def layer_kinds(config: Config) -> list[LayerKind]:
    """The kind of each layer."""
    return [
        LayerKind(attention, layer in config.moe_layers)
        for layer, attention in enumerate(config.attention_layers)
    ]


def one_of_each(config: Config) -> list[LayerKind]:
    """The kinds of layers that the model has, in the order of their first layer."""
    return list(dict.fromkeys(layer_kinds(config)))


def with_layers(config: Config, kinds: Sequence[LayerKind]) -> Config:
    """The same model with other layers.

    Args:
        config: a checked config.
        kinds: of the layers.
    """
    changed = {
        "n_layer": len(kinds),
        "attention_types": [[[kind.attention for kind in kinds], 1]],
        "moe_layers": [layer for layer, kind in enumerate(kinds) if kind.experts],
    }
    return parse_config(config.to_json_dict() | changed)


def _measured(config: Config) -> Need:
    run = measure(config)
    sent = sum(collective.sent_bytes for collective in run.communication)
    return Need(run.peak_bytes, sent, run.flops.per_processor)


def predict_need(config: Config) -> Need:
    """Measures models with few layers and extends the line.

    Args:
        config: a checked config.

    Raises:
        ValueError: the layout splits what an operation needs whole.
    """
    counts = Counter(layer_kinds(config))
    if config.n_layer <= len(counts) + 1:
        return _measured(config)
    kinds = one_of_each(config)
    small = _measured(with_layers(config, kinds))
    total = small
    for kind, count in counts.items():
        if count > 1:
            larger = _measured(with_layers(config, [*kinds, kind]))
            total = Need(
                *(
                    sum_ + (count - 1) * (more - less)
                    for sum_, more, less in zip(total, larger, small)
                )
            )
    return total
