"""The leaves of Mesh Transformer JAX's state: their order, and how shards make our variables.

A leaf has no name in its file. It has the place that its name has among all names in order; how
its shards are put together follows from the name as well, never from the values: a bias that is
all zeros looks like the bias of a norm.

Source: Mesh Transformer JAX, version 1 of its model.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional

from configs.schema import Config
from interop.hf_architectures import FEED_FORWARD_EXPANSION
from interop.tensors import Shape

EMBEDDING, EMBEDDING_BIAS = "embedding_shard/linear/w", "embedding_shard/linear/b"
_RELATIVE_BUCKETS = 32  # of the table of relative positions


class Merge(enum.Enum):
    """What the shards of a leaf are.

    ROWS and COLUMNS are pieces along the first and second dimension, SUM are terms, FIRST are
    copies of which only the first is used, MEAN are copies whose mean is used.
    """

    ROWS = 0
    COLUMNS = 1
    SUM = 2
    FIRST = 3
    MEAN = 4


@dataclass(frozen=True)
class Leaf:
    """One parameter.

    Attributes:
        name: of it, which puts it in order.
        variable: ours; None if it has none here.
        shape: of the whole.
        merge: how the shards make the whole.
    """

    name: str
    variable: Optional[str]
    shape: Shape
    merge: Merge

    def piece(self, shards: int) -> Shape:
        """Shape of one shard's part; ``check_division`` has seen that the sizes divide."""
        if self.merge not in (Merge.ROWS, Merge.COLUMNS):
            return self.shape
        sizes = list(self.shape)
        sizes[self.merge.value] //= shards
        return tuple(sizes)


def leaves(config: Config) -> list[Leaf]:
    """The parameters of a model, in the order of its checkpoints: by module, then by name."""
    found = [*_embedding(config), *_head(config)]
    for layer in range(config.n_layer):
        found += _layer(config, layer)
    return sorted(found, key=lambda leaf: leaf.name.rpartition("/"))


def _embedding(config: Config) -> list[Leaf]:
    width = config.n_embd
    found = [
        Leaf(EMBEDDING, "gpt2/wte", (config.n_vocab, width), Merge.ROWS),
        Leaf(EMBEDDING_BIAS, None, (width,), Merge.SUM),
    ]
    if config.relative_position_bias:
        name, variable = "relative_position_embs/rel_embedding", "gpt2/relative_positions/table"
        found.append(Leaf(name, variable, (config.n_head, _RELATIVE_BUCKETS), Merge.ROWS))
    elif not config.rotary_emb:
        shape = (config.n_ctx, width)
        found.append(Leaf("embedding_shard/pos_embs", "gpt2/wpe", shape, Merge.COLUMNS))
    return found


def _layer(config: Config, layer: int) -> list[Leaf]:
    theirs, ours, width = f"layer_{layer}", f"gpt2/h{layer}", config.n_embd
    inner, mlp = FEED_FORWARD_EXPANSION * width, f"gpt2/h{layer}/mlp/conv1d_main"
    square, attention = (width, width), f"{ours}/attn"
    return [
        *_norm(config, theirs, f"{ours}/norm_1"),
        Leaf(f"{theirs}/linear/w", f"{attention}/q", square, Merge.COLUMNS),
        Leaf(f"{theirs}/linear_1/w", f"{attention}/v", square, Merge.COLUMNS),
        Leaf(f"{theirs}/linear_2/w", f"{attention}/k", square, Merge.COLUMNS),
        Leaf(f"{theirs}/linear_3/w", f"{attention}/o", square, Merge.ROWS),
        Leaf(f"{theirs}/linear_4/b", f"{mlp}/c_fc/bias", (inner,), Merge.ROWS),
        Leaf(f"{theirs}/linear_4/w", f"{mlp}/c_fc/kernel", (width, inner), Merge.COLUMNS),
        Leaf(f"{theirs}/linear_5/b", f"{mlp}/c_proj/bias", (width,), Merge.SUM),
        Leaf(f"{theirs}/linear_5/w", f"{mlp}/c_proj/kernel", (inner, width), Merge.ROWS),
    ]


def _head(config: Config) -> list[Leaf]:
    vocab, scope = config.n_vocab, "gpt2/wte_final_linear/conv1d_main/linear_out"
    shape = (config.n_embd, vocab)
    return [
        Leaf("projection_shard/linear/b", f"{scope}/bias", (vocab,), Merge.ROWS),
        Leaf("projection_shard/linear/w", f"{scope}/kernel", shape, Merge.COLUMNS),
        *_norm(config, "projection_shard", "gpt2/ln_f"),
    ]


def _norm(config: Config, theirs: str, ours: str) -> list[Leaf]:
    kind, _, variant = config.norm.partition("-")
    shape = () if kind == "scalenorm" else (config.n_embd,)
    if kind == "layernorm":
        name, merge = "replicated_layer_norm", Merge.FIRST
        bias = None if variant == "nobias" else f"{ours}/b"  # it is there even if it is not used
    else:
        name, merge = "rms_norm", Merge.MEAN
        bias = f"{ours}/b"
    found = [Leaf(f"{theirs}/{name}/scale", f"{ours}/g", shape, merge)]
    if kind == "layernorm" or variant == "bias":
        found.append(Leaf(f"{theirs}/{name}/offset", bias, shape, merge))
    return found
