"""``config.json`` of a Hugging Face model as a config of ours, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Optional

from configs.datasets import GPT2_EOS_ID
from configs.effects import inert_keys
from configs.errors import ConfigError, closest, shown
from configs.load import parse_config
from configs.model_keys import ArchitectureKeys
from configs.schema import Config
from interop.hf_architectures import (
    ARCHITECTURES,
    EPSILON,
    FEED_FORWARD_EXPANSION,
    GPT2,
    GPT_NEO,
    GPTJ,
    REQUIRED,
    Architecture,
)

# Theirs -> ours; of several of theirs for one of ours the first is written.
_ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu": "gelu_exact",
    "relu": "relu",
    "relu6": "relu6",
    "relu2": "squared_relu",
    "silu": "silu",
    "swish": "swish",
    "mish": "mish",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "linear": "identity",
}
# Initial values and noise of training, which weights do not depend on.
_FREE_KEYS = {"embed_dropout", "attn_dropout", "res_dropout", "scale_by_depth", "scale_by_in",
              "initializer", "activation_function"}  # fmt: skip
EOS_KEY, PADDING_ID_KEY = "eos_token_id", "pad_token_id"
PADDING_KEY = "vocab_padding"
"""Our key, which is kept in ``config.json``: transformers keeps keys that it does not know."""


def architecture_of(values: Mapping[str, Any], path: str) -> Architecture:
    """The model that a ``config.json`` describes.

    Raises:
        ValueError: it is none that can be converted.
    """
    name = values.get("model_type")
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    match = closest(str(name), ARCHITECTURES)
    hint = f"Did you mean {match}?" if match else "Other models cannot be converted."
    raise ValueError(
        f"model_type must be one of {', '.join(ARCHITECTURES)}; got {shown(name)} in {path}. {hint}"
    )


@dataclass(frozen=True)
class _Fault:
    """A key that stands against a conversion: what it must be, and what it is."""

    key: str
    rule: str
    got: Any


def _refuse(path: str, faults: Sequence[_Fault]) -> None:
    """Names all faults at once.

    Raises:
        ValueError: there are some.
    """
    if not faults:
        return
    rules = "; ".join(f"{fault.key} must be {fault.rule}" for fault in faults)
    got = ", ".join(shown(fault.got) for fault in faults)
    raise ValueError(f"{rules} to be converted; got {got} in {path}. There is no such model here.")


def to_own_values(
    values: Mapping[str, Any], path: str, tokens: Optional[int] = None
) -> dict[str, Any]:
    """The keys of ours that a ``config.json`` decides.

    Args:
        values: of ``config.json``.
        path: of the file, for errors.
        tokens: of the vocabulary that stand for text; None if there is no tokenizer to tell.

    Raises:
        ValueError: the model cannot be expressed.
    """
    model = architecture_of(values, path)
    given = {ours: values.get(theirs, default) for ours, (theirs, default) in model.keys.items()}
    missing = [ours for ours, value in given.items() if value is REQUIRED or value is None]
    faults = [_Fault(model.keys[ours][0], "given", None) for ours in missing]
    faults += _fixed_parts(model, values, given["n_embd"])
    name = values.get("activation_function", "gelu_new")
    if name not in tuple(_ACTIVATIONS):  # compared, since JSON has values that cannot be hashed
        faults.append(_Fault("activation_function", f"one of {', '.join(_ACTIVATIONS)}", name))
    _refuse(path, faults)
    ours = {**given, **model.fixed, "activation_function": _ACTIVATIONS[name]}
    if not values.get("tie_word_embeddings", model.tied):
        ours |= {"no_weight_tie": True, "final_norm": True}
    padding, rows = values.get(PADDING_KEY), ours["n_vocab"]
    if type(rows) is not int:  # which the check of the config says
        return ours
    if padding is None and tokens is not None:
        padding = max(rows - tokens, 0)
    if padding:
        ours[PADDING_KEY] = padding
    return ours | _special_ids(values, rows - (padding if type(padding) is int else 0))


def _fixed_parts(model: Architecture, values: Mapping[str, Any], width: Any) -> list[_Fault]:
    only = {"layer_norm_epsilon": EPSILON, "quantization_config": None} | dict(model.only)
    faults = [
        _Fault(key, shown(wanted), values[key])
        for key, wanted in only.items()
        if values.get(key, wanted) != wanted
    ]
    inner = values.get(model.inner_key)
    # A width that is no number is said elsewhere.
    if type(width) is int and inner not in (None, FEED_FORWARD_EXPANSION * width):
        rule = f"null or {FEED_FORWARD_EXPANSION} times the width {width}"
        faults.append(_Fault(model.inner_key, rule, inner))
    return faults


def _special_ids(values: Mapping[str, Any], count: int) -> dict[str, int]:
    """Those ids of a ``config.json`` that are ids of one of ``count`` tokens."""
    ids = {}
    # What transformers takes where the key is not there.
    for key, theirs, default in (
        ("eos_id", EOS_KEY, GPT2_EOS_ID),
        ("padding_id", PADDING_ID_KEY, None),
    ):
        value = values.get(theirs, default)
        value = value[0] if isinstance(value, list) and value else value
        if type(value) is int and 0 <= value < count:
            ids[key] = value
    if "eos_id" in ids:
        ids.setdefault("padding_id", ids["eos_id"])
    return ids


def to_own_config(
    values: Mapping[str, Any], path: str, run_keys: Mapping[str, Any], tokens: Optional[int] = None
) -> Config:
    """A checked config of ours.

    Args:
        values: of ``config.json``.
        path: of the file, for errors.
        run_keys: what ``config.json`` does not say: model_path, train_steps and so on.
        tokens: as in ``to_own_values``.

    Raises:
        ValueError: the model cannot be expressed.
    """
    try:
        return parse_config(to_own_values(values, path, tokens) | dict(run_keys))
    except ConfigError as error:
        raise ValueError(
            f"{path} must describe a model that can be built; got: {'; '.join(error.problems)}. "
            "Restore it from where the model came from."
        ) from error


def hf_architecture(config: Config) -> Architecture:
    """The model of transformers that computes what a config of ours does.

    Raises:
        ValueError: there is none; names every key that stands against it.
    """
    if config.parallel_residual:
        model = GPTJ
    else:
        model = GPT2 if config.attention_bias == "all" else GPT_NEO
    free = model.keys.keys() | {"attention_types", "final_norm"}
    if "tie_word_embeddings" not in model.only:
        free |= {"no_weight_tie"}
    others = other_keys(config, model.fixed, free)
    problems = [f"{key} {shown(getattr(config, key))}" for key in others]
    kinds = sorted(set(config.attention_layers) - model.attention)
    problems += [f"attention_types with {kind}" for kind in kinds]
    if not config.has_final_norm:
        problems.append("no final norm")
    if not config.causal:
        problems.append("mlm_training true")
    if config.activation_function not in _ACTIVATIONS.values():
        problems.append(f"activation_function {shown(config.activation_function)}")
    if problems:
        raise ValueError(
            f"the model must be a GPT-2, GPT-Neo or GPT-J to be exported; got {', '.join(problems)}"
            f", which the nearest of them, {model.model_type}, has not. It cannot be exported."
        )
    return model


def other_keys(config: Config, fixed: Mapping[str, Any], free: AbstractSet[str]) -> list[str]:
    """Keys of the network with another value than the model of another program has.

    Args:
        config: of ours.
        fixed: what the model is; keys that are not among them are at their default.
        free: keys that may be anything, or that are looked at elsewhere.
    """
    skipped = free | _FREE_KEYS | set(inert_keys(config))
    return [
        key
        for key, key_field in ArchitectureKeys.model_fields.items()
        if key not in skipped
        and getattr(config, key) != fixed.get(key, key_field.get_default(call_default_factory=True))
    ]


def to_hf_values(config: Config, dtype: str) -> dict[str, Any]:
    """The content of ``config.json``.

    Args:
        config: of ours.
        dtype: number format of the weights, as PyTorch names it.

    Raises:
        ValueError: as ``hf_architecture``.
    """
    model = hf_architecture(config)
    own = json.loads(config.model_dump_json())
    own["rotary_dim"] = config.rotary_dim or config.head_dim
    own["attention_types"] = own["attention_types"] or [[["global"], config.n_layer]]
    theirs = {ours: name for name, ours in reversed(_ACTIVATIONS.items())}
    values = {
        "model_type": model.model_type,
        "architectures": [model.class_name],
        **{name: own[key] for key, (name, _) in model.keys.items()},
        model.inner_key: None,
        "activation_function": theirs[config.activation_function],
        "layer_norm_epsilon": EPSILON,
        "initializer_range": 0.02,
        **model.only,
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": dtype,
        "use_cache": True,
    }
    if config.vocab_padding:
        values[PADDING_KEY] = config.vocab_padding
    # transformers has ids of its own in place of keys that are not there.
    eos_id = known_eos_id(config)
    values |= {"bos_token_id": eos_id, EOS_KEY: eos_id}
    if config.padding_id < config.token_count:
        values[PADDING_ID_KEY] = config.padding_id
    return values


def known_eos_id(config: Config) -> Optional[int]:
    """The id that ends a document; None if no token of the vocabulary has it."""
    return config.eos_id if config.eos_id < config.token_count else None


def generation_values(config: Config) -> dict[str, Any]:
    """The content of ``generation_config.json``: rows that no token has are never drawn."""
    values: dict[str, Any] = {"_from_model_config": True}
    eos_id = known_eos_id(config)
    if eos_id is not None:
        values |= {"bos_token_id": eos_id, EOS_KEY: eos_id}
    if config.vocab_padding:
        values["suppress_tokens"] = list(range(config.token_count, config.n_vocab))
    return values
