"""The local record of a run: a folder in the format of Sacred's FileStorageObserver."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from sacred.observers import FileStorageObserver
from sacred.serializer import flatten

from tracking.metrics import RunMetrics, now
from utils.files import read_bytes, write_atomically

RUN_FILE, METRICS_FILE, INFO_FILE = "run.json", "metrics.json", "info.json"
CONFIG_FILE, OUTPUT_FILE = "config.json", "cout.txt"
SOURCE_FOLDER = "_sources"
_LOCK_FILE = "writer.lock"


class Record(FileStorageObserver):
    """Sacred's record of one run, which several processes may write one after another.

    Its files appear whole or not at all, its output and curves are bounded, and the curves are
    written anew when they change, since a run that goes on from a checkpoint does steps again.

    Attributes:
        key: names this run in every database, whatever its number there.
    """

    def __init__(self, runs_dir: str) -> None:
        super().__init__(runs_dir)
        self.key = uuid.uuid4().hex
        self._lock: Optional[int] = None

    @property
    def id(self) -> int:
        """Number of the record in its folder of records."""
        return int(os.path.basename(self.dir))

    def begin(
        self, experiment: dict[str, Any], config: Mapping[str, Any], meta: dict[str, Any]
    ) -> None:
        """Makes a new record, with the next number that is free.

        Raises:
            OSError: it cannot be written.
        """
        from sacred.host_info import get_host_info

        self.started_event(experiment, "main", get_host_info(), now(), dict(config), meta, None)
        self._take_lock()
        self.info = {"key": self.key}
        self.beat("")

    def go_on(self, number: int, config: Mapping[str, Any]) -> None:
        """Continues a record.

        Raises:
            ValueError: another process is writing it, or its files are damaged.
            OSError: it cannot be written.
        """
        self.dir = os.path.join(self.basedir, str(number))
        self._take_lock()
        self.run_entry = read_json(os.path.join(self.dir, RUN_FILE))
        if not self.run_entry:
            raise ValueError(
                f"{os.path.join(self.dir, RUN_FILE)} must be there to continue the record; got no "
                "such file. Bring it back, or remove the record's folder for a new record."
            )
        self.info = read_json(os.path.join(self.dir, INFO_FILE))
        self.key = self.info["key"]
        read_json(os.path.join(self.dir, METRICS_FILE))  # damage is told before anything changes
        self._before = {
            name: read_json(os.path.join(self.dir, name)) for name in (RUN_FILE, CONFIG_FILE)
        }
        for name in ("stop_time", "fail_trace"):
            self.run_entry.pop(name, None)
        self.run_entry["status"] = "RUNNING"
        self.save_json(dict(config), CONFIG_FILE)

    def put_back(self) -> None:
        """Undoes ``go_on`` for a start that was refused: the run is what it was."""
        for name, content in self._before.items():
            self.save_json(content, name)

    def _take_lock(self) -> None:
        descriptor = os.open(os.path.join(self.dir, _LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise ValueError(
                f"a run must be tracked by one process at a time; got {self.dir}, which another "
                "one is writing. Wait for its end, or stop it."
            ) from error
        self._lock = descriptor

    def close(self) -> None:
        """Gives the record free."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def beat(self, output: str, result: Optional[float] = None) -> None:
        """Writes the time, the output and what has become known; see ``heartbeat_event``."""
        if result is None:
            result = self.run_entry.get("result")
        self.heartbeat_event(self.info, output, now(), result)

    def write_curves(self, metrics: RunMetrics) -> None:
        """Writes all curves."""
        curves = {name: curve.as_json() for name, curve in metrics.curves.items()}
        self.save_json(curves, METRICS_FILE)

    def add_artifact(self, name: str, path: str) -> None:
        """Copies a file into the record, in the place of one of that name."""
        if name in self.run_entry["artifacts"]:
            self.run_entry["artifacts"].remove(name)
        self.artifact_event(name, path)

    def save_file(self, filename: str, target_name: Optional[str] = None) -> None:
        """Copies a file, local or remote, into the record."""
        name = target_name or os.path.basename(filename)
        assert name not in (RUN_FILE, METRICS_FILE, INFO_FILE, CONFIG_FILE, OUTPUT_FILE)
        write_atomically(os.path.join(self.dir, name), read_bytes(filename))

    def save_json(self, obj: Any, filename: str) -> None:
        """Writes a JSON file, whole or not at all."""
        text = json.dumps(flatten(obj), sort_keys=True, indent=None if "metrics" in filename else 2)
        write_atomically(os.path.join(self.dir, filename), text.encode("utf-8"))

    def save_cout(self) -> None:
        """Writes the output, of which not only the end changes."""
        write_atomically(os.path.join(self.dir, OUTPUT_FILE), self.cout.encode("utf-8"))

    def find_or_save(self, filename: str, store_dir: Path) -> Path:
        """Stores a file once, at once: other runs may be starting, too."""
        from sacred.dependencies import get_digest

        name = Path(filename)
        stored = Path(store_dir) / f"{name.stem}_{get_digest(filename)}{name.suffix}"
        if not stored.exists():
            stored.parent.mkdir(parents=True, exist_ok=True)
            temporary = stored.with_name(f".{stored.name}.{uuid.uuid4().hex}")
            shutil.copyfile(filename, temporary)
            os.replace(temporary, stored)
        return stored


def read_json(path: str) -> dict[str, Any]:
    """An object in a JSON file; an empty one if there is no file.

    Raises:
        ValueError: the file holds something else.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(
            f"{path} must be a JSON file; got one that is damaged ({error}). Bring it back, or "
            "remove the record's folder."
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} must hold a JSON object; got {type(content).__name__}. Bring it back, or "
            "remove the record's folder."
        )
    return content


def is_written(folder: str) -> bool:
    """Whether a living process on this machine is writing a record."""
    try:
        descriptor = os.open(os.path.join(folder, _LOCK_FILE), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
