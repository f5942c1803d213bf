"""Rows of options become parameters of the tests; each is trained once for all of them."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.options.rows")

from tests.options.rows import Combination, name_of  # noqa: E402 - after the line above


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The rows of the test's class."""
    if "combination" in metafunc.fixturenames:
        rows = metafunc.cls.rows
        metafunc.parametrize(
            "combination", rows, indirect=True, ids=map(name_of, rows), scope="class"
        )


@pytest.fixture(scope="class")
def combination(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    return Combination(request.param, tmp_path_factory.mktemp("options"))
