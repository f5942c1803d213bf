"""The typed config: every key, and what follows from the keys."""

from collections.abc import Collection, Mapping
from typing import Any, Optional

from pydantic import BaseModel, PrivateAttr, model_validator

from configs.data_keys import DataKeys
from configs.datasets import DatasetConfig, DatasetSource, entry_from_source
from configs.layout import parse_layout, parse_mesh_shape
from configs.model_keys import ArchitectureKeys, ParallelKeys, SizeKeys
from configs.names import KEY_ALIASES
from configs.training_keys import LossKeys, OptimizerKeys, RunKeys, SamplingKeys

# In the order of the reference.
SECTIONS: tuple[type[BaseModel], ...] = (
    RunKeys,
    DataKeys,
    SizeKeys,
    ArchitectureKeys,
    ParallelKeys,
    OptimizerKeys,
    LossKeys,
    SamplingKeys,
)

# Keys of optional features, with the value of their type that switches them off as null does.
_OFF_VALUES: dict[str, Any] = {
    "adam_bias_correction": False,
    "axial_pos_emb": (),
    "entmax_loss": False,
    "eval_tasks": (),
    "log_grads": False,
    "macaron": False,
    "mlm_training": False,
    "mlp_glu": False,
    "moe_layers": (),
    "moe_params": {},
    "no_weight_tie": False,
    "num_mem_kv": 0,
    "parallel_residual": False,
    "recompute_grad": False,
    "relative_position_bias": False,
    "rezero": False,
    "rotary_emb": False,
    "rotary_interleaved": False,
    "scaled_attention": False,
    "scalenorm": False,
    "share_parameters": False,
    "tokens_per_mb_per_replica": 0,
    "vocab_padding": 0,
}


def canonical_key(name: str) -> str:
    """Returns the key that a spelling stands for; an unknown name stands for itself."""
    return KEY_ALIASES.get(name, name)


def _is_off(name: str, value: Any) -> bool:
    """Returns whether a value says "as if the key were absent"; unknown keys never do."""
    if value is None:
        return name in Config.model_fields
    off = _OFF_VALUES.get(name)
    return type(value) is type(off) and bool(value == off)


def _freeze(value: Any) -> Any:
    """Turns JSON arrays into tuples, at any depth."""
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(item) for item in value)
    return value


# Pydantic orders inherited fields from the last base to the first; a default that is computed
# from another key needs that key before it (lr_decay_end after train_steps).
class Config(
    SamplingKeys,
    LossKeys,
    OptimizerKeys,
    ParallelKeys,
    ArchitectureKeys,
    SizeKeys,
    DataKeys,
    RunKeys,
):
    """One run: a flat JSON file in GPT-Neo's keys, validated and frozen.

    Attribute names are the JSON keys. Build one with `configs.load.load_config` or
    `configs.load.parse_config`, which also check the rules between keys.
    """

    _warnings: tuple[str, ...] = PrivateAttr(default=())
    _left_out: frozenset[str] = PrivateAttr(default=frozenset())

    @model_validator(mode="before")
    @classmethod
    def _normalize(cls, data: Any) -> Any:
        """Drops keys that are off, freezes arrays, takes a missing `n_vocab` from the data."""
        if not isinstance(data, Mapping):
            return data
        frozen = {name: _freeze(value) for name, value in data.items()}
        values = {name: value for name, value in frozen.items() if not _is_off(name, value)}
        if "n_vocab" not in values:
            n_vocab = _first_dataset_vocabulary(values.get("datasets"))
            if n_vocab is not None:
                values["n_vocab"] = n_vocab
        return values

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but hardly meant, one line each, for instance keys without effect."""
        return self._warnings

    def attach_findings(self, warnings: tuple[str, ...], left_out: frozenset[str]) -> None:
        """Stores what the check of the whole config found; called once, by the loader.

        Args:
            warnings: Lines for `warnings`.
            left_out: Keys that `to_json_dict` leaves out.
        """
        self._warnings = warnings
        self._left_out = left_out

    def keep_warnings(self, lines: Collection[str]) -> None:
        """Drops the warnings that are not among ``lines``, as they are about another mesh."""
        self._warnings = tuple(line for line in self._warnings if line in lines)

    @property
    def attention_layers(self) -> tuple[str, ...]:
        """Attention type of each layer, `n_layer` names out of global, local, linear, none."""
        if self.attention_types is None:
            return ("global",) * self.n_layer
        return tuple(name for names, count in self.attention_types for name in names * count)

    @property
    def has_attention_scores(self) -> bool:
        """Whether a layer weighs keys by scores: a global or a local one."""
        return not {"global", "local"}.isdisjoint(self.attention_layers)

    @property
    def head_dim(self) -> int:
        """Features of one attention head."""
        return self.n_embd // self.n_head

    @property
    def mesh_axes(self) -> tuple[tuple[str, int], ...]:
        """(axis name, number of processors along it) of the mesh, in order."""
        return parse_mesh_shape(self.mesh_shape)

    @property
    def mesh_size(self) -> int:
        """Number of processors."""
        size = 1
        for _, axis_size in self.mesh_axes:
            size *= axis_size
        return size

    @property
    def layout_rules(self) -> tuple[tuple[str, str], ...]:
        """(dimension name, mesh axis name) of the layout, in order."""
        return parse_layout(self.layout)

    @property
    def causal(self) -> bool:
        """Whether a position sees nothing behind it."""
        return not self.mlm_training

    @property
    def batch_pieces(self) -> int:
        """Into how many pieces the layout splits the batch."""
        return dict(self.mesh_axes).get(dict(self.layout_rules).get("batch", ""), 1)

    @property
    def microbatches(self) -> int:
        """Parts of the training batch that are processed one after another.

        The largest part that divides a replica's share of the batch and holds no more tokens than
        `tokens_per_mb_per_replica`, but at least one sequence.
        """
        if self.tokens_per_mb_per_replica is None:
            return 1
        rows = self.train_batch_size // self.batch_pieces
        most = max(self.tokens_per_mb_per_replica // self.n_ctx, 1)
        return min(rows // size for size in range(1, min(most, rows) + 1) if rows % size == 0)

    @property
    def token_count(self) -> int:
        """Rows of the vocabulary that stand for tokens; what is behind them is padding."""
        return self.n_vocab - self.vocab_padding

    @property
    def has_final_norm(self) -> bool:
        """Whether the output layer reads a norm of the stream."""
        return self.tied_embeddings if self.final_norm is None else self.final_norm

    @property
    def has_position_embedding(self) -> bool:
        """Whether each position of the window has a learned embedding, `wpe`."""
        others = self.rotary_emb or self.relative_position_bias
        return not others and self.axial_pos_emb is None

    @property
    def rotary_features(self) -> int:
        """Features of each head that rotary positions turn."""
        if not self.rotary_emb:
            return 0
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output layer is the transposed token embedding."""
        return not self.no_weight_tie

    @property
    def expert_activation(self) -> str:
        """Activation of the experts."""
        return self.moe_params.moe_activation or self.activation_function

    @property
    def has_dense_feed_forward(self) -> bool:
        """Whether any feed-forward layer is no mixture of experts."""
        return self.macaron or len(set(self.moe_layers)) < self.n_layer

    @property
    def sources(self) -> tuple[DatasetSource, ...]:
        """The resolved datasets, in order."""
        return self.datasets

    @property
    def dataset(self) -> Optional[DatasetConfig]:
        """Config of the first dataset that has one; all agree on tokenizer and vocabulary."""
        return next((item.dataset for item in self.datasets if item.dataset is not None), None)

    @property
    def lambada_tokens_path(self) -> Optional[str]:
        """That of the first dataset config that has one."""
        configs = [item.dataset for item in self.datasets if item.dataset is not None]
        return next((x.lambada_tokens_path for x in configs if x.lambada_tokens_path), None)

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the resolved config: flat JSON values that load again from any folder.

        Defaults are filled in and dataset configs stand in place of their ids. Left out are only
        defaults of keys without effect in this run, so that loading the result warns exactly as
        loading the original did, and what the flags of this run decided.
        """
        values = self.model_dump(mode="json")
        values["datasets"] = [entry_from_source(source) for source in self.datasets]
        return {name: value for name, value in values.items() if name not in self._left_out}


def _first_dataset_vocabulary(entries: Any) -> Optional[int]:
    """Returns `n_vocab` of the first inline dataset config in raw entries, or None."""
    for entry in entries if isinstance(entries, tuple) else ():
        head = entry[0] if isinstance(entry, tuple) and entry else entry
        if isinstance(head, DatasetSource):
            head = head.dataset
        if isinstance(head, DatasetConfig):
            return head.n_vocab
        if isinstance(head, Mapping):
            n_vocab = head.get("n_vocab")
            return n_vocab if type(n_vocab) is int and n_vocab > 0 else None
    return None
