"""The GPT: embeddings, blocks, final norm and tied head."""

from __future__ import annotations

from functools import partial
from typing import Optional

import tensorflow as tf

from configs.schema import Config
from models.attention import Attend, attention_layer, attention_radius
from models.dimensions import Dimensions
from models.feed_forward import feed_forward_layer
from models.kernels.attention import masked_attention
from models.kernels.embedding import embedding_lookup
from models.kernels.matmul import matmul
from models.kernels.noise import Dropout
from models.normalization import layer_norm
from models.weights import Weights
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

TOKEN_EMBEDDING_STDDEV = 0.02  # GPT-2
POSITION_EMBEDDING_STDDEV = 0.01  # GPT-2


class GPT:
    """A pre-norm decoder-only transformer on one mesh.

    Args:
        mesh: the model is built on.
        config: a checked config.
        dims: of the graph.
        mesh_layout: how the graph will be split; the numbers do not depend on it.
        dropout: of the training step; None outside training.

    Source: Radford et al. 2019 (GPT-2) with the attention types of Brown et al. 2020 as GPT-Neo
    has them.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        config: Config,
        dims: Dimensions,
        mesh_layout: MeshLayout,
        dropout: Optional[Dropout] = None,
    ):
        self.mesh = mesh
        self.config = config
        self.dims = dims
        self.mesh_layout = mesh_layout
        self.dropout = dropout
        self.weights = Weights(mesh, config.seed, mtf.VariableDType(*[tf.float32] * 3))

    def _drop(self, x: mtf.Tensor, rate: float, label: str) -> mtf.Tensor:
        return x if self.dropout is None else self.dropout(x, rate, label)

    def embed(self, tokens: mtf.Tensor, positions: mtf.Tensor) -> mtf.Tensor:
        """Token embedding plus learned position embedding.

        Args:
            tokens: [batch, sequence] int32.
            positions: [sequence] or [batch, sequence] int32, each within [0, n_ctx).

        Returns:
            [batch, sequence, embd].
        """
        wte = self._token_embedding()
        wpe = self.weights.normal(
            "wpe", [self.dims.embed_sequence, self.dims.embd], POSITION_EMBEDDING_STDDEV
        )
        x = embedding_lookup(wte, tokens) + embedding_lookup(wpe, positions)
        return self._drop(x, self.config.embed_dropout, "embed")

    def _token_embedding(self) -> mtf.Tensor:
        dims = [self.dims.vocab, self.dims.embd]
        return self.weights.normal("wte", dims, TOKEN_EMBEDDING_STDDEV)

    def _attend_to_window(
        self, queries: mtf.Tensor, keys: mtf.Tensor, values: mtf.Tensor, layer: int
    ) -> mtf.Tensor:
        """Attention within the sequence that is being processed (training, evaluation)."""
        memory = self.dims.memory_length
        return masked_attention(
            queries,
            self._as_memory(keys),
            self._as_memory(values),
            radius=attention_radius(self.config, layer),
            key_slices=self.mesh_layout.slices(memory),
            dropout=self.dropout,
            rate=self.config.attn_dropout,
            label=f"h{layer}/attn/weights",
        )

    def _as_memory(self, x: mtf.Tensor) -> mtf.Tensor:
        """Renames sequence to memory_length: [batch, memory_length, heads, features_per_head].

        In two steps through a dimension that no layout splits: when a dimension moves from one
        mesh axis to another, ``mtf.reshape`` (0.1.21) splits by the new axis before it gathers
        by the old one, and silently permutes the positions.
        """
        whole = mtf.Dimension("whole_sequence", self.dims.sequence.size)
        x = mtf.replace_dimensions(x, self.dims.sequence, whole)
        return mtf.replace_dimensions(x, whole, self.dims.memory_length)

    def block(self, x: mtf.Tensor, layer: int, attend: Attend) -> mtf.Tensor:
        """One residual block: [batch, sequence, embd] -> the same."""
        norm = partial(layer_norm, self.weights, dim=self.dims.embd)
        if self.config.attention_layers[layer] != "none":
            mixed = attention_layer(
                self.weights, norm(x, name=f"h{layer}/norm_1"), self.dims, layer, attend
            )
            x += self._drop(mixed, self.config.res_dropout, f"h{layer}/attn")
        hidden = feed_forward_layer(
            self.weights, norm(x, name=f"h{layer}/norm_2"), self.dims, self.config, layer
        )
        return x + self._drop(hidden, self.config.res_dropout, f"h{layer}/mlp")

    def hidden_states(
        self, tokens: mtf.Tensor, positions: mtf.Tensor, attend: Optional[Attend] = None
    ) -> mtf.Tensor:
        """What the head reads.

        Args:
            tokens: [batch, sequence] int32.
            positions: [sequence] or [batch, sequence] int32.
            attend: by default attention within the sequence; a decoder passes its cache.

        Returns:
            [batch, sequence, embd], before the final norm.
        """
        x = self.embed(tokens, positions)
        for layer in range(self.config.n_layer):
            x = self.block(x, layer, attend or self._attend_to_window)
        return x

    def logits(self, hidden: mtf.Tensor) -> mtf.Tensor:
        """[..., embd] -> [..., vocab], through the final norm and the tied embedding."""
        x = layer_norm(self.weights, hidden, self.dims.embd, "ln_f")
        return matmul(x, self._token_embedding(), self.dims.vocab)

    def window_logits(self, tokens: mtf.Tensor) -> mtf.Tensor:
        """Logits of a window that starts at position 0.

        Args:
            tokens: [batch, sequence] int32.

        Returns:
            [batch, sequence, vocab].
        """
        positions = mtf.range(self.mesh, self.dims.sequence, tf.int32)
        return self.logits(self.hidden_states(tokens, positions))
