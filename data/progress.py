"""Unfinished work on disk: what a job needs to go on after it was killed.

The folder of the work holds `job.json`, which says what the work is, `state.json`, which says how
far it is, and files that the state speaks of. A state is written after the files, whole or not
at all, so at any moment the last one is true.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

from data.input_files import changed_files, in_short
from utils.files import is_remote, write_atomically

SAVE_SECONDS = 20.0
"""Time between two states; so much work is lost at most."""

_JOB, _STATE, _LOCK = "job.json", "state.json", "lock"


def work_folder(output_dir: str, name: str) -> str:
    """Where the unfinished work on a data set is.

    Args:
        output_dir: folder of the records, local or `gs://`.
        name: of the data set.

    Returns:
        A local path: a hidden folder beside the records, or for remote ones in the folder for
        temporary files.
    """
    if not is_remote(output_dir):
        return os.path.join(output_dir, f".{name}.unfinished")
    digest = hashlib.sha256(f"{output_dir}\n{name}".encode()).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"create_tfrecords-{digest}")


class Work:
    """The unfinished work on one data set. One process has it at a time."""

    def __init__(self, folder: str) -> None:
        """Looks at it, and makes nothing yet.

        Args:
            folder: of the work.
        """
        self.folder = folder
        self._lock: int | None = None
        self._made: list[str] = []  # folders that were not there
        self._saved_at = time.monotonic()
        self.state = self._read(_STATE)

    @property
    def is_saved(self) -> bool:
        """Whether there is a state to go on from."""
        return self.state is not None

    @property
    def is_begun(self) -> bool:
        """Whether something of it is on disk, even if there is nothing to go on from."""
        return os.path.exists(self._path(_JOB))

    @property
    def is_held(self) -> bool:
        """Whether this process has it."""
        return self._lock is not None

    def start(self, job: dict[str, Any]) -> None:
        """Starts from the beginning; what is left of earlier work is removed.

        Args:
            job: what the work is.

        Raises:
            ValueError: another process works on it, or the folder cannot be written to.
        """
        self._take()
        for name in os.listdir(self.folder):
            if name != _LOCK:
                _remove(self._path(name))
        self.state = None
        write_atomically(self._path(_JOB), json.dumps(job).encode())

    def resume(self, job: dict[str, Any]) -> None:
        """Goes on with earlier work.

        Args:
            job: what the work is.

        Raises:
            ValueError: it is not the work that was started, or another process works on it.
        """
        started = self._read(_JOB) or {}
        job = json.loads(json.dumps(job))
        differences = [
            f"{key} was {started.get(key)!r} and is {value!r}"
            for key, value in job.items()
            if key != "files" and value != started.get(key)
        ]
        differences += changed_files(started.get("files", []), job["files"])
        if differences:
            raise ValueError(
                "--resume must be given the options and input files that the work was started "
                f"with; got other ones: {in_short(differences)}. Give those, or "
                "--overwrite without --resume to start again."
            )
        self._take()

    def save(self, make_state: Callable[[], dict[str, Any]], force: bool = False) -> None:
        """Writes the state if it is time to.

        Args:
            make_state: gives the state, as JSON can hold it, and sees to it that the files of
                which it speaks are written.
            force: whether to write it at any time.
        """
        if force or time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self.state = make_state()
            content = json.dumps(self.state).encode()
            write_atomically(self._path(_STATE), content)
            self._saved_at = time.monotonic()

    def release(self) -> None:
        """Lets another process have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Removes the work, and folders that were made for it if nothing else is in them."""
        if self._lock is None:
            return
        # The state first, which speaks of the others, and the lock last.
        names = sorted(os.listdir(self.folder), key=lambda name: (name == _LOCK, name != _STATE))
        for name in names:
            _remove(self._path(name))
        self.release()
        os.rmdir(self.folder)
        for folder in self._made:
            if not os.listdir(folder):
                os.rmdir(folder)

    def _take(self) -> None:
        parent = os.path.dirname(os.path.abspath(self.folder))
        while not os.path.exists(parent):
            self._made.append(parent)
            parent = os.path.dirname(parent)
        try:
            os.makedirs(self.folder, exist_ok=True)
            self._lock = os.open(self._path(_LOCK), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ValueError(
                f"output_dir must be a folder that can be written to; got {self.folder} "
                f"({error.strerror}). Give another folder."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The process that had it may have removed it meanwhile.
            is_free = os.path.samestat(os.fstat(self._lock), os.stat(self._path(_LOCK)))
        except (BlockingIOError, FileNotFoundError):
            is_free = False
        if not is_free:
            self.release()
            raise ValueError(
                "records of one name must be made by one process at a time; got another that "
                f"works in {self.folder}. Wait for it or stop it, or give another --name."
            )

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _read(self, name: str) -> Any:
        path = self._path(name)
        if not os.path.exists(path):
            return None
        with open(path, "rb") as file:
            return json.loads(file.read())


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.remove(path)
