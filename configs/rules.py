"""Rules between keys: one small function per rule, one registry.

Each rule yields problem lines and names the keys it reads; it is skipped when one of them is
wrong by itself. Rules about the network are in `architecture_rules`, those about the mesh in
`layout_rules`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from configs.architecture_rules import (
    attention_types_are_known,
    attention_types_fill_layers,
    axial_positions_fill_context,
    heads_divide_width,
    moe_layers_exist,
    one_kind_of_norm,
    one_kind_of_positions,
    relative_positions_have_scores,
    rotary_features_are_pairs,
    token_ids_are_in_vocabulary,
    vocabulary_holds_datasets,
    vocabulary_holds_tokens,
)
from configs.data_rules import evaluation_has_data, lambada_has_texts, weights_are_shares
from configs.errors import problem, shown
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
from configs.optimizer_rules import (
    annealing_goes_down,
    annealing_is_complete,
    base_is_another_folder,
    noise_scale_has_microbatches,
    one_schedule,
    optimizer_has_a_base,
    warmup_ends_in_time,
)
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


def pattern_characters(path: str) -> list[str]:
    """The characters of a path that TensorFlow reads as parts of a pattern."""
    return sorted(set(path) & set("*?[\\"))


def model_path_is_no_pattern(config: Config) -> Iterator[str]:
    """TensorFlow looks checkpoints up, and deletes old ones, by patterns that begin with the path.

    A name that is read as a pattern would find nothing, or files of other runs.
    """
    odd = pattern_characters(config.model_path)
    if odd:
        yield problem(
            "model_path",
            f"must not contain {' '.join(shown(character) for character in odd)}",
            config.model_path,
            "name another folder",
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
    _rule(one_kind_of_positions, "axial_pos_emb", "rotary_emb", "relative_position_bias"),
    _rule(relative_positions_have_scores, "relative_position_bias", "attention_types", "n_layer"),
    _rule(rotary_features_are_pairs, "rotary_emb", "rotary_dim", "n_embd", "n_head"),
    _rule(one_kind_of_norm, "norm", "scalenorm", "rezero"),
    _rule(vocabulary_holds_tokens, "vocab_padding", "n_vocab"),
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
    _rule(ignored_ids_are_in_vocabulary, "mlm_mask_ignore_ids", "n_vocab", "vocab_padding"),
    _rule(masked_models_write_no_text, "mlm_training", "predict_steps", "eval_tasks"),
    _rule(
        token_ids_are_in_vocabulary,
        "n_vocab",
        "vocab_padding",
        "eos_id",
        "padding_id",
        "mlm_mask_id",
        "mlm_cls_token_id",
        "datasets",
        "input_fn",
        "predict_steps",
        "eval_tasks",
    ),
    _rule(warmup_ends_in_time, "warmup_steps", "train_steps", "lr_decay", "lr_decay_end"),
    _rule(annealing_is_complete, "anneal_steps", "end_lr"),
    _rule(annealing_goes_down, "end_lr", "lr"),
    _rule(one_schedule, "anneal_steps", "lr_decay", "lr_decay_end"),
    _rule(optimizer_has_a_base, "init_from", "fresh_opt", "earlier_updates"),
    _rule(base_is_another_folder, "init_from", "model_path"),
    _rule(
        noise_scale_has_microbatches,
        "noise_scale_alpha",
        "tokens_per_mb_per_replica",
        "train_batch_size",
        "n_ctx",
        "layout",
        "mesh_shape",
    ),
    _rule(vocabulary_holds_datasets, "n_vocab", "vocab_padding", "datasets"),
    _rule(datasets_agree, "datasets"),
    _rule(special_ids_match_dataset, "datasets", "eos_id", "padding_id"),
    _rule(evaluation_has_data, "eval_steps", "datasets"),
    _rule(lambada_has_texts, "eval_tasks", "datasets"),
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
    {
        batch_sizes_divide,
        sizes_divide,
        experts_divide,
        linear_layers_see_whole_sequences,
        noise_scale_has_microbatches,
    }
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
