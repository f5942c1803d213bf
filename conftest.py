"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# 3, since builds with CUDA report harmless errors on every import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_ROOT = Path(__file__).resolve().parent
# Numbers of independent implementations: in the checkout, or beside it.
_FIXTURE_FOLDERS = (_ROOT / "tests" / "fixtures", _ROOT.parent / "shared" / "fixtures")


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The root of the checkout."""
    return _ROOT


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """Folder of the numeric fixtures; a test that needs them fails without them."""
    for folder in _FIXTURE_FOLDERS:
        if (folder / "A1_local_global").is_dir():
            return folder
    places = " or ".join(str(folder) for folder in _FIXTURE_FOLDERS)
    pytest.fail(f"The numeric fixtures must be in {places}; got neither. Put them there.")
