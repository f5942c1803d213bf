"""Rules about what the network is: heads, kinds of attention, positions, norms, vocabulary."""

from collections.abc import Iterator
from itertools import combinations

from configs.errors import choose_from, problem, shown
from configs.names import ATTENTION_TYPES
from configs.schema import Config


def heads_divide_width(config: Config) -> Iterator[str]:
    """The width is shared equally among the heads."""
    if config.n_embd % config.n_head:
        lower = config.n_embd // config.n_head * config.n_head
        nearest = [str(width) for width in (lower, lower + config.n_head) if width]
        yield problem(
            "n_embd",
            f"must be a multiple of n_head {config.n_head}",
            config.n_embd,
            f"set it to {' or '.join(nearest)}, or change n_head",
        )


def attention_types_are_known(config: Config) -> Iterator[str]:
    """Every layer's attention type exists."""
    named = [name for names, _ in config.attention_types or () for name in names]
    for name in dict.fromkeys(named):
        if name not in ATTENTION_TYPES:
            remedy = choose_from(name, ATTENTION_TYPES)
            yield problem("attention_types", "names an unknown attention type", name, remedy)


def attention_types_fill_layers(config: Config) -> Iterator[str]:
    """The attention types expand to one per layer."""
    if config.attention_types is None:
        return
    # Counted, not expanded: what is wrong may be far too long.
    count = sum(len(names) * times for names, times in config.attention_types)
    if count != config.n_layer:
        yield problem(
            "attention_types",
            f"must expand to n_layer = {config.n_layer} layers and expands to {count}",
            config.attention_types,
            f"make the names times the repetitions add up to {config.n_layer}",
        )


def axial_positions_fill_context(config: Config) -> Iterator[str]:
    """The two axes of axial positions span the window."""
    if config.axial_pos_emb is None:
        return
    rows, columns = config.axial_pos_emb
    if rows * columns != config.n_ctx:
        yield problem(
            "axial_pos_emb",
            f"must be two sizes whose product is n_ctx {config.n_ctx}, and theirs is "
            f"{rows * columns}",
            config.axial_pos_emb,
            "change one of them or n_ctx",
        )


def one_kind_of_positions(config: Config) -> Iterator[str]:
    """Rotary, axial and relative positions exclude each other."""
    kinds = {
        "rotary_emb": config.rotary_emb,
        "relative_position_bias": config.relative_position_bias,
        "axial_pos_emb": config.axial_pos_emb is not None,
    }
    for first, second in combinations([key for key, is_on in kinds.items() if is_on], 2):
        yield problem(
            second,
            f"must not be combined with {first}",
            getattr(config, second),
            "remove one of the two",
        )


def relative_positions_have_scores(config: Config) -> Iterator[str]:
    """Some layer has the scores to which relative positions are added."""
    if config.relative_position_bias and not config.has_attention_scores:
        yield problem(
            "relative_position_bias",
            "needs a layer with attention scores, and all are linear or none",
            config.relative_position_bias,
            "remove it or make a layer global or local in attention_types",
        )


def rotary_features_are_pairs(config: Config) -> Iterator[str]:
    """Rotary positions turn pairs of features that a head has."""
    if not config.rotary_emb:
        return
    if config.rotary_dim is None:
        if config.head_dim % 2:
            yield problem(
                "rotary_emb",
                f"needs an even head size, and n_embd / n_head is {config.head_dim}",
                config.rotary_emb,
                "change n_embd or n_head, or set an even rotary_dim",
            )
        return
    most = config.head_dim // 2 * 2
    if config.rotary_dim % 2 or config.rotary_dim > most:
        yield problem(
            "rotary_dim",
            f"must be even and at most the head size, n_embd / n_head = {config.head_dim}",
            config.rotary_dim,
            f"set it to {most} or less" if most else "change n_embd or n_head",
        )


def one_kind_of_norm(config: Config) -> Iterator[str]:
    """`norm` is not combined with GPT-Neo's switches for the same thing."""
    for switch in ("scalenorm", "rezero"):
        if config.norm != "layernorm" and getattr(config, switch):
            yield problem(
                "norm", f"must not be combined with {switch}", config.norm, "remove one of the two"
            )


def vocabulary_holds_tokens(config: Config) -> Iterator[str]:
    """Some rows of the vocabulary stand for tokens."""
    if config.vocab_padding >= config.n_vocab:
        yield problem(
            "vocab_padding",
            f"must be below n_vocab {config.n_vocab}, whose last rows it counts",
            config.vocab_padding,
            "lower it or raise n_vocab",
        )


def moe_layers_exist(config: Config) -> Iterator[str]:
    """Mixture-of-experts layers are layers of the model."""
    beyond = [layer for layer in config.moe_layers if layer >= config.n_layer]
    if beyond:
        yield problem(
            "moe_layers",
            f"must name layers below n_layer {config.n_layer}",
            beyond,
            f"use 0 to {config.n_layer - 1}",
        )


def token_limit(config: Config) -> str:
    """What ids must be below, in the words of the config's keys."""
    if not config.vocab_padding:
        return f"n_vocab {config.n_vocab}"
    return f"n_vocab - vocab_padding = {config.token_count}"


def token_range(config: Config) -> str:
    """In which range ids must lie, in the words of the config's keys."""
    name = "n_vocab - vocab_padding" if config.vocab_padding else "n_vocab"
    return f"[0, {name} = {config.token_count})"


def token_ids_are_in_vocabulary(config: Config) -> Iterator[str]:
    """Special ids have a row in the embedding; padding may be the first id beyond it."""
    limits = {
        "eos_id": config.token_count - 1,
        "padding_id": config.token_count,
        "mlm_mask_id": config.token_count - 1,
        "mlm_cls_token_id": config.token_count - 1,
    }
    for key, limit in limits.items():
        value = getattr(config, key)
        if value is None or value <= limit:
            continue
        if key in config.model_fields_set or config.dataset is not None:
            yield problem(
                key,
                f"must be below {token_limit(config)}",
                value,
                "change it or raise n_vocab",
            )
        elif key == "eos_id" and (
            config.input_fn == "generic_text" or config.predict_steps or config.eval_tasks
        ):
            # GPT-2's id is no default for a smaller vocabulary, which matters only where it is
            # used: after stitched documents, at the end of samples and before texts of tasks.
            yield problem(
                key,
                "is required with input_fn generic_text, predict_steps or eval_tasks, and a "
                f"vocabulary of {config.token_count} has no {value}",
                None,
                "add the id that ends a document",
            )


def vocabulary_holds_datasets(config: Config) -> Iterator[str]:
    """Every id of every dataset has a row in the embedding."""
    for source in config.sources:
        if source.dataset is not None and config.token_count < source.dataset.n_vocab:
            padding = config.vocab_padding
            needed = source.dataset.n_vocab + padding
            plus = f" plus vocab_padding {padding}" if padding else ""
            yield problem(
                "n_vocab",
                f"must be at least {source.dataset.n_vocab}, the n_vocab of dataset "
                f"{shown(source.id)}{plus}",
                config.n_vocab,
                f"set it to {needed} or more",
            )
