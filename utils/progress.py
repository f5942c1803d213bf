"""Progress of a run: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from tqdm import tqdm

LOGGER = logging.getLogger(__name__)
PROGRESS_LINE = "progress_line"
"""Attribute of log records that say what the bar on a terminal says."""


_USUAL_SIZE = {"ncols": 80, "nrows": 24}


def _size_of_terminal() -> dict[str, Any]:
    """Options of the bar: as large as the terminal at any time, if the terminal knows its size.

    Some, as those of `script` without a terminal or of CI, say that they have no column or line,
    and a bar that believes it is not drawn.
    """
    try:
        known = all(os.get_terminal_size(sys.stderr.fileno()))
    except (OSError, ValueError):
        known = False
    return {"dynamic_ncols": True} if known else _USUAL_SIZE


def _noise_scale(values: dict[str, Any]) -> list[str]:
    scale = values.get("noise_scale")
    return [] if scale is None else [f"noise scale {scale:,.1f} sequences"]


class Progress:
    """Shows how far a run has come and when it will be done.

    Args:
        start: steps already made.
        total: steps in all.
    """

    def __init__(self, start: int, total: int):
        self._total = total
        self._bar = tqdm(
            total=total,
            initial=start,
            unit="step",
            **_size_of_terminal(),
            disable=not sys.stderr.isatty(),
            file=sys.stderr,
        )

    def update(self, step: int, values: dict[str, Any]) -> None:
        """Moves the bar to ``step``."""
        self._bar.set_postfix_str(f"loss {values['loss']:.3f}", refresh=False)
        self._bar.update(step - self._bar.n)

    def line(self, values: dict[str, Any]) -> None:
        """Logs one interval; a terminal, where the bar says it already, does not show the line."""
        step = values["step"]
        speed = values["tokens_per_second"]
        parts = [
            f"step {step}/{self._total}",
            f"loss {values['loss']:.4f}",
            f"lr {values['learning_rate']:.3g}",
            f"grad norm {values['grad_norm']:.3f}",
            *_noise_scale(values),
            f"{speed:,.0f} tokens/s",
        ]
        if "epoch" in values:
            parts.append(f"epoch {values['epoch']:.2f}")
        LOGGER.info("  ".join(parts), extra={PROGRESS_LINE: True})

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()
