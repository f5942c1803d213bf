"""One model and one server for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.server.running import NAME, STEP, Server, make_model


@pytest.fixture(scope="session")
def model_config(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(model_config) -> Iterator[Server]:
    """As it is without flags; a test leaves nothing behind that is being written."""
    running = Server(model_config)
    yield running
    said = running.stop()
    assert running.process.returncode == 0, said
    # Whatever clients sent, the log did not grow by it.
    first, *rest = [line.split(" ", 1)[1] for line in said.splitlines()]
    assert first == f"serving {NAME}, step {STEP}, at {running.url}"
    assert rest == [
        "finishing what runs; a second signal ends it at once",
        "everything is finished",
    ]
