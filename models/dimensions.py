"""Every named dimension of the model, built once from the config.

The names are a contract: they are what ``layout`` in a config speaks of. No other module writes
a dimension name as a string.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional

from configs.schema import Config
from utils.mesh_tensorflow import mtf

FEED_FORWARD_EXPANSION = 4  # width of the hidden layer over n_embd; GPT paper, section 4.1

RELATIVE_BUCKETS = 32  # of distances between query and key, for relative positions; T5's

CACHE_BLOCK = 64
"""Positions of a block of the key-value cache. A cache holds whole blocks."""

WHOLE_IN_GENERATION = ("sequence", "embed_sequence")
"""Dimensions that generation cannot split: it feeds a few positions at a time, and each row of
the batch looks up its own."""


@dataclass(frozen=True)
class ExpertDims:
    """Dimensions of mixture-of-experts layers.

    Attributes:
        experts: where the experts work; a layout may split it.
        routes: the same experts where tokens choose among all of them; never split.
        hidden: hidden width of one expert. It carries the name ``intermediate_expanded`` because
            a layout splits it like that of a feed-forward layer.
        capacity: tokens of one sequence that an expert takes in training.
        whole_batch: the sequences, under a name that leaves the batch's mesh axis to the experts.
    """

    experts: mtf.Dimension
    routes: mtf.Dimension
    hidden: mtf.Dimension
    capacity: mtf.Dimension
    whole_batch: mtf.Dimension

    @classmethod
    def from_config(cls, config: Config, batch_size: int) -> ExpertDims:
        """Arguments as ``Dimensions.from_config``.

        Source: the capacity is that of Mesh TensorFlow's ``transformer_moe_layer_v1``, for groups
        of one sequence.
        """
        params = config.moe_params
        count, length = params.moe_num_experts, config.n_ctx
        share = int(length * params.moe_capacity_factor_train / count)
        capacity = min(length, max(share, params.moe_min_expert_capacity))
        return cls(
            experts=mtf.Dimension("experts", count),
            routes=mtf.Dimension("experts_unsplit", count),
            hidden=mtf.Dimension("intermediate_expanded", params.moe_hidden_size),
            capacity=mtf.Dimension("expert_capacity", capacity),
            whole_batch=mtf.Dimension("batch_unsplit", batch_size),
        )


@dataclass(frozen=True)
class Dimensions:
    """The dimensions of one graph.

    Attributes:
        batch: sequences that are processed together.
        sequence: positions of the queries (the tokens fed in).
        memory_length: positions of the keys and values.
        embed_sequence: positions that have an embedding (n_ctx).
        embd: width of the residual stream.
        heads: attention heads.
        features_per_head: width of one head.
        heads_and_features: heads times their features, as one dimension of the projections'
            weights. It carries the name ``heads`` because a layout that splits the heads
            splits it into the same blocks.
        intermediate_expanded: hidden width of the feed-forward layer.
        vocab: entries of the vocabulary.
        memory_slots: learned keys and values that every query sees; None without them.
        axial: rows and columns of axial positions; None with another kind of positions.
        mixture: of mixture-of-experts layers; None without them.
    """

    batch: mtf.Dimension
    sequence: mtf.Dimension
    memory_length: mtf.Dimension
    embed_sequence: mtf.Dimension
    embd: mtf.Dimension
    heads: mtf.Dimension
    features_per_head: mtf.Dimension
    heads_and_features: mtf.Dimension
    intermediate_expanded: mtf.Dimension
    vocab: mtf.Dimension
    memory_slots: Optional[mtf.Dimension] = None
    axial: Optional[tuple[mtf.Dimension, mtf.Dimension]] = None
    mixture: Optional[ExpertDims] = None

    @classmethod
    def from_config(cls, config: Config, batch_size: int) -> Dimensions:
        """Builds the dimensions of a full window of ``config.n_ctx`` tokens.

        Args:
            config: a checked config.
            batch_size: sequences.
        """
        return cls(
            batch=mtf.Dimension("batch", batch_size),
            sequence=mtf.Dimension("sequence", config.n_ctx),
            memory_length=mtf.Dimension("memory_length", config.n_ctx),
            embed_sequence=mtf.Dimension("embed_sequence", config.n_ctx),
            embd=mtf.Dimension("embd", config.n_embd),
            heads=mtf.Dimension("heads", config.n_head),
            features_per_head=mtf.Dimension("features_per_head", config.head_dim),
            heads_and_features=mtf.Dimension("heads", config.n_head * config.head_dim),
            intermediate_expanded=mtf.Dimension(
                "intermediate_expanded", FEED_FORWARD_EXPANSION * config.n_embd
            ),
            vocab=mtf.Dimension("vocab", config.n_vocab),
            memory_slots=(
                mtf.Dimension("memory_slots", config.num_mem_kv) if config.num_mem_kv else None
            ),
            axial=_axial_dims(config),
            mixture=ExpertDims.from_config(config, batch_size) if config.moe_layers else None,
        )

    @property
    def value_features(self) -> mtf.Dimension:
        """``features_per_head`` of values, beside that of keys in one tensor; never split."""
        return mtf.Dimension("value_features", self.features_per_head.size)

    @property
    def projections(self) -> mtf.Dimension:
        """Queries, keys and values in one tensor; never split."""
        return mtf.Dimension("projections", 3)

    @property
    def relative_buckets(self) -> mtf.Dimension:
        """Buckets of distances in the table of relative positions; never split."""
        return mtf.Dimension("relative_buckets", RELATIVE_BUCKETS)

    @property
    def cache_blocks(self) -> tuple[mtf.Dimension, mtf.Dimension]:
        """``memory_length`` of a cache as blocks and the positions of a block; never split."""
        block = mtf.Dimension("cache_block", min(CACHE_BLOCK, self.memory_length.size))
        return mtf.Dimension("cache_blocks", self.memory_length.size // block.size), block

    @staticmethod
    def top_tokens(count: int) -> mtf.Dimension:
        """The most likely tokens; never split."""
        return mtf.Dimension("top_tokens", count)

    def for_prompt(self) -> Dimensions:
        """The same dimensions with one text, which no layout splits, in place of a batch of one."""
        assert self.batch.size == 1
        return replace(self, batch=mtf.Dimension("prompt", 1))

    def with_sequence(self, length: int) -> Dimensions:
        """The same dimensions with queries at ``length`` positions (a chunk of the window)."""
        return replace(self, sequence=mtf.Dimension("sequence", length))

    def with_window(self, length: int) -> Dimensions:
        """The same dimensions with a window of only its first ``length`` positions."""
        memory_length = mtf.Dimension("memory_length", length)
        return replace(self.with_sequence(length), memory_length=memory_length)

    def with_cache(self, length: int) -> Dimensions:
        """The same dimensions with the keys and values in a cache of ``length`` positions.

        The cache is written position by position, so its dimension has a name of its own that
        no layout splits.
        """
        return replace(self, memory_length=mtf.Dimension("cache_length", length))


def _axial_dims(config: Config) -> Optional[tuple[mtf.Dimension, mtf.Dimension]]:
    if config.axial_pos_emb is None:
        return None
    rows, columns = config.axial_pos_emb
    return mtf.Dimension("axial_rows", rows), mtf.Dimension("axial_columns", columns)
