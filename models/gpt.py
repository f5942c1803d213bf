"""The GPT: embeddings, blocks, final norm and head."""

from __future__ import annotations

from typing import NamedTuple, Optional

import tensorflow as tf

from configs.schema import Config
from models.attention import Attend, attention_layer, attention_window, memory_slots
from models.dimensions import Dimensions
from models.feed_forward import feed_forward_layer
from models.initial_values import weight
from models.kernels.attention import MemorySlots, masked_attention
from models.kernels.embedding import embedding_lookup
from models.kernels.linear_attention import linear_attention
from models.kernels.noise import Dropout
from models.mixture_of_experts import ExpertsOutput, mixture_of_experts
from models.normalization import norm_of, rezero, scale_norm
from models.positions import axial_positions, learned_positions, relative_position_table
from models.products import product
from models.weights import Weights
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

PADDING_LOGIT = -1e9
"""Added to the logits of rows that no token has: their probabilities, and gradients, are 0."""


class Head(NamedTuple):
    """An output layer.

    Attributes:
        inputs: [..., embd].
        weight: [vocab, embd] or [embd, vocab].
        bias: [vocab], or None.
    """

    inputs: mtf.Tensor
    weight: mtf.Tensor
    bias: Optional[mtf.Tensor]


class GPT:
    """A decoder-only transformer on one mesh (with ``mlm_training`` an encoder).

    Args:
        mesh: the model is built on.
        config: a checked config.
        dims: of the graph.
        mesh_layout: how the graph will be split; the numbers do not depend on it.
        dropout: of the training step; None outside training.
        prepares: whether products read weights in a form of their own; see products.py.

    Attributes:
        auxiliary_losses: one float32 scalar per mixture-of-experts layer that has been built for
            training; they are added to the loss.

    Source: Radford et al. 2019 (GPT-2) with the attention types of Brown et al. 2020 and the
    options of GPT-Neo and of Mesh Transformer JAX (GPT-J).
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        config: Config,
        dims: Dimensions,
        mesh_layout: MeshLayout,
        dropout: Optional[Dropout] = None,
        prepares: bool = False,
    ):
        self.mesh = mesh
        self.config = config
        self.dims = dims
        self.mesh_layout = mesh_layout
        self.dropout = dropout
        self.weights = Weights(mesh, config.seed, config.share_parameters, prepares)
        self.dtype = {"float32": tf.float32, "bfloat16": tf.bfloat16}[config.precision]
        self.auxiliary_losses: list[mtf.Tensor] = []

    def _drop(self, x: mtf.Tensor, rate: float, label: str) -> mtf.Tensor:
        return x if self.dropout is None else self.dropout(x, rate, label)

    def embed(self, tokens: mtf.Tensor, positions: mtf.Tensor) -> mtf.Tensor:
        """Token embedding plus what the config's positions add to it.

        Args:
            tokens: [batch, sequence] int32.
            positions: [sequence] or [batch, sequence] int32, each within [0, n_ctx).

        Returns:
            [batch, sequence, embd].
        """
        x = embedding_lookup(self._token_embedding(), tokens)
        if self.config.axial_pos_emb is not None:
            x += axial_positions(self.weights, positions, self.dims, self.config)
        elif self.config.has_position_embedding:
            x += learned_positions(self.weights, positions, self.dims, self.config)
        return self._drop(mtf.cast(x, self.dtype), self.config.embed_dropout, "embed")

    def _token_embedding(self) -> mtf.Tensor:
        dims = [self.dims.vocab, self.dims.embd]
        return weight(self.weights, self.config, "embedding", "wte", dims)

    def slots(self, layer: int) -> Optional[MemorySlots]:
        """Learned keys and values of a layer, None if the config has none."""
        return memory_slots(self.weights, self.dims, layer)

    def relative_positions(self) -> Optional[mtf.Tensor]:
        """The table of T5's relative positions, None if the config has others."""
        if not self.config.relative_position_bias:
            return None
        return relative_position_table(self.weights, self.dims)

    def _attend_to_window(
        self, queries: mtf.Tensor, keys: mtf.Tensor, values: mtf.Tensor, layer: int
    ) -> mtf.Tensor:
        """Attention within the sequence that is being processed (training, evaluation)."""
        if self.config.attention_layers[layer] == "linear":
            return linear_attention(queries, keys, values, self.config.causal, self.slots(layer))
        memory = self.dims.memory_length
        return masked_attention(
            queries,
            self._as_memory(keys),
            self._as_memory(values),
            window=attention_window(self.config, layer),
            key_slices=self.mesh_layout.slices(memory),
            dropout=self.dropout,
            rate=self.config.attn_dropout,
            label=f"h{layer}/attn/weights",
            slots=self.slots(layer),
            table=self.relative_positions(),
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

    def _normed(self, x: mtf.Tensor, scope: str) -> mtf.Tensor:
        """What a branch reads: the stream, normalised unless the branches have gains instead."""
        if self.config.rezero:
            return x
        if self.config.scalenorm:
            return scale_norm(self.weights, x, self.dims.embd, scope)
        return norm_of(self.config, self.weights, x, self.dims.embd, scope)

    def _branch(self, made: mtf.Tensor, label: str, gain_scope: str) -> mtf.Tensor:
        """What a branch adds: dropout and, with ``rezero``, the branch's gain are applied."""
        made = self._drop(made, self.config.res_dropout, label)
        return rezero(self.weights, made, gain_scope) if self.config.rezero else made

    def _feed_forward(
        self, x: mtf.Tensor, layer: int, name: str, beside: Optional[mtf.Tensor] = None
    ) -> mtf.Tensor:
        hidden = feed_forward_layer(self.weights, x, self.dims, self.config, layer, name, beside)
        return hidden * 0.5 if self.config.macaron else hidden

    def _experts(self, x: mtf.Tensor, layer: int) -> ExpertsOutput:
        output = mixture_of_experts(
            self.weights, x, self.dims, self.config, self.mesh_layout, layer, self.dropout
        )
        return output._replace(mixed=output.mixed * 0.5) if self.config.macaron else output

    def block(
        self, x: mtf.Tensor, positions: mtf.Tensor, layer: int, attend: Attend
    ) -> tuple[mtf.Tensor, Optional[mtf.Tensor]]:
        """One residual block.

        Args:
            x: [batch, sequence, embd].
            positions: [sequence] or [batch, sequence] int32.
            layer: number of the block, from 0.
            attend: see ``attention_layer``.

        Returns:
            ([batch, sequence, embd], auxiliary loss or None).

        Source: Radford et al. 2019; the half feed-forward layers of ``macaron`` are those of
        Lu et al. 2019, figure 4.
        """
        scope, config = self.weights.layer_scope(layer), self.config
        if config.macaron:
            half = self._feed_forward(self._normed(x, f"{scope}/norm_0"), layer, "mlp_macaron")
            x += self._branch(half, f"h{layer}/mlp_macaron", f"{scope}/norm_rezero_0")
        # Of parallel branches both read the first norm.
        attends, parallel = config.attention_layers[layer] != "none", config.parallel_residual
        if attends or parallel:
            normed = self._normed(x, f"{scope}/norm_1")
        if attends:
            mixed = attention_layer(
                self.weights, normed, positions, self.dims, config, layer, attend
            )
            if parallel and self._only_adds(layer):
                return x + self._feed_forward(normed, layer, "mlp", beside=mixed), None
            x += self._branch(mixed, f"h{layer}/attn", f"{scope}/norm_rezero_1")
        if not parallel:
            normed = self._normed(x, f"{scope}/norm_2")
        if layer in config.moe_layers:
            hidden, auxiliary_loss = self._experts(normed, layer)
        else:
            hidden, auxiliary_loss = self._feed_forward(normed, layer, "mlp"), None
        return x + self._branch(hidden, f"h{layer}/mlp", f"{scope}/norm_rezero_2"), auxiliary_loss

    def _only_adds(self, layer: int) -> bool:
        """Whether what the branches of a layer make is added up as it is.

        Parallel branches then take one sum over the mesh together, as in GPT-J.
        """
        config = self.config
        drops = self.dropout is not None and config.res_dropout > 0
        return not (drops or config.rezero or config.macaron or layer in config.moe_layers)

    def _recomputed_block(
        self, x: mtf.Tensor, positions: mtf.Tensor, layer: int, attend: Attend
    ) -> tuple[mtf.Tensor, Optional[mtf.Tensor]]:
        """As ``block``, but its inner tensors are computed again in the backward pass.

        Source: Chen et al. 2016 (sublinear memory), section 4.
        """

        def run(stream: mtf.Tensor) -> tuple[mtf.Tensor, ...]:
            y, auxiliary_loss = self.block(stream, positions, layer, attend)
            return (y,) if auxiliary_loss is None else (y, auxiliary_loss)

        y, *losses = mtf.recompute_grad(run, [x])
        return y, losses[0] if losses else None

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
        recomputes = self.config.recompute_grad and self.dropout is not None
        block = self._recomputed_block if recomputes else self.block
        for layer in range(self.config.n_layer):
            x, loss = block(x, positions, layer, attend or self._attend_to_window)
            if loss is not None:
                self.auxiliary_losses.append(loss)
        return x

    def head(self, hidden: mtf.Tensor) -> Head:
        """The output layer: the final norm, and the tied embedding or a layer of its own.

        Args:
            hidden: [..., embd].
        """
        embd, vocab, config = self.dims.embd, self.dims.vocab, self.config
        inputs = hidden
        if config.has_final_norm:
            inputs = norm_of(config, self.weights, hidden, embd, "ln_f")
        if config.tied_embeddings:
            return Head(inputs, self._token_embedding(), self._without_padding(None))
        scope = "wte_final_linear/conv1d_main/linear_out"
        kernel = weight(self.weights, config, "head", f"{scope}/kernel", [embd, vocab])
        bias = self.weights.zeros(f"{scope}/bias", [vocab])
        return Head(inputs, kernel, self._without_padding(bias))

    def _without_padding(self, bias: Optional[mtf.Tensor]) -> Optional[mtf.Tensor]:
        """The bias of the logits that leaves rows of ``vocab_padding`` without probability."""
        if not self.config.vocab_padding:
            return bias
        padding = (1.0 - self.is_token()) * PADDING_LOGIT
        return padding if bias is None else bias + padding

    def is_token(self) -> mtf.Tensor:
        """1 for rows of the vocabulary that stand for tokens, 0 for padding: [vocab] float32."""
        ids = mtf.range(self.mesh, self.dims.vocab, tf.int32)
        return mtf.cast(mtf.less(ids, self.config.token_count), tf.float32)

    def logits(self, hidden: mtf.Tensor) -> mtf.Tensor:
        """[..., embd] -> [..., vocab], through ``head``."""
        head = self.head(hidden)
        tied = self.config.tied_embeddings
        return product(self.weights, head.inputs, head.weight, head.bias, looked_up=tied)

    def window_states(self, tokens: mtf.Tensor) -> mtf.Tensor:
        """What the head reads of a window that starts at position 0; see ``hidden_states``."""
        positions = mtf.range(self.mesh, self.dims.sequence, tf.int32)
        return self.hidden_states(tokens, positions)

    def window_logits(self, tokens: mtf.Tensor) -> mtf.Tensor:
        """Logits of a window that starts at position 0.

        Args:
            tokens: [batch, sequence] int32.

        Returns:
            [batch, sequence, vocab].
        """
        return self.logits(self.window_states(tokens))
