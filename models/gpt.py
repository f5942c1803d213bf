"""The GPT: embeddings, blocks, final norm and head."""

from __future__ import annotations

from typing import NamedTuple, Optional

import tensorflow as tf

from configs.schema import Config
from models.attention import Attend, attention_layer, attention_window, memory_slots
from models.dimensions import Dimensions
from models.feed_forward import feed_forward_layer
from models.kernels.attention import MemorySlots, masked_attention
from models.kernels.embedding import embedding_lookup
from models.kernels.linear_attention import linear_attention
from models.kernels.noise import Dropout
from models.mixture_of_experts import ExpertsOutput, mixture_of_experts
from models.normalization import layer_norm, rezero, scale_norm
from models.positions import axial_positions, learned_positions
from models.products import product
from models.weights import Weights
from utils.mesh import MeshLayout
from utils.mesh_tensorflow import mtf

EMBEDDING_STDDEV = 0.02  # GPT-2; also of an output layer of its own


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
    options of GPT-Neo.
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
            x += axial_positions(self.weights, positions, self.dims)
        elif not self.config.rotary_emb:
            x += learned_positions(self.weights, positions, self.dims)
        return self._drop(mtf.cast(x, self.dtype), self.config.embed_dropout, "embed")

    def _token_embedding(self) -> mtf.Tensor:
        return self.weights.normal("wte", [self.dims.vocab, self.dims.embd], EMBEDDING_STDDEV)

    def slots(self, layer: int) -> Optional[MemorySlots]:
        """Learned keys and values of a layer, None if the config has none."""
        return memory_slots(self.weights, self.dims, layer)

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
        norm = scale_norm if self.config.scalenorm else layer_norm
        return norm(self.weights, x, self.dims.embd, scope)

    def _add(self, x: mtf.Tensor, branch: mtf.Tensor, label: str, gain_scope: str) -> mtf.Tensor:
        """The stream plus a branch, after dropout and, with ``rezero``, the branch's gain."""
        branch = self._drop(branch, self.config.res_dropout, label)
        if self.config.rezero:
            branch = rezero(self.weights, branch, gain_scope)
        return x + branch

    def _feed_forward(self, x: mtf.Tensor, layer: int, name: str) -> mtf.Tensor:
        hidden = feed_forward_layer(self.weights, x, self.dims, self.config, layer, name)
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
            x = self._add(x, half, f"h{layer}/mlp_macaron", f"{scope}/norm_rezero_0")
        if config.attention_layers[layer] != "none":
            mixed = attention_layer(
                self.weights, self._normed(x, f"{scope}/norm_1"), positions, self.dims, config,
                layer, attend,
            )  # fmt: skip
            x = self._add(x, mixed, f"h{layer}/attn", f"{scope}/norm_rezero_1")
        normed, auxiliary_loss = self._normed(x, f"{scope}/norm_2"), None
        if layer in config.moe_layers:
            hidden, auxiliary_loss = self._experts(normed, layer)
        else:
            hidden = self._feed_forward(normed, layer, "mlp")
        return self._add(x, hidden, f"h{layer}/mlp", f"{scope}/norm_rezero_2"), auxiliary_loss

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
        """The output layer: the final norm and the tied embedding.

        One of its own (``no_weight_tie``) reads the stream without a final norm, as in GPT-Neo.

        Args:
            hidden: [..., embd].
        """
        embd, vocab = self.dims.embd, self.dims.vocab
        if not self.config.tied_embeddings:
            scope = "wte_final_linear/conv1d_main/linear_out"
            stddev = EMBEDDING_STDDEV * (embd.size**-0.5 if self.config.scale_by_in else 1.0)
            kernel = self.weights.normal(f"{scope}/kernel", [embd, vocab], stddev)
            return Head(hidden, kernel, self.weights.zeros(f"{scope}/bias", [vocab]))
        return Head(layer_norm(self.weights, hidden, embd, "ln_f"), self._token_embedding(), None)

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
