"""Rules between keys: one small function per rule, one registry.

Each rule yields problem lines and names the keys it reads; it is skipped when one of them is
wrong by itself. Rules about the mesh are in `layout_rules`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from configs.data_rules import evaluation_has_data, weights_are_shares
from configs.errors import choose_from, problem, shown
from configs.layout_rules import (
    batch_sizes_divide,
    dimensions_are_known,
    experts_divide,
    experts_see_whole_sequences,
    layout_axes_exist,
    linear_layers_see_whole_sequences,
    optimizer_axis_exists,
    sizes_divide,
    tensors_use_an_axis_once,
)
from configs.masking_rules import (
    ignored_ids_are_in_vocabulary,
    masked_models_write_no_text,
    masking_is_complete,
)
from configs.names import ATTENTION_TYPES
from configs.schema import Config

_MOST_ELEMENTS = 2**60


@dataclass(frozen=True)
class Rule:
    """A rule between keys.

    Attributes:
        keys: The keys it reads.
        check: Yields one problem line per violation.
    """

    keys: frozenset[str]
    check: Callable[[Config], Iterable[str]]


def model_path_is_no_pattern(config: Config) -> Iterator[str]:
    """TensorFlow looks checkpoints up, and deletes old ones, by patterns that begin with the path.

    A name that is read as a pattern would find nothing, or files of other runs.
    """
    odd = sorted(set(config.model_path) & set("*?[\\"))
    if odd:
        yield problem(
            "model_path",
            f"must not contain {' '.join(shown(character) for character in odd)}",
            config.model_path,
            "name another folder",
        )


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


def tensors_can_be_counted(config: Config) -> Iterator[str]:
    """Sizes of tensors, in bytes, are 64-bit integers in TensorFlow."""
    per_token = {
        "4 times n_embd": 4 * config.n_embd,
        "n_vocab": config.n_vocab,
        "n_head times n_ctx": config.n_head * config.n_ctx,
    }
    for key in ("train_batch_size", "eval_batch_size"):
        value = getattr(config, key)
        for words, size in per_token.items():
            if value * config.n_ctx * size > _MOST_ELEMENTS:
                yield problem(
                    key,
                    f"times n_ctx {config.n_ctx} times {words} {size} must be at most 2^60",
                    value,
                    "lower one of them",
                )
                break


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
    """Rotary and axial positions exclude each other."""
    if config.rotary_emb and config.axial_pos_emb is not None:
        yield problem(
            "axial_pos_emb",
            "must not be combined with rotary_emb",
            config.axial_pos_emb,
            "remove one of the two",
        )


def rotary_heads_are_even(config: Config) -> Iterator[str]:
    """Rotary positions turn pairs of features."""
    if config.rotary_emb and config.head_dim % 2:
        yield problem(
            "rotary_emb",
            f"needs an even head size, and n_embd / n_head is {config.head_dim}",
            config.rotary_emb,
            "change n_embd or n_head",
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


def token_ids_are_in_vocabulary(config: Config) -> Iterator[str]:
    """Special ids have a row in the embedding; padding may be the first id beyond it."""
    limits = {
        "eos_id": config.n_vocab - 1,
        "padding_id": config.n_vocab,
        "mlm_mask_id": config.n_vocab - 1,
        "mlm_cls_token_id": config.n_vocab - 1,
    }
    for key, limit in limits.items():
        value = getattr(config, key)
        if value is None or value <= limit:
            continue
        if key in config.model_fields_set or config.dataset is not None:
            yield problem(
                key,
                f"must be below n_vocab {config.n_vocab}",
                value,
                "change it or raise n_vocab",
            )
        elif key == "eos_id" and (config.input_fn == "generic_text" or config.predict_steps):
            # GPT-2's id is no default for a smaller vocabulary, which matters only where it is
            # used: after stitched documents and at the end of samples.
            yield problem(
                key,
                "is required with input_fn generic_text or predict_steps, and a vocabulary of "
                f"{config.n_vocab} has no {value}",
                None,
                "add the id that ends a document",
            )


def warmup_ends_in_time(config: Config) -> Iterator[str]:
    """The warm-up fits into the run and into the decay."""
    if config.warmup_steps > config.train_steps:
        yield problem(
            "warmup_steps",
            f"must be at most train_steps {config.train_steps}",
            config.warmup_steps,
            "lower it or train longer",
        )
    elif config.lr_decay is not None and config.lr_decay_end < config.warmup_steps:
        yield problem(
            "lr_decay_end",
            f"must be at least warmup_steps {config.warmup_steps}",
            config.lr_decay_end,
            "raise it or shorten the warm-up",
        )


def vocabulary_holds_datasets(config: Config) -> Iterator[str]:
    """Every id of every dataset has a row in the embedding."""
    for source in config.sources:
        if source.dataset is not None and config.n_vocab < source.dataset.n_vocab:
            yield problem(
                "n_vocab",
                f"must be at least {source.dataset.n_vocab}, the n_vocab of dataset "
                f"{shown(source.id)}",
                config.n_vocab,
                f"set it to {source.dataset.n_vocab} or more",
            )


def datasets_agree(config: Config) -> Iterator[str]:
    """All datasets are tokenized alike."""
    configs = [source.dataset for source in config.sources if source.dataset is not None]
    for index, other in enumerate(configs[1:], start=1):
        for key in ("n_vocab", "tokenizer_is_pretrained", "tokenizer_path", "eos_id"):
            first, got = getattr(configs[0], key), getattr(other, key)
            if first != got:
                yield problem(
                    f"datasets[{index}].{key}",
                    f"must be {shown(first)} as in the first dataset",
                    got,
                    "tokenize all datasets with one tokenizer",
                )


def special_ids_match_dataset(config: Config) -> Iterator[str]:
    """The records were written with the ids that the config names."""
    if config.dataset is None:
        return
    for key in ("eos_id", "padding_id"):
        wanted, got = getattr(config.dataset, key), getattr(config, key)
        if wanted != got:
            yield problem(
                key, f"must be {wanted}, as in the dataset config", got, "remove it or change one"
            )


def _rule(check: Callable[[Config], Iterable[str]], *keys: str) -> Rule:
    return Rule(frozenset(keys), check)


RULES: tuple[Rule, ...] = (
    _rule(model_path_is_no_pattern, "model_path"),
    _rule(heads_divide_width, "n_embd", "n_head"),
    _rule(
        tensors_can_be_counted,
        "train_batch_size",
        "eval_batch_size",
        "n_ctx",
        "n_embd",
        "n_vocab",
        "n_head",
    ),
    _rule(attention_types_are_known, "attention_types"),
    _rule(attention_types_fill_layers, "attention_types", "n_layer"),
    _rule(axial_positions_fill_context, "axial_pos_emb", "n_ctx"),
    _rule(one_kind_of_positions, "axial_pos_emb", "rotary_emb"),
    _rule(rotary_heads_are_even, "rotary_emb", "n_embd", "n_head"),
    _rule(moe_layers_exist, "moe_layers", "n_layer"),
    _rule(
        masking_is_complete,
        "mlm_training",
        "mlm_mask_id",
        "mlm_cls_token_id",
        "mlm_same_token_prob",
        "mlm_random_token_prob",
    ),
    _rule(weights_are_shares, "datasets"),
    _rule(ignored_ids_are_in_vocabulary, "mlm_mask_ignore_ids", "n_vocab"),
    _rule(masked_models_write_no_text, "mlm_training", "predict_steps", "eval_tasks"),
    _rule(
        token_ids_are_in_vocabulary,
        "n_vocab",
        "eos_id",
        "padding_id",
        "mlm_mask_id",
        "mlm_cls_token_id",
        "datasets",
        "input_fn",
        "predict_steps",
    ),
    _rule(warmup_ends_in_time, "warmup_steps", "train_steps", "lr_decay", "lr_decay_end"),
    _rule(vocabulary_holds_datasets, "n_vocab", "datasets"),
    _rule(datasets_agree, "datasets"),
    _rule(special_ids_match_dataset, "datasets", "eos_id", "padding_id"),
    _rule(evaluation_has_data, "eval_steps", "datasets"),
    _rule(dimensions_are_known, "layout"),
    _rule(layout_axes_exist, "layout", "mesh_shape"),
    _rule(optimizer_axis_exists, "optimizer_shard_axis", "mesh_shape"),
    _rule(tensors_use_an_axis_once, "layout"),
    _rule(batch_sizes_divide, "layout", "mesh_shape", "train_batch_size", "eval_batch_size"),
    _rule(sizes_divide, "layout", "mesh_shape", "n_head", "n_embd", "n_vocab", "n_ctx"),
    _rule(experts_divide, "layout", "mesh_shape", "moe_layers", "moe_params"),
    _rule(experts_see_whole_sequences, "layout", "moe_layers"),
    _rule(linear_layers_see_whole_sequences, "layout", "mesh_shape", "attention_types", "n_layer"),
)


# A mesh of other sizes may obey them, or break them.
MESH_SIZE_RULES: frozenset[Callable[[Config], Iterable[str]]] = frozenset(
    {batch_sizes_divide, sizes_divide, experts_divide, linear_layers_see_whole_sequences}
)


def rule_problems(
    config: Config, skip: frozenset[str] = frozenset(), mesh_is_fitted: bool = False
) -> list[str]:
    """Applies every rule.

    Args:
        config: The config.
        skip: Keys whose values are known to be wrong; rules that read them are not applied.
        mesh_is_fitted: Whether the sizes of the mesh are chosen later; rules about them are not
            applied.

    Returns:
        All problem lines, in the order of the registry.
    """
    left_out = MESH_SIZE_RULES if mesh_is_fitted else frozenset()
    return [
        line
        for rule in RULES
        if not rule.keys & skip and rule.check not in left_out
        for line in rule.check(config)
    ]


def mesh_size_problems(config: Config) -> list[str]:
    """Applies the rules about the sizes of the mesh, which a fitted mesh has to obey."""
    return [line for rule in RULES if rule.check in MESH_SIZE_RULES for line in rule.check(config)]


def device_loop_problems(config: Config, steps_per_checkpoint: int) -> list[str]:
    """Checks that a device loop ends before the next checkpoint is due.

    Args:
        config: The config.
        steps_per_checkpoint: Steps between checkpoints, from the command line.

    Returns:
        No or one problem line.
    """
    if config.iterations <= steps_per_checkpoint:
        return []
    return [
        problem(
            "iterations",
            f"must be at most --steps_per_checkpoint {steps_per_checkpoint}",
            config.iterations,
            f"set it to {steps_per_checkpoint} or save less often",
        )
    ]
