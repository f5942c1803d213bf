"""Rules of the optimizer and its learning-rate schedule."""

import os
from collections.abc import Iterator

from configs.errors import problem
from configs.schema import Config


def warmup_ends_in_time(config: Config) -> Iterator[str]:
    """The warm-up fits into the run and into the decay; annealing begins where it ends."""
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


def annealing_is_complete(config: Config) -> Iterator[str]:
    """Annealing has a length and a rate at which it ends."""
    if config.anneal_steps is not None and config.end_lr is None:
        yield problem(
            "end_lr", "is required with anneal_steps", None, "add the rate after annealing"
        )
    if config.end_lr is not None and config.anneal_steps is None:
        yield problem(
            "anneal_steps", "is required with end_lr", None, "add the steps that lead to it"
        )


def annealing_goes_down(config: Config) -> Iterator[str]:
    """The last rate is not above the peak."""
    if config.end_lr is not None and config.end_lr > config.lr:
        yield problem(
            "end_lr", f"must be at most lr {config.lr}", config.end_lr, "lower it or raise lr"
        )


def one_schedule(config: Config) -> Iterator[str]:
    """Annealing and the decay to a tenth exclude each other."""
    if config.anneal_steps is None:
        return
    if config.lr_decay is not None:
        yield problem(
            "lr_decay",
            "must not be combined with anneal_steps",
            config.lr_decay,
            "remove one of the two",
        )
    # Without lr_decay its default stands there.
    if "lr_decay_end" in config.model_fields_set:
        yield problem(
            "lr_decay_end",
            "must not be combined with anneal_steps, which is counted from the end of the warm-up",
            config.lr_decay_end,
            "remove it",
        )


def optimizer_has_a_base(config: Config) -> Iterator[str]:
    """Only a run that begins from another one may keep or drop an optimizer."""
    if config.init_from is None and config.fresh_opt:
        yield problem("fresh_opt", "needs init_from", config.fresh_opt, "remove it or add that")
    if config.earlier_updates and (config.init_from is None or config.fresh_opt):
        yield problem(
            "earlier_updates",
            "needs init_from, without fresh_opt",
            config.earlier_updates,
            "remove it",
        )


def base_is_another_folder(config: Config) -> Iterator[str]:
    """A run does not begin from itself."""
    if config.init_from is not None and _folder(config.init_from) == _folder(config.model_path):
        yield problem(
            "init_from",
            f"must not be model_path {config.model_path}, which is for the new run",
            config.init_from,
            "set another model_path, or remove init_from to resume the run",
        )


def _folder(path: str) -> str:
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def noise_scale_has_microbatches(config: Config) -> Iterator[str]:
    """The gradient noise scale compares microbatches with the batch."""
    # Without rows the mesh is too large, and that is said elsewhere.
    if config.noise_scale_alpha is None or config.train_batch_size < config.batch_pieces:
        return
    if config.microbatches < 2:
        most = config.train_batch_size // config.batch_pieces * config.n_ctx // 2
        remedy = f"set tokens_per_mb_per_replica to {most} or less, or remove it"
        if config.train_batch_size // config.batch_pieces < 2:
            remedy = "raise train_batch_size, split batch less, or remove it"
        yield problem(
            "noise_scale_alpha",
            "needs at least 2 microbatches, and the batch of a replica is one",
            config.noise_scale_alpha,
            remedy,
        )
