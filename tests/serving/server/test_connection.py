"""Clients that neither send nor take anything are not waited for."""

import asyncio
import contextlib
import signal
import socket
import threading
import time

import pytest

from serving.server import connection as connections
from serving.server.guard import Guard
from serving.server.listening import bind, make_server
from serving.server.metrics import Metrics

PATIENCE = 1.0
GET = b"GET /%s HTTP/1.1\r\nHost: a\r\n"


async def app(scope, receive, send):
    """Answers never, late, without an end, or at once, as its path says."""
    assert scope["type"] == "http"
    if scope["path"] == "/never":
        await asyncio.sleep(60)
    if scope["path"] == "/late":
        await asyncio.sleep(1.5 * PATIENCE)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    part = {"type": "http.response.body", "body": b"x" * 100_000}
    if scope["path"] == "/endless":
        app.streams.append("begun")
        gone = asyncio.ensure_future(_gone(receive))
        while not gone.done():
            await send(part | {"more_body": True})
            await asyncio.sleep(0)
        app.streams.append("gone")
        return
    await send(part)


async def _gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


@contextlib.contextmanager
def running(served):
    """The server, and its port."""
    with bind("127.0.0.1", 0) as bound:
        server = make_server(served, 60, "there")
        server.config.timeout_keep_alive = 60  # what ends a connection is ours
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield server, bound.getsockname()[1]
        server.should_exit = True
        thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def port():
    app.streams = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "PATIENCE_SECONDS", PATIENCE)
        with running(app) as (_, number):
            yield number


def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def read_answer(opened):
    content = b""
    while not content.endswith(b"0\r\n\r\n"):
        piece = opened.recv(1 << 20)
        assert piece, content[:100]
        content += piece
    return content


def drip_until_closed(opened) -> float:
    """Sends a header letter by letter; returns the seconds until nobody listens."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() < began + 20:
            opened.sendall(b"a")
            time.sleep(0.05)
    return time.monotonic() - began


def test_a_connection_on_which_nothing_comes(port):
    with connected(port) as opened:
        began = time.monotonic()
        assert opened.recv(1) == b""
        assert time.monotonic() - began >= 0.9 * PATIENCE


def test_a_head_that_comes_letter_by_letter(port):
    with connected(port) as opened:
        opened.sendall(GET % b"")
        assert 0.9 * PATIENCE <= drip_until_closed(opened) < 20
    with connected(port) as opened:  # behind an answer
        opened.sendall(GET % b"" + b"\r\n")
        read_answer(opened)
        opened.sendall(GET % b"")
        assert 0.9 * PATIENCE <= drip_until_closed(opened) < 20


def test_an_answer_that_comes_late_is_waited_for(port):
    with connected(port) as opened:
        for _ in "ab":
            opened.sendall(GET % b"late" + b"\r\n")
            assert read_answer(opened).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_takes_nothing(port):
    app.streams.clear()
    with connected(port) as opened:
        opened.sendall(GET % b"endless" + b"\r\n")
        began = time.monotonic()
        while app.streams != ["begun", "gone"]:
            opened.sendall(b"a")  # is no sign of taking anything
            assert time.monotonic() < began + 20
            time.sleep(0.05)


def test_a_client_that_takes_slowly(port):
    app.streams.clear()
    with connected(port) as opened:
        opened.sendall(GET % b"endless" + b"\r\n")
        deadline = time.monotonic() + 2 * PATIENCE
        while time.monotonic() < deadline:
            assert opened.recv(1 << 22)
            time.sleep(0.02)
        assert app.streams == ["begun"]


def test_a_second_signal_ends_it_at_once(caplog):
    guarded = Guard(app, Metrics(lambda: (0, 0)), None)
    with running(guarded) as (server, port), connected(port) as opened:
        opened.sendall(GET % b"never" + b"\r\n")
        while not server.server_state.tasks:
            time.sleep(0.01)
        server.handle_exit(signal.SIGTERM, None)
        time.sleep(0.3)
        assert server.server_state.tasks  # is waited for
        began = time.monotonic()
        server.handle_exit(signal.SIGINT, None)
        answer = b"".join(iter(lambda: opened.recv(10_000), b""))
        assert time.monotonic() - began < 10
    assert answer.startswith(b"HTTP/1.1 503 ") and b"the server must run; got its end" in answer
    assert not [record for record in caplog.records if record.exc_info]
