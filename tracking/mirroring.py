"""Keeps a record and its run in MongoDB the same while training goes on."""

from __future__ import annotations

import logging
import threading
import time
from typing import Optional

from pymongo.errors import PyMongoError

from tracking.database import Database
from tracking.mirror import Mirror

LOGGER = logging.getLogger(__name__)
FINAL_SECONDS = 30.0
"""How long the end of a run waits for a database that is away."""


class Mirroring:
    """A thread that brings a database up to date again and again, whatever happens to it.

    Args:
        folder: of the record.
        database: to which it is carried.
        interval: seconds between two updates.
    """

    def __init__(self, folder: str, database: Database, interval: float = 10.0) -> None:
        self._folder = folder
        self._database = database
        self._interval = interval
        self._mirror = Mirror(folder, database)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mongodb", daemon=True)
        self._failed = False
        self._number: Optional[int] = None

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def finish(self) -> None:
        """Carries the closed record over, or says how that is done later."""
        self._ending.set()
        self._thread.join()
        end = time.monotonic() + FINAL_SECONDS
        while not self._update():
            if time.monotonic() > end:
                LOGGER.warning(
                    "%s was not reached; nothing is lost: python scripts/upload_run.py %s",
                    self._database.name,
                    self._folder,
                )
                break
            time.sleep(1.0)
        self._database.close()

    def _run(self) -> None:
        while True:
            self._update()
            if self._ending.wait(self._interval):
                return

    def _update(self) -> bool:
        """Returns whether the database is up to date."""
        try:
            number = self._mirror.update()
        except Exception as error:  # nothing that happens here may end training
            if not self._failed:
                is_known = isinstance(error, (PyMongoError, OSError))
                LOGGER.warning(
                    "%s cannot be written for now: %s. The record in %s has everything",
                    self._database.name,
                    _first_words(error),
                    self._folder,
                    exc_info=None if is_known else error,
                )
            self._failed = True
            return False
        if self._failed:
            LOGGER.info("%s is up to date again", self._database.name)
        if self._number is None:
            LOGGER.info("run %d in %s", number, self._database.name)
        self._failed, self._number = False, number
        return True


def _first_words(error: Exception) -> str:
    """Pymongo's errors end in a description of the topology."""
    return str(error).partition(", Timeout: ")[0].partition(" (configured timeouts")[0]
