"""Keys that decide what the network is and how it is split."""

from typing import Annotated, Literal, Optional

from pydantic import BaseModel, Field, field_validator

from configs.errors import choose_from, shown
from configs.fields import (
    LARGEST_INT,
    LONGEST_WINDOW,
    MOST_FEATURES,
    MOST_LAYERS,
    STRICT,
    key,
)
from configs.layout import parse_layout, parse_mesh_shape
from configs.mixture_keys import MixtureKeys
from configs.names import ACTIVATIONS

AttentionBlock = tuple[
    Annotated[tuple[str, ...], Field(max_length=MOST_LAYERS)],
    Annotated[int, Field(gt=0, le=MOST_LAYERS)],
]
AxialSize = Annotated[int, Field(gt=0, le=LONGEST_WINDOW)]
Layer = Annotated[int, Field(ge=0, lt=MOST_LAYERS)]


class SizeKeys(BaseModel):
    """Sizes of the network."""

    model_config = STRICT

    model: Literal["GPT", "GPT2"] = key(
        "Architecture; both names mean the same.", "GPT", example="GPT2"
    )
    n_layer: int = key("Number of blocks.", gt=0, le=MOST_LAYERS, example=12, unit="layers")
    n_embd: int = key(
        "Width of the residual stream; a multiple of `n_head`.",
        gt=0,
        le=MOST_FEATURES,
        example=768,
        unit="features",
    )
    n_head: int = key(
        "Number of attention heads.", gt=0, le=MOST_FEATURES, example=12, unit="heads"
    )
    n_ctx: int = key(
        "Length of the context window.", 2048, gt=0, le=LONGEST_WINDOW, unit="tokens", example=1024
    )
    n_vocab: int = key(
        "Rows of the token embedding; at least the vocabulary of the datasets.",
        gt=0,
        le=LARGEST_INT,
        example=50304,
        unit="tokens",
        default_text="`n_vocab` of the dataset config; required without one",
    )
    vocab_padding: int = key(
        "Last rows of the vocabulary that no token has: never sampled, never counted in a loss.",
        0,
        ge=0,
        le=LARGEST_INT,
        unit="tokens",
        example=47,
    )


class ArchitectureKeys(BaseModel):
    """Choices inside the network."""

    model_config = STRICT

    attention_types: Optional[tuple[AttentionBlock, ...]] = key(
        "Attention of each layer: lists of names, each with how often it is repeated. "
        "Names: `global`, `local`, `linear`, `none`.",
        None,
        max_length=MOST_LAYERS,
        default_text="all global",
        example=[[["global", "local"], 6]],
    )
    local_attention_radius: int = key(
        "Keys that a query of a local layer sees, itself included.",
        256,
        gt=0,
        le=LARGEST_INT,
        unit="tokens",
        example=128,
        needs=("attention_types",),
    )
    activation_function: str = key("Activation of the feed-forward layers.", "gelu", example="relu")
    embed_dropout: float = key(
        "Dropout after the embedding, training only.",
        0.0,
        ge=0,
        lt=1,
        unit="probability",
        example=0.1,
    )
    attn_dropout: float = key(
        "Dropout of attention weights, training only; linear layers have none.",
        0.0,
        ge=0,
        lt=1,
        unit="probability",
        example=0.1,
    )
    res_dropout: float = key(
        "Dropout before each residual addition, training only.",
        0.0,
        ge=0,
        lt=1,
        unit="probability",
        example=0.1,
    )
    scale_by_depth: bool = key(
        "Initial residual projections are scaled by 1/sqrt(`n_layer`).", False
    )
    scale_by_in: bool = key("Initial dense kernels are scaled by 1/sqrt(inputs).", False)
    initializer: Literal["gpt2", "gptj"] = key(
        "Initial values: GPT-2's as GPT-Neo draws them, or GPT-J's.", "gpt2", example="gptj"
    )
    axial_pos_emb: Optional[tuple[AxialSize, AxialSize]] = key(
        "Axial positions `[a, b]`, with a·b = `n_ctx`, in place of learned absolute ones.",
        None,
        unit="positions",
        example=[32, 64],
    )
    rotary_emb: bool = key("Rotary positions in place of learned absolute ones.", False)
    rotary_dim: Optional[int] = key(
        "Features of each head, from its first, that rotary positions turn; even; null = all.",
        None,
        gt=0,
        le=MOST_FEATURES,
        unit="features",
        example=32,
        needs=("rotary_emb",),
    )
    rotary_interleaved: bool = key(
        "Rotary positions pair neighbours (2i, 2i+1), as in GPT-J, in place of (i, i + half).",
        False,
        needs=("rotary_emb",),
    )
    relative_position_bias: bool = key(
        "T5's relative positions in place of learned absolute ones: a learned number for each "
        "head and distance, the same in all layers, is added to attention scores. Linear layers "
        "have no scores.",
        False,
    )
    scaled_attention: bool = key(
        "Attention scores are divided by sqrt(head size), as in GPT-2 and GPT-J; GPT-Neo folds it "
        "into initial weights. Linear layers have no scores.",
        False,
    )
    attention_bias: Literal["none", "output", "all"] = key(
        "Which projections of attention have a bias: `output` as in GPT-Neo, `all` (queries, keys "
        "and values too) as in GPT-2, `none` as in GPT-J.",
        "output",
        example="none",
    )
    parallel_residual: bool = key(
        "Attention and feed-forward layer of a block read one norm and are added together, as in "
        "GPT-J.",
        False,
    )
    no_weight_tie: bool = key(
        "An output layer of its own in place of the transposed token embedding.", False
    )
    mlp_glu: bool = key(
        "Gated feed-forward layers; with `activation_function` gelu they are GEGLU.", False
    )
    norm: Literal[
        "layernorm", "layernorm-nobias", "rmsnorm", "rmsnorm-bias", "scalenorm", "scalenorm-bias"
    ] = key(
        "Normalisation, Mesh Transformer JAX's choices. `rmsnorm` and `scalenorm` divide by the "
        "length and have a gain per feature or one in all.",
        "layernorm",
        example="rmsnorm",
    )
    final_norm: Optional[bool] = key(
        "Whether the output layer reads a norm of the stream, `ln_f`.",
        None,
        default_text="true for tied embeddings, false with `no_weight_tie`, as in GPT-Neo",
        example=False,
    )
    scalenorm: bool = key(
        "GPT-Neo's ScaleNorm, which subtracts the mean, in place of layer norm.", False
    )
    rezero: bool = key("Residual branches start at zero, by a learned gain.", False)
    macaron: bool = key("Half a feed-forward layer before and after attention.", False)
    share_parameters: bool = key("All blocks share one set of weights.", False)
    num_mem_kv: int = key(
        "Learned keys and values that every position sees; linear layers add them to the sums over "
        "keys.",
        0,
        ge=0,
        le=LONGEST_WINDOW,
        unit="positions",
        example=16,
    )
    moe_layers: tuple[Layer, ...] = key(
        "Layers (from 0) with a mixture of experts as their feed-forward layer.",
        (),
        max_length=MOST_LAYERS,
        example=[5, 11],
    )
    moe_params: MixtureKeys = key(
        "Options of the mixture of experts, see below.",
        default_factory=MixtureKeys,
        default_text="`{}`",
        example={"moe_num_experts": 8},
        needs=("moe_layers",),
    )

    @field_validator("activation_function")
    @classmethod
    def _known_activation(cls, name: str) -> str:
        if name not in ACTIVATIONS:
            remedy = choose_from(name, ACTIVATIONS)
            raise ValueError(f"is not a known activation (got {shown(name)}); {remedy}")
        return name


class ParallelKeys(BaseModel):
    """How the work is split, and in which precision it is done."""

    model_config = STRICT

    mesh_shape: str = key(
        "Mesh of processors: axis names and sizes; the product is their number.",
        "x:1",
        example="x:8,y:4",
        needs=("layout",),
    )
    layout: str = key(
        "Which tensor dimension is split over which mesh axis.",
        "batch:x",
        example="batch:x,heads:y,vocab:y",
        needs=("mesh_shape",),
    )
    precision: Literal["float32", "bfloat16"] = key(
        "Number format of activations.", "float32", example="bfloat16"
    )
    tokens_per_mb_per_replica: Optional[int] = key(
        "Microbatching: tokens of one microbatch on one replica; null = no microbatches.",
        None,
        gt=0,
        le=LARGEST_INT,
        unit="tokens",
        example=4096,
    )
    recompute_grad: bool = key(
        "Blocks are recomputed in the backward pass: less memory, more time.", False
    )

    @field_validator("mesh_shape")
    @classmethod
    def _mesh_shape_is_readable(cls, text: str) -> str:
        parse_mesh_shape(text)
        return text

    @field_validator("layout")
    @classmethod
    def _layout_is_readable(cls, text: str) -> str:
        parse_layout(text)
        return text
