"""A local record as a run of Sacred in MongoDB, brought up to date as often as one likes.

The record is the truth. Every write says what shall be there and not what has to be added, so that
one whose answer was lost can be done again, and a database that was away for long gets what it
missed.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from typing import Any

from bson import ObjectId
from pymongo import DESCENDING
from pymongo.errors import DuplicateKeyError

from tracking.database import Database
from tracking.record import (
    CONFIG_FILE,
    INFO_FILE,
    METRICS_FILE,
    OUTPUT_FILE,
    RUN_FILE,
    read_json,
)
from utils.files import read_bytes

_FORMAT = "MongoObserver-0.7.0"  # of Sacred; Omniboard reads it
_TIMES = ("start_time", "stop_time", "heartbeat")


class Mirror:
    """One record in one database.

    Args:
        folder: of the record.
        database: to which it is carried.

    Raises:
        ValueError: there is no record of run_experiment.py in the folder.
    """

    def __init__(self, folder: str, database: Database) -> None:
        self._folder = folder
        self._database = database
        self._key = read_json(os.path.join(folder, INFO_FILE)).get("key")
        if self._key is None or not read_json(os.path.join(folder, RUN_FILE)):
            raise ValueError(
                f"a record must be a folder that run_experiment.py has written; got {folder}. "
                "Name one of those in runs/."
            )
        self._files: dict[tuple[str, Any], Any] = {}  # ids of what is stored, by path and state
        self._curves: dict[str, dict[str, list[Any]]] = {}  # as they are in the database

    def update(self) -> int:
        """Brings the database up to date.

        Returns:
            The number of the run there.

        Raises:
            PyMongoError: the database cannot be reached or refuses.
            OSError: the record cannot be read.
        """
        document = self._document()
        number = self._number(document)
        self._forget_what_is_gone(number)
        document["info"]["metrics"] = self._update_curves(number)
        document["artifacts"] = self._artifacts(document["artifacts"], number)
        document["experiment"]["sources"] = self._sources(document["experiment"]["sources"])
        changes: dict[str, Any] = {"$set": document}
        gone = {name: "" for name in ("stop_time", "fail_trace") if name not in document}
        if gone:  # the run goes on
            changes["$unset"] = gone
        self._database.runs.update_one({"_id": number}, changes)
        return number

    def _document(self) -> dict[str, Any]:
        document = read_json(os.path.join(self._folder, RUN_FILE))
        for name in _TIMES:
            if document.get(name):
                document[name] = datetime.datetime.fromisoformat(document[name])
        return document | {
            "format": _FORMAT,
            "config": read_json(os.path.join(self._folder, CONFIG_FILE)),
            "info": read_json(os.path.join(self._folder, INFO_FILE)),
            "captured_out": read_bytes(os.path.join(self._folder, OUTPUT_FILE)).decode("utf-8"),
        }

    def _number(self, document: dict[str, Any]) -> int:
        """The number of the run in the database, which gets a new one if it is not there."""
        runs = self._database.runs
        while True:
            found = runs.find_one({"info.key": self._key}, {"_id": 1})
            if found is not None:
                return int(found["_id"])
            # Other programs may have given names in place of numbers.
            last = runs.find_one(
                {"_id": {"$type": "number"}}, {"_id": 1}, sort=[("_id", DESCENDING)]
            )
            number = int(last["_id"]) + 1 if last else 1
            # If it was there before, the database has been emptied, and nothing else is there.
            self._files.clear()
            self._curves.clear()
            # Finds the run of a record, and keeps it from being there twice.
            runs.create_index("info.key", unique=True, sparse=True)
            try:
                # Without files: they take a while, and the run shall be seen meanwhile.
                experiment = document["experiment"] | {"sources": []}
                new = {"_id": number, "artifacts": [], "experiment": experiment}
                runs.insert_one(document | new)
            except DuplicateKeyError:  # another run has taken the number, or this one is there
                continue
            return number

    def _forget_what_is_gone(self, number: int) -> None:
        """Has stored anew what somebody has removed from the database meanwhile."""
        if self._files and not self._database.has(set(self._files.values())):
            self._files.clear()
        if self._database.metrics.count_documents({"run_id": number}) < len(self._curves):
            self._curves.clear()

    def _update_curves(self, number: int) -> list[dict[str, str]]:
        """Carries the curves over; returns the references to them that a run holds."""
        references = []
        curves = read_json(os.path.join(self._folder, METRICS_FILE))
        for name, points in sorted(curves.items()):
            # The same in every attempt, so that no curve is there twice.
            digest = hashlib.md5(f"{self._key} {name}".encode()).hexdigest()
            identifier = ObjectId(digest[:24])
            if self._curves.get(name) != points:
                self._update_curve(identifier, number, name, points)
                self._curves[name] = points
            references.append({"name": name, "id": str(identifier)})
        return references

    def _update_curve(
        self, identifier: ObjectId, number: int, name: str, points: dict[str, list[Any]]
    ) -> None:
        count = len(self._curves[name]["steps"]) if name in self._curves else 0
        whole = {key: _values(key, values) for key, values in points.items()}
        is_longer = 1 < count < len(points["steps"])
        if is_longer and self._curves[name] == {key: points[key][:count] for key in points}:
            more = {key: {"$each": values[count:]} for key, values in whole.items()}
            result = self._database.metrics.update_one(
                {"_id": identifier, "steps": {"$size": count}}, {"$push": more}
            )
            if result.matched_count:
                return
        if len(whole["steps"]) == 1:  # Omniboard draws lines, and none of one point
            whole = {key: values * 2 for key, values in whole.items()}
            whole["steps"] = [whole["steps"][0], whole["steps"][0] + 1]
        document = {"run_id": number, "name": name} | whole
        self._database.metrics.replace_one({"_id": identifier}, document, upsert=True)

    def _artifacts(self, names: list[str], number: int) -> list[dict[str, Any]]:
        prefix = f"artifact://{self._database.runs.name}/{number}/"
        return [
            {"name": name, "file_id": self._store(os.path.join(self._folder, name), prefix + name)}
            for name in names
        ]

    def _sources(self, sources: list[list[str]]) -> list[list[Any]]:
        """Files of the project, each stored once for all runs: their names hold a digest."""
        runs_dir = os.path.dirname(os.path.abspath(self._folder))
        return [
            [name, self._store(os.path.join(runs_dir, stored), f"source://{stored}")]
            for name, stored in sources
        ]

    def _store(self, path: str, name: str) -> Any:
        """Stores a file unless it is there; returns its id."""
        status = os.stat(path)
        state = (path, (status.st_size, status.st_mtime_ns))
        if state not in self._files:
            self._files[state] = self._database.store(name, read_bytes(path))
        return self._files[state]


def _values(key: str, values: list[Any]) -> list[Any]:
    if key == "timestamps":
        return [datetime.datetime.fromisoformat(value) for value in values]
    return values
