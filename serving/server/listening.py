"""The socket and the life of the server."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
from types import FrameType
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    import uvicorn

LOGGER = logging.getLogger(__name__)
_CLOSING_SECONDS = 5  # beyond what a request may take
# They warn of what clients send, which clients are told in their answers: a log that grows by it
# fills disks, and a full pipe would hold up the server.
_TALKERS = ("asyncio", "serving.requests", "uvicorn.error")


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address, which does not listen yet.

    Args:
        host: name or address.
        port: 0 for any that is free.

    Raises:
        ValueError: it cannot be had.
    """
    with contextlib.ExitStack() as closing:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            made = closing.enter_context(socket.socket(family, kind, protocol))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except OSError as error:
            raise ValueError(
                f"--host and --port must be a free address of this machine; got {host}:{port} "
                f"({error.strerror}). Name another one."
            ) from error
        closing.pop_all()
    return made


def url_of(bound: socket.socket) -> str:
    """Where a browser finds the server."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def run(app: Any, bound: socket.socket, seconds: float, greeting: str) -> None:
    """Serves until SIGTERM or Ctrl-C, then finishes what runs; a second signal ends it at once.

    Args:
        app: the application.
        bound: its socket.
        seconds: that a request may take.
        greeting: is logged when requests are answered.
    """
    server = make_server(app, seconds, greeting)
    for name in _TALKERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    server.run(sockets=[bound])


def make_server(app: Any, seconds: float, greeting: str) -> uvicorn.Server:
    """The server of ``run``."""
    import uvicorn

    from serving.server.connection import PatientProtocol

    class Server(uvicorn.Server):
        """One that says when it is there, and whose process ends as any other."""

        async def startup(self, sockets: Optional[list[socket.socket]] = None) -> None:
            """Begins to listen; who reads the greeting may ask."""
            await super().startup(sockets)
            LOGGER.info("%s", greeting)

        def handle_exit(self, sig: int, frame: Optional[FrameType]) -> None:
            """Uvicorn would raise the signal again at its end."""
            if self.should_exit:
                self.force_exit = True
            else:
                LOGGER.info("finishing what runs; a second signal ends it at once")
            self.should_exit = True

    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(seconds) + _CLOSING_SECONDS,
    )
    return Server(config)
