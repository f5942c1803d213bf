"""Where log lines go: stderr and ``logs/<model>.log``; stdout is left to results."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from tqdm import tqdm

from utils.progress import PROGRESS_LINE

LOG_FOLDER = "logs"


class _StderrHandler(logging.Handler):
    """Writes above a progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, PROGRESS_LINE, False) and sys.stderr.isatty():
            return
        tqdm.write(self.format(record), file=sys.stderr)


class _LogFile(logging.FileHandler):
    """The log on the disk, given up where it cannot be written: stderr has every line too."""

    def __init__(self, path: str) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace", delay=True)

    def handleError(self, record: logging.LogRecord) -> None:
        """Says once that it is given up."""
        logging.getLogger().removeHandler(self)
        problem = sys.exc_info()[1]
        logging.getLogger(__name__).warning("%s is not written on: %s", self.baseFilename, problem)


def set_up_logging(name: str, debug: bool) -> None:
    """Sends log lines of this project to stderr and to ``logs/<name>.log``.

    Args:
        name: of the model config.
        debug: also shows TensorFlow's own messages.
    """
    handlers: list[Any] = [_StderrHandler()]
    try:
        os.makedirs(LOG_FOLDER, exist_ok=True)
        handlers.append(_LogFile(os.path.join(LOG_FOLDER, f"{name}.log")))
    except OSError:  # a read-only folder must not stop a run; stderr has every line too
        pass
    formatter = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    for handler in handlers:
        handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(logging.INFO)
    if not debug:
        for noisy in ("tensorflow", "absl"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
