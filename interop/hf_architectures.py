"""Hugging Face's GPT-2, GPT-Neo and GPT-J as choices of our config, and their tensors as ours.

Source: configuration and modeling files of gpt2, gpt_neo and gptj in transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from configs.schema import Config
from interop.links import Link

FEED_FORWARD_EXPANSION = 4
EPSILON = 1e-5
REQUIRED = object()
"""In place of the default of a key that a config must have."""


@dataclass(frozen=True)
class Architecture:
    """One model of transformers.

    Attributes:
        model_type: its name in ``config.json``.
        class_name: its class with a head for text.
        keys: our key -> their key, and what it is when ``config.json`` does not have it.
        inner_key: their key of the feed-forward layer's width.
        fixed: what our config must say.
        tied: whether the head is the token embedding when ``config.json`` does not say.
        links: their tensors and our variables.
        attention: kinds of attention that a layer may have.
        only: their keys that decide about the network and may have this value only.
    """

    model_type: str
    class_name: str
    keys: Mapping[str, tuple[str, Any]]
    inner_key: str
    fixed: Mapping[str, Any]
    tied: bool
    links: Callable[[Config], list[Link]]
    attention: frozenset[str] = frozenset({"global"})
    only: Mapping[str, Any] = field(default_factory=dict)


def _norm(config: Config, ours: str, theirs: str) -> list[Link]:
    shape = (config.n_embd,)
    return [Link((f"{ours}/g",), shape, f"{theirs}.weight"),
            Link((f"{ours}/b",), shape, f"{theirs}.bias")]  # fmt: skip


def _dense(ours: str, shape: tuple[int, int], theirs: str, transposed: bool) -> list[Link]:
    """A dense layer: our kernel and that of GPT-2 are [in, out], those of Linear [out, in]."""
    return [
        Link((f"{ours}/kernel",), shape, f"{theirs}.weight", transposed),
        Link((f"{ours}/bias",), shape[1:], f"{theirs}.bias"),
    ]


def _feed_forward(
    config: Config, layer: int, theirs: tuple[str, str], transposed: bool
) -> list[Link]:
    scope, width = f"gpt2/h{layer}/mlp/conv1d_main", config.n_embd
    inner = FEED_FORWARD_EXPANSION * width
    expand, project = (f"transformer.h.{layer}.mlp.{name}" for name in theirs)
    return [
        *_dense(f"{scope}/c_fc", (width, inner), expand, transposed),
        *_dense(f"{scope}/c_proj", (inner, width), project, transposed),
    ]


def _projections(config: Config, layer: int, theirs: str) -> list[Link]:
    """Queries, keys, values and output, each a Linear without bias."""
    square = (config.n_embd, config.n_embd)
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
    return [
        Link((f"gpt2/h{layer}/attn/{ours}",), square, f"{theirs}.{name}.weight", True)
        for ours, name in names.items()
    ]


def _output_bias(config: Config, layer: int, theirs: str) -> Link:
    name = f"gpt2/h{layer}/attn/compute_output_bias/o_b"
    return Link((name,), (config.n_embd,), theirs)


def _head(config: Config, has_bias: bool) -> list[Link]:
    """The final norm, and an output layer of its own if there is one."""
    links = _norm(config, "gpt2/ln_f", "transformer.ln_f")
    if not config.tied_embeddings:
        scope, vocab = "gpt2/wte_final_linear/conv1d_main/linear_out", config.n_vocab
        kernel = Link((f"{scope}/kernel",), (config.n_embd, vocab), "lm_head.weight", True)
        bias = Link((f"{scope}/bias",), (vocab,), "lm_head.bias" if has_bias else None)
        links += [kernel, bias]
    return links


def _embeddings(config: Config, learned_positions: bool) -> list[Link]:
    width = config.n_embd
    links = [Link(("gpt2/wte",), (config.n_vocab, width), "transformer.wte.weight")]
    if learned_positions:
        links.append(Link(("gpt2/wpe",), (config.n_ctx, width), "transformer.wpe.weight"))
    return links


def _gpt2_links(config: Config) -> list[Link]:
    width = config.n_embd
    links = _embeddings(config, True)
    for layer in range(config.n_layer):
        ours, theirs = f"gpt2/h{layer}", f"transformer.h.{layer}"
        kernels = tuple(f"{ours}/attn/{name}" for name in "qkv")
        biases = tuple(f"{ours}/attn/compute_{name}_bias/{name}_b" for name in "qkv")
        links += [
            *_norm(config, f"{ours}/norm_1", f"{theirs}.ln_1"),
            Link(kernels, (width, width), f"{theirs}.attn.c_attn.weight"),
            Link(biases, (width,), f"{theirs}.attn.c_attn.bias"),
            Link((f"{ours}/attn/o",), (width, width), f"{theirs}.attn.c_proj.weight"),
            _output_bias(config, layer, f"{theirs}.attn.c_proj.bias"),
            *_norm(config, f"{ours}/norm_2", f"{theirs}.ln_2"),
            *_feed_forward(config, layer, ("c_fc", "c_proj"), transposed=False),
        ]
    return links + _head(config, has_bias=False)


def _gpt_neo_links(config: Config) -> list[Link]:
    links = _embeddings(config, True)
    for layer in range(config.n_layer):
        ours, theirs = f"gpt2/h{layer}", f"transformer.h.{layer}"
        links += [
            *_norm(config, f"{ours}/norm_1", f"{theirs}.ln_1"),
            *_projections(config, layer, f"{theirs}.attn.attention"),
            _output_bias(config, layer, f"{theirs}.attn.attention.out_proj.bias"),
            *_norm(config, f"{ours}/norm_2", f"{theirs}.ln_2"),
            *_feed_forward(config, layer, ("c_fc", "c_proj"), transposed=True),
        ]
    return links + _head(config, has_bias=False)


def _gptj_links(config: Config) -> list[Link]:
    links = _embeddings(config, False)
    for layer in range(config.n_layer):
        theirs = f"transformer.h.{layer}"
        links += [
            *_norm(config, f"gpt2/h{layer}/norm_1", f"{theirs}.ln_1"),
            *_projections(config, layer, f"{theirs}.attn"),
            *_feed_forward(config, layer, ("fc_in", "fc_out"), transposed=True),
        ]
    return links + _head(config, has_bias=True)


_GPT2_KEYS = {
    "n_vocab": ("vocab_size", REQUIRED),
    "n_ctx": ("n_positions", REQUIRED),
    "n_embd": ("n_embd", REQUIRED),
    "n_layer": ("n_layer", REQUIRED),
    "n_head": ("n_head", REQUIRED),
    "embed_dropout": ("embd_pdrop", 0.1),
    "attn_dropout": ("attn_pdrop", 0.1),
    "res_dropout": ("resid_pdrop", 0.1),
}
_GPTJ_DROPOUT = {"embed_dropout": 0.0, "attn_dropout": 0.0, "res_dropout": 0.0}

GPT2 = Architecture(
    "gpt2",
    "GPT2LMHeadModel",
    keys=_GPT2_KEYS | {"scaled_attention": ("scale_attn_weights", True)},
    inner_key="n_inner",
    fixed={"attention_bias": "all"},
    tied=True,
    links=_gpt2_links,
    only={"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
)
GPT_NEO = Architecture(
    "gpt_neo",
    "GPTNeoForCausalLM",
    keys={
        "n_vocab": ("vocab_size", REQUIRED),
        "n_ctx": ("max_position_embeddings", REQUIRED),
        "n_embd": ("hidden_size", REQUIRED),
        "n_layer": ("num_layers", REQUIRED),
        "n_head": ("num_heads", REQUIRED),
        "embed_dropout": ("embed_dropout", 0.0),
        "attn_dropout": ("attention_dropout", 0.0),
        "res_dropout": ("resid_dropout", 0.0),
        "attention_types": ("attention_types", REQUIRED),
        "local_attention_radius": ("window_size", 256),
    },
    inner_key="intermediate_size",
    fixed={"attention_bias": "output"},
    tied=True,
    links=_gpt_neo_links,
    attention=frozenset({"global", "local"}),
)
GPTJ = Architecture(
    "gptj",
    "GPTJForCausalLM",
    keys={
        **{
            key: (theirs, _GPTJ_DROPOUT.get(key, default))
            for key, (theirs, default) in _GPT2_KEYS.items()
        },
        "rotary_dim": ("rotary_dim", 64),
    },
    inner_key="n_inner",
    fixed={
        "attention_bias": "none",
        "rotary_emb": True,
        "rotary_interleaved": True,
        "parallel_residual": True,
        "scaled_attention": True,
        "no_weight_tie": True,
    },
    tied=False,
    links=_gptj_links,
    only={"tie_word_embeddings": False},
)
ARCHITECTURES = {item.model_type: item for item in (GPT2, GPT_NEO, GPTJ)}
