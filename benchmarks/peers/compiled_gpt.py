"""A plain GPT in PyTorch as one would write it today, with everything that makes it fast.

Scaled dot-product attention, fused AdamW, ``torch.compile``; weights, shapes and optimizer work
as those of the other contenders.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Pre-norm attention and feed-forward layers.

    Args:
        width: features.
        heads: attention heads.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.expand, self.project = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor]) -> torch.Tensor:
        """[batch, tokens, width] to the same; ``mask`` [tokens, tokens] in place of causality."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None
        )
        return self.finish(x, mixed)

    def finish(self, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """All behind the mixed values [batch, heads, tokens, features]."""
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        hidden = functional.gelu(self.expand(self.norm_2(x)), approximate="tanh")
        return x + self.project(hidden)

    def decode(
        self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        """As ``forward``, with a cache [2, batch, heads, length, features] that is written to."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, *new = qkv.permute(2, 0, 3, 1, 4)
        for kept, part in zip(cache, new):
            kept.index_copy_(2, positions, part)
        mixed = functional.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=mask)
        return self.finish(x, mixed)


class GPT(nn.Module):
    """A GPT with learned positions and a tied head.

    Args:
        shape: a ``benchmarks.shapes.Shape`` as JSON values.
    """

    def __init__(self, shape: dict[str, Any]):
        super().__init__()
        width, context = shape["width"], shape["context"]
        self.tokens = nn.Embedding(shape["vocabulary"], width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, shape["heads"]) for _ in range(shape["layers"]))
        self.norm = nn.LayerNorm(width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        at = torch.arange(context)
        distance = at[:, None] - at
        window = shape["window"]
        seen = None if window is None else (distance >= 0) & (distance < window)
        self.register_buffer("mask", seen, persistent=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of labels [batch, tokens]."""
        x = self.tokens(ids) + self.positions.weight
        for block in self.blocks:
            x = block(x, self.mask)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def empty_cache(self, batch: int, length: int) -> list[torch.Tensor]:
        """One for each block; see ``Block.decode``."""
        width, heads = self.tokens.weight.shape[1], self.blocks[0].heads
        size = (2, batch, heads, length, width // heads)
        return [torch.zeros(size, dtype=self.tokens.weight.dtype) for _ in self.blocks]

    def decode(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: list[torch.Tensor]
    ) -> torch.Tensor:
        """Logits [batch, vocabulary] behind ids [batch, tokens] at ``positions`` [tokens]."""
        mask = positions[:, None] >= torch.arange(cache[0].shape[3])
        x = self.tokens(ids) + self.positions(positions)
        for block, kept in zip(self.blocks, cache):
            x = block.decode(x, positions, mask, kept)
        return functional.linear(self.norm(x[:, -1]), self.tokens.weight)


def build_model(shape: dict[str, Any]) -> Any:
    """The compiled model, as a function of ids and labels, and its parameters."""
    model = GPT(shape)
    return torch.compile(model), list(model.parameters())
