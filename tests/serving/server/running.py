"""serve.py as a process of its own, over a tiny model that several tests share."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import serve
from configs.load import load_config
from tests.end_to_end.workshop import make_tokenizer
from tests.support import random_variables, write_checkpoint

ROOT = Path(serve.__file__).resolve().parent
NAME, STEP, N_CTX, TEXTS = "letters", 7, 1500, 3
LONG = N_CTX - 20  # takes a second or more


def make_model(folder: Path) -> Path:
    """Writes tokenizer, config and checkpoint; returns the config's path."""
    tokenizer = make_tokenizer(folder / "tokenizer.json")
    eos = tokenizer.token_to_id("<|endoftext|>")
    dataset = {
        "id": "letters",
        "n_vocab": tokenizer.get_vocab_size(),
        "path": "none_*.tfrecords",
        "tokenizer_path": str(folder / "tokenizer.json"),
        "tokenizer_is_pretrained": False,
        "eos_id": eos,
        "padding_id": eos,
    }
    values = {
        "model_path": str(folder / NAME),
        "train_steps": 1,
        "train_batch_size": 1,
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 14,
        "n_ctx": N_CTX,
        "lr": 0.01,
        "datasets": [dataset],
        "eval_batch_size": 1,
        "predict_batch_size": TEXTS,
    }
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    variables = random_variables(load_config(str(path)), seed=5)
    # Texts are as long as they may be: their end is by far the least likely token.
    variables["gpt2/ln_f/b"] = np.full(14, 1.0, np.float32)
    variables["gpt2/wte"][eos] = -3.0
    (folder / NAME).mkdir()
    write_checkpoint(folder / NAME, variables, step=STEP)
    return path


class Server:
    """A running serve.py.

    Attributes:
        process: of it.
        url: where it is.
    """

    def __init__(self, config: Path, *flags: Any):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "serve.py"), "--model", str(config)]
            + ["--port", str(self.port), *map(str, flags)],
            cwd=config.parent,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        deadline = time.monotonic() + 120
        while not self._is_there():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"serve.py did not start: {self.stop()}")
            time.sleep(0.1)

    def _is_there(self) -> bool:
        with contextlib.suppress(OSError):
            return self.ask("GET", "/healthz")[0] == 200
        return False

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        """One request on a connection of its own.

        Args:
            method: of HTTP.
            path: on the server.
            body: bytes as they are, anything else as JSON; None for no body.
            headers: with underscores for hyphens.

        Returns:
            Status, headers, and the body as JSON, or as text if it is none.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            if body is not None:
                named = {"Content-Type": "application/json"} | named
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, body, named)
            response = connection.getresponse()
            text = response.read().decode("utf-8")
        with contextlib.suppress(ValueError):
            return response.status, response.headers, json.loads(text)
        return response.status, response.headers, text

    def metric(self, name: str, **headers: str) -> float:
        """The value of a metric; labels are part of its name."""
        lines = self.ask("GET", "/metrics", **headers)[2].splitlines()
        return next((float(x.rpartition(" ")[2]) for x in lines if x.startswith(f"{name} ")), 0.0)

    def wait_until(self, **texts: int) -> None:
        """Until so many texts are ``running`` and ``waiting``."""
        deadline = time.monotonic() + 20
        while {n: self.metric(f"serve_texts_{n}") for n in texts} != texts:
            assert time.monotonic() < deadline, self.ask("GET", "/metrics")[2]
            time.sleep(0.01)

    @contextlib.contextmanager
    def sent(self, body: Any, path: str = "/v1/completions", **headers: str) -> Iterator[Any]:
        """A socket on which a request has been sent and nothing has been read."""
        content = json.dumps(body).encode()
        given = {"Host": "here", "Content-Type": "application/json"}
        given |= {"Content-Length": str(len(content))}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content)
            yield connection

    def stop(self) -> str:
        """Asks it to end, and waits; returns what it said."""
        self.process.terminate()
        try:
            return self.process.communicate(timeout=60)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.communicate()[0] + "\n(killed)"
