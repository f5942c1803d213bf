"""Rules of masked language modelling, and what a masked model cannot do."""

from collections.abc import Iterator

from configs.architecture_rules import token_limit
from configs.errors import problem
from configs.schema import Config


def masking_is_complete(config: Config) -> Iterator[str]:
    """Masked language modelling has a mask token of its own, and shares that add up."""
    if not config.mlm_training:
        return
    if config.mlm_mask_id is None:
        yield problem(
            "mlm_mask_id", "is required with mlm_training", None, "add the id of the mask token"
        )
    elif config.mlm_mask_id == config.mlm_cls_token_id:
        yield problem(
            "mlm_mask_id",
            "must differ from mlm_cls_token_id",
            config.mlm_mask_id,
            "change one of them",
        )
    share = config.mlm_same_token_prob + config.mlm_random_token_prob
    if share > 1:
        yield problem(
            "mlm_same_token_prob",
            "plus mlm_random_token_prob must be at most 1",
            share,
            "lower one of them",
        )


def ignored_ids_are_in_vocabulary(config: Config) -> Iterator[str]:
    """Ids that are never masked exist."""
    beyond = [token for token in config.mlm_mask_ignore_ids if token >= config.token_count]
    if beyond:
        yield problem(
            "mlm_mask_ignore_ids",
            f"must be below {token_limit(config)}",
            beyond,
            "remove them or raise n_vocab",
        )


def masked_models_write_no_text(config: Config) -> Iterator[str]:
    """Samples and tasks at checkpoints need a causal model."""
    if config.causal:
        return
    for key in ("predict_steps", "eval_tasks"):
        value = getattr(config, key)
        if value:
            yield problem(
                key,
                "must not be set with mlm_training, a masked model does not continue text",
                value,
                "remove it",
            )


def require_causal(config: Config) -> None:
    """Refuses to generate text from a model that sees what follows a position.

    Raises:
        ValueError: The model is a masked one.
    """
    if not config.causal:
        raise ValueError(
            "mlm_training must be false to generate text; got true: a masked model fills gaps "
            "and does not continue a text. Use --eval, or a model that was trained without it."
        )
