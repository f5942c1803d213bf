"""The model of a Mesh Transformer JAX checkpoint, which its files do not describe.

Source: configuration of Mesh Transformer JAX's first model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from configs.errors import ConfigError, shown
from configs.load import load_config, parse_config
from configs.schema import Config
from data.tokenizers import GPT2_SIZE
from interop.hf_configs import other_keys
from interop.hf_files import read_json_object

DEFAULT_MODEL = "gptj_6B"
_THEIR_KEYS = {"layers", "d_model", "n_heads"}
_SIZES = {"layers": "n_layer", "d_model": "n_embd", "n_heads": "n_head", "n_vocab": "n_vocab",
          "seq": "n_ctx"}  # fmt: skip
_TRAINING = {"total_steps": "train_steps", "warmup_steps": "warmup_steps", "lr": "lr",
             "anneal_steps": "anneal_steps", "end_lr": "end_lr",
             "weight_decay": "weight_decay"}  # fmt: skip
_NORMS = ("layernorm", "layernorm-nobias", "rmsnorm", "rmsnorm-bias", "scalenorm")
_POSITIONS: dict[str, dict[str, Any]] = {
    "rotary": {"rotary_emb": True, "rotary_interleaved": True},
    "t5": {"relative_position_bias": True},
    "fixed": {},  # learned ones, despite its name
}
_FIXED: dict[str, Any] = {
    "parallel_residual": True,
    "attention_bias": "none",
    "scaled_attention": True,
    "no_weight_tie": True,
}
_ADAM: dict[str, Any] = {
    "opt_name": "adam",
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-8,
    "adam_bias_correction": True,
    "decay_final_norm": False,
    "gradient_clipping": 1.0,
}
_FREE = {"rotary_emb", "rotary_dim", "rotary_interleaved", "relative_position_bias", "norm",
         "attention_types", "final_norm"}  # fmt: skip


def mtj_config(name: str) -> tuple[Config, int]:
    """The config of a checkpoint.

    Args:
        name: of a config of ours, or a file of one of theirs.

    Returns:
        The config, and the number of shards that it speaks of, 0 if it does not.

    Raises:
        ValueError: it is none of a model that Mesh Transformer JAX has.
    """
    values = _json_of_theirs(name)
    config = load_config(name, mesh_is_fitted=True) if values is None else _ours(values, name)
    check_architecture(config, name)
    shards = 0 if values is None else values.get("cores_per_replica", 0)
    return config, shards if type(shards) is int else 0


def _json_of_theirs(name: str) -> Any:
    if not os.path.isfile(name):
        return None
    try:
        values = read_json_object(name)
    except ValueError:
        return None  # load_config says what is wrong
    return values if values.keys() >= _THEIR_KEYS else None


def _ours(values: Mapping[str, Any], path: str) -> Config:
    """Reads a config of theirs."""
    missing = [key for key in (*_SIZES, "norm", "pe") if values.get(key) is None]
    if missing:
        raise ValueError(
            f"{path} must say {', '.join((*_SIZES, 'norm', 'pe'))}; got no {', '.join(missing)}. "
            "Add it."
        )
    for key, choices in (("norm", _NORMS), ("pe", tuple(_POSITIONS))):
        if values[key] not in choices:
            raise ValueError(
                f"{key} must be one of {', '.join(choices)} to be converted; got "
                f"{shown(values[key])} in {path}. There is no such model here."
            )
    ours = {ours: values[key] for key, ours in _SIZES.items()}
    ours |= {ours: values[key] for key, ours in _TRAINING.items() if values.get(key) is not None}
    ours |= {**_FIXED, **_ADAM, **_POSITIONS[values["pe"]]}
    ours |= {"final_norm": True, "initializer": "gptj", "norm": values["norm"]}
    if values["pe"] == "rotary" and values.get("pe_rotary_dims") is not None:
        ours["rotary_dim"] = values["pe_rotary_dims"]
    ours["train_batch_size"] = _batch_size(values)
    ours.setdefault("train_steps", 1000)
    ours["model_path"] = f"runs/{os.path.basename(path).removesuffix('.json')}"
    vocabulary = values["n_vocab"]
    if type(vocabulary) is int and vocabulary > GPT2_SIZE:
        ours["vocab_padding"] = vocabulary - GPT2_SIZE
    try:
        return parse_config(ours)
    except ConfigError as error:
        raise ValueError(
            f"{path} must describe a model that can be built; got: {'; '.join(error.problems)}. "
            "Correct it."
        ) from error


def _batch_size(values: Mapping[str, Any]) -> int:
    """Sequences of an update, all replicas and microbatches together; 8 if nothing says it."""
    keys = ("per_replica_batch", "gradient_accumulation_steps", "tpu_size", "cores_per_replica")
    batch, accumulated, cores, shards = (values.get(key, 1) for key in keys)
    if "per_replica_batch" not in values or not all(
        type(number) is int and number > 0 for number in (batch, accumulated, cores, shards)
    ):
        return 8
    return batch * accumulated * max(cores // shards, 1)


def check_division(config: Config, shards: int, folder: str) -> None:
    """Refuses sizes that cannot be divided among the shards: what each has would be guessed.

    Mesh Transformer JAX begins with no sizes that do not come out even. Divided are the rows of the
    vocabulary, the features, the four times wider features of the feed-forward layer, and the heads
    of the table of relative positions.

    Args:
        config: of ours.
        shards: of the checkpoint.
        folder: of the checkpoint, for the error.

    Raises:
        ValueError: names every size that is wrong.
    """
    names = {ours: theirs for theirs, ours in _SIZES.items()}
    keys = ["n_vocab", "n_embd", *["n_head"] * config.relative_position_bias]
    sizes = {names[key]: getattr(config, key) for key in keys}
    wrong = [f"{name} {size:,}" for name, size in sizes.items() if size % shards]
    if wrong:
        raise ValueError(
            f"{', '.join(sizes)} must be multiples of the {shards} shards in {folder}; got "
            f"{', '.join(wrong)}. Name the config of this checkpoint with --model."
        )


def check_architecture(config: Config, name: str) -> None:
    """Refuses models that Mesh Transformer JAX has not, whose leaves are unknown.

    Args:
        config: of ours.
        name: of it, for errors.

    Raises:
        ValueError: names every key that stands against it.
    """
    problems = [f"{key} {shown(getattr(config, key))}" for key in other_keys(config, _FIXED, _FREE)]
    if set(config.attention_layers) != {"global"}:
        problems.append(f"attention_types {json.dumps(config.attention_types)}")
    if not config.has_final_norm:
        problems.append("no final norm")
    if config.norm not in _NORMS:
        problems.append(f"norm {shown(config.norm)}")
    if config.rotary_emb and not config.rotary_interleaved:
        problems.append("rotary_interleaved false")
    if config.activation_function != "gelu":
        problems.append(f"activation_function {shown(config.activation_function)}")
    if not config.causal:
        problems.append("mlm_training true")
    if problems:
        raise ValueError(
            f"a checkpoint of Mesh Transformer JAX must come with the config of a model that it "
            f"has; got {', '.join(problems)} in {name}. Use the config of this checkpoint."
        )
