"""The models of transformers: GPT-2, and GPT-Neo where attention is local."""

from __future__ import annotations

from typing import Any

import torch
import transformers


def build_model(shape: dict[str, Any]) -> Any:
    """The model, as a function of ids and labels to the loss, and its parameters."""
    model = causal_model(shape)
    model.train()

    def loss(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = model(ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    return loss, list(model.parameters())


def causal_model(shape: dict[str, Any]) -> Any:
    """A model with random weights; without dropout, as the other contenders."""
    if shape["window"] is None:
        gpt2 = transformers.GPT2Config(
            n_layer=shape["layers"],
            n_embd=shape["width"],
            n_head=shape["heads"],
            n_positions=shape["context"],
            vocab_size=shape["vocabulary"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
        return transformers.GPT2LMHeadModel(gpt2)
    neo = transformers.GPTNeoConfig(
        num_layers=shape["layers"],
        hidden_size=shape["width"],
        num_heads=shape["heads"],
        max_position_embeddings=shape["context"],
        vocab_size=shape["vocabulary"],
        window_size=shape["window"],
        attention_types=[[["local"], shape["layers"]]],
        resid_dropout=0.0,
        embed_dropout=0.0,
        attention_dropout=0.0,
    )
    return transformers.GPTNeoForCausalLM(neo)
