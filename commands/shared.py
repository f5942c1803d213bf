"""What several commands need: the newest checkpoint, the prompt, where a graph runs."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any, BinaryIO, Optional

from configs.schema import Config

LOGGER = logging.getLogger(__name__)
DEFAULT_RUN_ID = "nosacred"  # GPT-Neo's name for files of a run that is not tracked


def placement_of(fit: Any, **options: Any) -> Any:
    """The placement of a fit, whose notices are logged."""
    from model_fns import Placement

    for notice in fit.notices:
        LOGGER.warning(notice)
    return Placement(fit.mesh_layout, fit.devices, tpu=fit.tpu, **options)


def trained_checkpoint(config: Config) -> str:
    """Path of the newest checkpoint; raises ValueError if there is none."""
    from utils.checkpoints import latest_checkpoint
    from utils.run_folder import no_checkpoint

    checkpoint = latest_checkpoint(config.model_path)
    if checkpoint is None:
        raise no_checkpoint(config.model_path)
    return checkpoint


def prompt_of(arguments: argparse.Namespace) -> str:
    """Text of ``--prompt``, by default GPT-2's."""
    from serving.prompts import read_prompt

    return read_prompt(arguments.prompt, None if sys.stdin is None else sys.stdin.buffer)


def terminal_of(arguments: argparse.Namespace) -> Optional[BinaryIO]:
    """The terminal on which prompts are typed: ``--prompt -`` where someone sits; else None."""
    if arguments.prompt != "-" or arguments.out is not None:
        return None
    return sys.stdin.buffer if sys.stdin is not None and sys.stdin.isatty() else None
