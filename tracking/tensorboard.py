"""TensorBoard beside a run: on a free port of this machine, until the run ends."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import sys

from tracking.process import ROOT
from utils.files import is_remote
from utils.supervised import LEASH_VARIABLE

LOGGER = logging.getLogger(__name__)
# It ends with its supervisor, as training does.
_PROGRAM = (
    "from utils.supervised import stop_with_supervisor; stop_with_supervisor(); "
    "from tensorboard.main import run_main; run_main()"
)
_ADDRESS = re.compile(r"http://\S+")
_SECONDS = 10.0  # for its end


class TensorBoard:
    """Shows the summaries in a folder.

    Args:
        model_path: folder of the run.
        folder: for what it prints, until it ends.
    """

    def __init__(self, model_path: str, folder: str) -> None:
        self._said = False
        self._output_file = os.path.join(folder, "tensorboard.txt")
        logs = model_path if is_remote(model_path) else os.path.abspath(model_path)
        with open(self._output_file, "wb") as printed:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, "--logdir", logs, "--port", "0"],
                cwd=ROOT,
                env=os.environ | {LEASH_VARIABLE: "1"},
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the run, which ends it
            )

    def announce(self) -> None:
        """Logs its address, or that it has failed, as soon as that is known; once."""
        if self._said:
            return
        with open(self._output_file, encoding="utf-8", errors="replace") as file:
            text = file.read()
        address = _ADDRESS.search(text)
        self._said = address is not None or self._process.poll() is not None
        if address:
            LOGGER.info("TensorBoard: %s", address[0])
        elif self._said:
            LOGGER.warning("TensorBoard has ended: %s", (text.splitlines() or ["no reason"])[-1])

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS)
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._output_file)
