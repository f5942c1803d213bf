"""Runs of main.py that tests share.

Every process costs seconds of start-up, so runs that several tests look at are made once per
session and are never changed afterwards; a test that trains on copies them first.
"""

from __future__ import annotations

import os

import pytest

from tests.end_to_end.workshop import (
    STEPS_PER_CHECKPOINT,
    Program,
    Result,
    Workshop,
    make_workshop,
    once,
)


@pytest.fixture(scope="session")
def workshop(tmp_path_factory) -> Workshop:
    """Shared by all workers of a parallel test run."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / "end_to_end"
    folder.mkdir(exist_ok=True)
    made = Workshop(folder)
    once(made, "workshop", lambda: make_workshop(folder))
    return made


@pytest.fixture(scope="session")
def trained(workshop) -> Result:
    """A run from the first to the last step, without a break: config and run ``trained``."""

    def make() -> Result:
        config = workshop.config("trained")
        return workshop.run("--model", config, "--steps_per_checkpoint", STEPS_PER_CHECKPOINT)

    result = Result(*once(workshop, "trained", make))
    assert result.code == 0, result.err
    return result


@pytest.fixture
def program(workshop, monkeypatch, capfd) -> Program:
    """Calls main.py in the workshop."""
    monkeypatch.chdir(workshop.folder)
    return Program(capfd)
