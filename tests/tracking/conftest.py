"""The server that tests of tracking share."""

from collections.abc import Iterator

import pytest

from tests.tracking.services import DATABASE, MongoServer, mongo_server


@pytest.fixture(scope="session")
def running_server(tmp_path_factory) -> Iterator[MongoServer]:
    with mongo_server(tmp_path_factory.mktemp("mongo") / "data") as server:
        yield server


@pytest.fixture
def server(running_server) -> MongoServer:
    """An empty database."""
    with running_server.root() as client:
        for name in client[DATABASE].list_collection_names():
            client[DATABASE].drop_collection(name)
    return running_server
