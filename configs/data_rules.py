"""Rules about datasets; see `rules`."""

import math
from collections.abc import Iterator

from configs.errors import problem
from configs.schema import Config

_SMALLEST_SHARE = 1e-12


def evaluation_has_data(config: Config) -> Iterator[str]:
    """Evaluation after checkpoints needs records to evaluate on."""
    if config.eval_steps and not any(source.eval_glob for source in config.sources):
        yield problem(
            "eval_steps",
            "must be 0 when no dataset has an eval_path",
            config.eval_steps,
            "add eval_path to the dataset config or set it to 0",
        )


def lambada_has_texts(config: Config) -> Iterator[str]:
    """The task that is built in reads a file that a dataset config names."""
    if "lambada" in config.eval_tasks and config.lambada_tokens_path is None:
        yield problem(
            "eval_tasks",
            "must not name lambada when no dataset config has a lambada_tokens_path",
            list(config.eval_tasks),
            "add it, or name lambada_openai or lambada_standard, which lm-evaluation-harness reads",
        )


def weights_are_shares(config: Config) -> Iterator[str]:
    """Every dataset of a mix must have a share that draws can meet."""
    total = sum(source.weight for source in config.sources)
    for source in config.sources:
        share = source.weight / total
        if math.isinf(total) or share < _SMALLEST_SHARE:
            yield problem(
                "datasets",
                f"must have weights that add up to a finite number, of which each is a share of "
                f"{_SMALLEST_SHARE:.0e} or more",
                f"{source.weight:g} for {source.id} of {total:g} in all",
                "write weights of a similar size, such as 3 and 1",
            )
            return
