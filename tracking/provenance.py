"""Where a run comes from: the project's files, the state of git, packages and the machine."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracking.process import ROOT

_LEFT_OUT = "benchmarks"
"""A package that no run needs."""


def experiment_info(name: str) -> dict[str, Any]:
    """What Sacred calls the experiment.

    Args:
        name: of the experiment.

    Returns:
        Name, folder, source files with a digest, packages, and the commit.
    """
    from sacred.dependencies import get_digest

    sources = [
        (str(path.relative_to(ROOT)), get_digest(str(path)))
        for path in sorted([*ROOT.glob("*.py"), *_modules(ROOT)])
    ]
    packages = {
        f"{package.metadata['Name']}=={package.version}"
        for package in importlib.metadata.distributions()
        if package.metadata["Name"]
    }
    return {
        "name": name,
        "base_dir": str(ROOT),
        "sources": sources,
        "dependencies": sorted(packages, key=str.lower),
        "repositories": repositories(),
        "mainfile": "main.py",
    }


def _modules(folder: Path) -> Iterator[Path]:
    """Files of the packages below a folder.

    Records and runs may be there, too, and hold Python files; they are no packages.
    """
    for package in folder.iterdir():
        if (package / "__init__.py").exists() and package.name != _LEFT_OUT:
            yield from package.glob("*.py")
            yield from _modules(package)


def repositories() -> list[dict[str, Any]]:
    """The project's commit and whether files differ from it; empty outside a repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        dirty = bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):  # no git, or no repository
        return []
    try:
        url = _git("remote", "get-url", "origin")
    except subprocess.SubprocessError:
        url = str(ROOT)
    return [{"url": url, "commit": commit, "dirty": dirty}]


def _git(*words: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=30, check=True
    )
    return result.stdout.strip()
