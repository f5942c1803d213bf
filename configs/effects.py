"""Warnings: what is allowed but hardly meant, above all keys without effect in this run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from configs.errors import problem
from configs.layout_rules import shards_optimizer
from configs.names import CHUNKS
from configs.schema import Config


@dataclass(frozen=True)
class Condition:
    """What some keys need to have an effect.

    Attributes:
        keys: The keys.
        holds: Whether they have an effect in a run.
        otherwise: Why they have none if it does not hold, after "has no effect: ".
    """

    keys: tuple[str, ...]
    holds: Callable[[Config], bool]
    otherwise: str


CONDITIONS: tuple[Condition, ...] = (
    Condition(
        ("local_attention_radius",),
        lambda config: "local" in config.attention_layers,
        "no layer has local attention",
    ),
    Condition(
        ("attn_dropout",),
        lambda config: config.has_attention_scores,
        "no layer has attention weights, all are linear or none",
    ),
    Condition(
        ("num_mem_kv",),
        lambda config: set(config.attention_layers) != {"none"},
        "no layer has attention",
    ),
    Condition(
        ("scaled_attention",),
        lambda config: config.has_attention_scores,
        "no layer has attention scores, all are linear or none",
    ),
    Condition(
        ("attention_bias", "parallel_residual"),
        lambda config: set(config.attention_layers) != {"none"},
        "no layer has attention",
    ),
    Condition(
        ("rotary_dim", "rotary_interleaved"),
        lambda config: config.rotary_emb,
        "rotary_emb is false",
    ),
    Condition(
        ("rotary_interleaved",),
        lambda config: config.rotary_features != 2,
        "a single pair of features is turned",
    ),
    Condition(
        ("scale_by_in", "scale_by_depth"),
        lambda config: config.initializer == "gpt2",
        "initializer is gptj",
    ),
    Condition(
        ("ada_epsilon1", "ada_epsilon2", "ada_decay_rate"),
        lambda config: config.opt_name == "adafactor",
        "opt_name is not adafactor",
    ),
    Condition(
        ("adam_bias_correction",),
        lambda config: config.beta1 > 0 or config.beta2 > 0,
        "moments without decay have no bias",
    ),
    Condition(
        ("epsilon", "beta2", "adam_bias_correction"),
        lambda config: config.opt_name == "adam",
        "opt_name is not adam",
    ),
    Condition(("decay_final_norm",), lambda config: config.weight_decay > 0, "weight_decay is 0"),
    Condition(
        ("decay_final_norm",), lambda config: config.has_final_norm, "the model has no final norm"
    ),
    Condition(
        ("optimizer_shard_axis",),
        shards_optimizer,
        "layout and the size of the mesh axis leave no variable to split",
    ),
    Condition(
        ("log_every_steps",),
        lambda config: config.log_every_steps <= config.train_steps,
        "train_steps is lower",
    ),
    Condition(
        ("top_k",),
        lambda config: config.top_k is None or config.top_k < config.token_count,
        "the vocabulary has no more tokens",
    ),
    Condition(("lr_decay_end",), lambda config: config.lr_decay is not None, "lr_decay is null"),
    Condition(
        ("anneal_steps", "end_lr"),
        # The last update is made at step train_steps - 1, and annealing begins past warmup_steps.
        lambda config: config.anneal_steps is None or config.warmup_steps < config.train_steps - 1,
        "the warm-up lasts to the last of train_steps",
    ),
    Condition(("anneal_steps",), lambda config: config.end_lr != config.lr, "end_lr is lr"),
    Condition(
        ("eval_tasks_path", "eval_tasks_limit"),
        lambda config: bool(config.eval_tasks),
        "eval_tasks is empty",
    ),
    Condition(("moe_params",), lambda config: bool(config.moe_layers), "moe_layers is empty"),
    Condition(
        ("mlp_glu", "scale_by_depth"),
        lambda config: config.has_dense_feed_forward,
        "every feed-forward layer is a mixture of experts",
    ),
    Condition(
        ("activation_function",),
        lambda config: config.has_dense_feed_forward or not config.moe_params.moe_activation,
        "every feed-forward layer is a mixture of experts with moe_activation",
    ),
    Condition(
        (
            "mlm_mask_id",
            "mlm_cls_token_id",
            "mlm_mask_prob",
            "mlm_same_token_prob",
            "mlm_random_token_prob",
            "mlm_mask_ignore_ids",
        ),
        lambda config: config.mlm_training,
        "mlm_training is false",
    ),
    Condition(
        (
            "predict_batch_size",
            "predict_max_steps",
            "remove_partial_sequences",
            "repetition_penalty",
            "temperature",
            "top_k",
            "top_p",
        ),
        lambda config: config.causal,
        "mlm_training is true",
    ),
    # Only a default can be such an id; another one is refused.
    Condition(
        ("eos_id",),
        lambda config: config.eos_id < config.token_count,
        "the vocabulary has no such id",
    ),
    Condition(
        ("padding_id",),
        lambda config: config.padding_id <= config.token_count,
        "the vocabulary has no such id",
    ),
    Condition(("z_loss",), lambda config: not config.entmax_loss, "entmax_loss is true"),
)


def inert_keys(config: Config) -> dict[str, str]:
    """Returns the keys without effect in this run, set or not, with the reason."""
    return {
        key: condition.otherwise
        for condition in CONDITIONS
        if not condition.holds(config)
        for key in condition.keys
    }


def warnings_of(config: Config, inert: dict[str, str]) -> tuple[str, ...]:
    """Returns the warnings of a valid config.

    Args:
        config: The config.
        inert: The result of `inert_keys`.

    Returns:
        One line per warning, each *key: what is odd (got X); what to do*.
    """
    given = config.model_dump(mode="json", exclude_unset=True)
    lines = [
        problem(key, f"has no effect, {reason}", given[key], "remove it")
        for key, reason in inert.items()
        if key in config.model_fields_set
    ]
    for check in (
        _dataset_warnings,
        _mixture_warnings,
        _position_warnings,
        _microbatch_warnings,
        _layout_warnings,
        _padding_warnings,
        _predict_warnings,
    ):
        lines.extend(check(config))
    return tuple(lines)


def _dataset_warnings(config: Config) -> Iterator[str]:
    """Options of dataset entries that the input function does not read."""
    for index, source in enumerate(config.datasets):
        name = f"datasets[{index}]"
        if source.ignored_mode is not None:
            yield problem(
                name,
                "mode has no effect with input_fn sequential_input, which reads chunks",
                source.ignored_mode,
                'set "input_fn": "generic_text" if the records are documents, or the mode to null',
            )
        if source.stitch != 1 and source.mode == CHUNKS:
            yield problem(
                name,
                "stitch has no effect, records are chunks",
                source.stitch,
                "set it to null",
            )
        if source.weight != 1.0 and len(config.datasets) == 1:
            yield problem(
                name,
                "weight has no effect, there is one dataset",
                source.weight,
                "set it to null",
            )


def _mixture_warnings(config: Config) -> Iterator[str]:
    """Layers that are named again, and a threshold that the policy does not read.

    Its default may stand, as in written configs.
    """
    if len(set(config.moe_layers)) < len(config.moe_layers):
        yield problem(
            "moe_layers", "names a layer more than once", config.moe_layers, "name each once"
        )
    params = config.moe_params
    field = type(params).model_fields["moe_second_threshold_train"]
    policy, threshold = params.moe_second_policy_train, params.moe_second_threshold_train
    if config.moe_layers and policy in ("all", "none") and threshold != field.default:
        yield problem(
            "moe_params.moe_second_threshold_train",
            f"has no effect, moe_second_policy_train is {policy}",
            threshold,
            "remove it",
        )


def _position_warnings(config: Config) -> Iterator[str]:
    """Rotary positions, which attention alone could see, relative ones, which scores alone do."""
    if config.rotary_emb and set(config.attention_layers) == {"none"}:
        yield problem(
            "rotary_emb",
            "leaves the model without positions, no layer has attention",
            config.rotary_emb,
            "remove it",
        )
    if config.relative_position_bias and "linear" in config.attention_layers:
        yield problem(
            "relative_position_bias",
            "does not reach linear layers, they have no scores",
            config.relative_position_bias,
            "set rotary_emb instead, or let global or local layers alone know positions",
        )


def _microbatch_warnings(config: Config) -> Iterator[str]:
    """A size of microbatches that does not split the batch, or not as it says."""
    tokens, rows = config.tokens_per_mb_per_replica, config.train_batch_size // config.batch_pieces
    # Without rows the mesh is too large, and is judged when it is fitted.
    if tokens is None or not rows:
        return
    size = rows // config.microbatches
    effective = size * config.n_ctx
    if config.microbatches == 1:
        yield problem(
            "tokens_per_mb_per_replica",
            f"has no effect, the batch of a replica has {effective} tokens",
            tokens,
            "remove it or lower it",
        )
    elif tokens != effective:
        yield problem(
            "tokens_per_mb_per_replica",
            f"counts as {effective}, microbatches of {size} of the {rows} sequences of a replica "
            f"with {config.n_ctx} tokens each",
            tokens,
            f"set it to {effective}",
        )


def _layout_warnings(config: Config) -> Iterator[str]:
    """Layout rules that split nothing, and processors that all do the same work."""
    absent = {
        "experts": not config.moe_layers,
        "embed_sequence": not config.has_position_embedding,
        "memory_length": not config.has_attention_scores,
    }
    for dim, axis in config.layout_rules:
        if absent.get(dim, False):
            yield problem(
                "layout",
                f"splits '{dim}', which no tensor of this model has",
                f"{dim}:{axis}",
                "remove it",
            )
    used = {axis for _, axis in config.layout_rules}
    for axis, size in config.mesh_axes:
        if size > 1 and axis not in used:
            yield problem(
                "mesh_shape",
                f"has an axis '{axis}' that layout never uses, so {size} processors repeat the "
                f"same work",
                config.mesh_shape,
                f"give a dimension to '{axis}' in layout or remove the axis",
            )


def _padding_warnings(config: Config) -> Iterator[str]:
    """A padding id without a row in the embedding, as in some released configs."""
    if config.padding_id == config.token_count:
        yield problem(
            "padding_id",
            f"has no row in the embedding of {config.token_count} tokens, it is never embedded",
            config.padding_id,
            f"set it to an id below {config.token_count} if the data hold padding",
        )


def _predict_warnings(config: Config) -> Iterator[str]:
    """A batch of samples, written after checkpoints, that the mesh cannot split."""
    if not config.predict_steps:
        return
    sizes = dict(config.mesh_axes)
    for dim, axis in config.layout_rules:
        size = sizes.get(axis, 1)
        if dim == "batch" and config.predict_batch_size % size:
            yield problem(
                "predict_batch_size",
                f"is no multiple of {size}, the size of mesh axis '{axis}', so prediction does "
                f"not use this mesh as it is",
                config.predict_batch_size,
                f"set it to {-(-config.predict_batch_size // size) * size} to use the whole mesh",
            )
