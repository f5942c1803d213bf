"""One training process per folder."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
from typing import Any, Optional

from utils.files import check_model_path, is_remote, missing_folders

LOGGER = logging.getLogger(__name__)
LOCK_FILE = "training.lock"


class TrainingLock:
    """Holds the folder of a run for this process, as a context manager.

    The lock belongs to the open file, so that it ends with the process however that ends; the
    file says who holds it and is removed afterwards. A folder that was made for the lock is
    removed if nothing else has come into it. Remote folders have no locks.

    Args:
        model_path: folder of the run.
    """

    def __init__(self, model_path: str):
        self._model_path = model_path
        self._path = os.path.join(model_path, LOCK_FILE)
        self._made: list[str] = []
        self._descriptor: Optional[int] = None

    def __enter__(self) -> TrainingLock:
        """Takes the lock.

        Raises:
            ValueError: another process has it, or the path cannot be a folder.
        """
        if not is_remote(self._model_path):
            check_model_path(self._model_path)
            self._made = missing_folders(self._model_path)
            self._descriptor = self._acquire()
        return self

    def _acquire(self) -> Optional[int]:
        while True:
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.read(descriptor, 200).decode("utf-8", errors="replace").strip()
                os.close(descriptor)
                raise ValueError(
                    f"model_path must be trained by one process at a time; got "
                    f"{self._model_path}, which {holder or 'another process'} is training. Wait "
                    "for its end, stop it, or use another model_path."
                ) from error
            except OSError as error:
                os.close(descriptor)
                os.remove(self._path)
                LOGGER.warning(
                    "%s has no file locks (%s): nothing keeps a second process from training in it",
                    self._model_path,
                    error.strerror,
                )
                return None
            if _is_at(descriptor, self._path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                return descriptor
            os.close(descriptor)  # removed by the process that held it before

    def _open(self) -> int:
        try:
            os.makedirs(self._model_path, exist_ok=True)
            return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ValueError(
                f"model_path must be a folder that can be made and written; got "
                f"{self._model_path} ({error.strerror}). Change its permissions, or name another "
                "folder."
            ) from error

    def __exit__(self, *unused: Any) -> None:
        """Gives the lock back."""
        if self._descriptor is None:
            return
        with contextlib.suppress(FileNotFoundError):  # the folder was removed meanwhile
            os.remove(self._path)  # still locked, so that nobody can have taken this file over
        os.close(self._descriptor)
        with contextlib.suppress(FileNotFoundError):
            for folder in self._made:
                if os.listdir(folder):
                    break
                os.rmdir(folder)


def _is_at(descriptor: int, path: str) -> bool:
    """Whether an open file is still the one that its path names."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def is_held_by_other(model_path: str, process_id: int) -> bool:
    """Whether the lock of a local run's folder names another process than this one."""
    try:
        with open(os.path.join(model_path, LOCK_FILE), encoding="utf-8", errors="replace") as file:
            return not file.read().startswith(f"process {process_id} on ")
    except OSError:  # nobody holds it
        return False
