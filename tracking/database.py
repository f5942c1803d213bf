"""The MongoDB in which Omniboard looks for runs."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Collection
from typing import Any

import gridfs
import pymongo
from bson import ObjectId
from pymongo.errors import DuplicateKeyError, InvalidURI, OperationFailure, PyMongoError
from pymongo.uri_parser import parse_uri

DEFAULT_DATABASE = "sacred"
_CHUNK_BYTES = 255 * 1024  # of GridFS
_AUTHENTICATION_FAILED, _UNAUTHORIZED = 18, 13
_TIMEOUTS: dict[str, Any] = {
    "serverSelectionTimeoutMS": 5_000,
    "connectTimeoutMS": 5_000,
    "socketTimeoutMS": 30_000,
}


class Database:
    """A connection, made when it is needed.

    Args:
        url: ``mongodb://user:password@host:port/database?authSource=database``.

    Raises:
        ValueError: it is no such URL.

    Attributes:
        name: host and database, without user and password.
        runs: Sacred's collection of runs.
        metrics: Sacred's collection of curves.
        files: GridFS with artifacts and sources.
    """

    def __init__(self, url: str) -> None:
        _check_user(url)
        try:
            parts = parse_uri(url)
            timeouts = {
                key: value for key, value in _TIMEOUTS.items() if key not in parts["options"]
            }
            client: Any = pymongo.MongoClient(url, **timeouts)
        except (InvalidURI, PyMongoError, ValueError) as error:
            raise ValueError(
                "--mongo_url must be mongodb://USER:PASSWORD@HOST:PORT/DATABASE; got another text "
                f"({error}). Correct it, or the variable MONGO_URL."
            ) from error
        hosts = ",".join(f"{host}:{port}" for host, port in parts["nodelist"])
        database = client[parts["database"] or DEFAULT_DATABASE]
        self.name = f"{hosts}/{database.name}"
        self.runs = database["runs"]
        self.metrics = database["metrics"]
        self.files = gridfs.GridFS(database)
        self._file_documents = database["fs.files"]
        self._chunks = database["fs.chunks"]
        self._client = client

    def store(self, name: str, content: bytes) -> ObjectId:
        """Stores a file in GridFS unless it is there.

        Its id is a function of name and content, and so are those of its pieces: several
        processes may store the same file at once, and one that was cut short is stored again.

        Returns:
            The id of the file.

        Raises:
            PyMongoError: the database cannot be reached or refuses.
        """
        sha256 = hashlib.sha256(content).hexdigest()
        identifier = _identifier(f"{sha256} {name}")
        if self.files.exists(identifier):
            return identifier
        self._chunks.create_index([("files_id", 1), ("n", 1)], unique=True)
        for number, start in enumerate(range(0, len(content), _CHUNK_BYTES)):
            data = content[start : start + _CHUNK_BYTES]
            chunk = {"files_id": identifier, "n": number, "data": data}
            _put(self._chunks, _identifier(f"{identifier} {number}"), chunk)
        document = {
            "filename": name,
            "length": len(content),
            "chunkSize": _CHUNK_BYTES,
            "uploadDate": datetime.datetime.now(datetime.timezone.utc),
            "metadata": {"sha256": sha256},
        }
        _put(self._file_documents, identifier, document)  # last: what has it is complete
        return identifier

    def has(self, identifiers: Collection[ObjectId]) -> bool:
        """Whether all these files are stored.

        Raises:
            PyMongoError: the database cannot be reached or refuses.
        """
        query = {"_id": {"$in": list(identifiers)}}
        return bool(self._file_documents.count_documents(query) == len(identifiers))

    def check_access(self) -> None:
        """Reads a run, and asks to change none: a user who may not write is refused that, too.

        Raises:
            ValueError: the server refuses the user.
            PyMongoError: it cannot be reached.
        """
        try:
            self.runs.find_one({}, {"_id": 1})
            self.runs.update_one({"_id": {"$in": []}}, {"$set": {"status": ""}})
        except OperationFailure as error:
            if error.code not in (_AUTHENTICATION_FAILED, _UNAUTHORIZED):
                raise
            raise ValueError(
                f"--mongo_url must name a user who may read and write {self.name}; got one whom "
                f"it refuses ({error.details.get('errmsg') if error.details else error}). "
                "Correct user, password and authSource."
            ) from error

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


def _identifier(text: str) -> ObjectId:
    return ObjectId(hashlib.sha256(text.encode()).hexdigest()[:24])


def _put(collection: Any, identifier: ObjectId, document: dict[str, Any]) -> None:
    try:
        collection.replace_one({"_id": identifier}, document, upsert=True)
    except DuplicateKeyError:  # another process has put the same in this moment
        return


def _check_user(url: str) -> None:
    """Refuses a password that would be read, and told in errors, as host and database."""
    user, _, _ = url.partition("://")[2].rpartition("@")
    found = [character for character in "@/?#" if character in user]
    if found:
        written = " and ".join(f"%{ord(character):02X} for {character}" for character in found)
        raise ValueError(
            "--mongo_url must have user and password percent-encoded; got "
            f"{' and '.join(found)} in them. Write {written}."
        )
