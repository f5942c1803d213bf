"""The folder of a run: what must be true of it before a run starts, and what --new deletes."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from typing import Any, Optional

from configs.schema import Config
from utils.batch_sizes import read_batch_sizes
from utils.files import check_model_path, names_in, remove
from utils.run_base import with_base_of_run
from utils.run_lock import LOCK_FILE
from utils.stored_config import (
    CONFIG_FILE,
    check_resumed_config,
    check_same_model,
    config_path,
    is_run_config,
    read_stored_config,
)

LOGGER = logging.getLogger(__name__)

# All that training, evaluation, samples and the plot of the metrics leave; what a kill leaves
# half written has further letters at the end.
_RUN_FILES = re.compile(
    r"checkpoint(\.tmp\w*)?"
    r"|model\.ckpt-\d+\.(index|meta|data-\d{5}-of-\d{5})(\.(tempstate|tmp)\w*)?"
    r"|graph\.pbtxt(\.tmp\w*)?"
    r"|events\.out\.tfevents\..*"
    r"|config\.json(\.tmp)?"
    r"|(batch_sizes|data|base|tracking)\.json"
    r"|\.(batch_sizes|data|base|tracking)\.json\.partial"
    r"|metrics\.jsonl(\.tmp)?"
    r"|eval_.+\.jsonl"
    r"|predictions_.+_\d+\.txt"
    r"|\.?loss\.(png|html)(\.partial)?"
)


def _has_checkpoint(model_path: str) -> bool:
    return any(name == "checkpoint" or name.endswith(".index") for name in names_in(model_path))


def no_checkpoint(model_path: str) -> ValueError:
    """The error of evaluating or sampling from a folder without a checkpoint."""
    return ValueError(
        f"model_path must hold a checkpoint; got none in {model_path}. Train first, or correct "
        "model_path."
    )


def check_trained(config: Config) -> None:
    """Refuses to evaluate or sample where there is no checkpoint, or one of another model.

    Raises:
        ValueError: that.
    """
    check_model_path(config.model_path)
    if not _has_checkpoint(config.model_path):
        raise no_checkpoint(config.model_path)
    check_same_model(config, read_stored_config(config.model_path))


def check_resumable(config: Config) -> Config:
    """Refuses to train in the folder of something else, or on with another model or base.

    Returns:
        The config, with the base that the run began from.

    Raises:
        ValueError: that, or the run's batch sizes cannot be read.
    """
    stored = read_stored_config(config.model_path)
    _refuse_foreign_config(config.model_path, stored)
    begun = _has_checkpoint(config.model_path)
    if begun:
        check_resumed_config(config, stored)
        read_batch_sizes(config.model_path, stored, config.train_batch_size)
    return with_base_of_run(config, stored, begun)


def _refuse_foreign_config(model_path: str, stored: Optional[dict[str, Any]]) -> None:
    if stored is not None and not is_run_config(stored):
        raise ValueError(
            f"{config_path(model_path)} must be the config of a run, since training replaces it; "
            "got one without model_path and train_steps. Move it away, or use another model_path."
        )


def files_of_run(model_path: str) -> tuple[list[str], list[str]]:
    """Tells what in a folder a run has written, by name.

    Returns:
        Names of the files that --new deletes, and of all else. The lock is in neither.

    Raises:
        ValueError: there is something, but no run, so that a mistaken model_path deletes nothing.
    """
    names = [name for name in names_in(model_path) if name != LOCK_FILE]
    ours = [name for name in names if _RUN_FILES.fullmatch(name)]
    stored: Optional[dict[str, Any]] = None
    if CONFIG_FILE in names:
        with contextlib.suppress(ValueError):  # damaged; then a checkpoint must tell of a run
            stored = read_stored_config(model_path)
        _refuse_foreign_config(model_path, stored)
    checkpoints = "checkpoint" in ours and any(name.endswith(".index") for name in ours)
    if names and stored is None and not checkpoints:
        raise ValueError(
            f"--new must only delete the files of a run; got {model_path}, which holds no "
            "checkpoint and no config.json of one. Correct model_path, or empty the folder "
            "yourself."
        )
    return ours, [name for name in names if name not in ours]


def delete_run(model_path: str) -> None:
    """Removes the files of a run and leaves all else in its folder, with a notice.

    Raises:
        ValueError: as ``files_of_run``.
    """
    ours, others = files_of_run(model_path)
    # The config last: it tells that this is a run, should the deletion be broken off.
    for name in sorted(ours, key=lambda name: name == CONFIG_FILE):
        remove(os.path.join(model_path, name))
    if others:
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        LOGGER.warning(
            "--new left what is no file of a run in %s: %s%s",
            model_path,
            ", ".join(others[:5]),
            more,
        )
