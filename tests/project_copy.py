"""The project's files in a folder where commands of the docs may leave theirs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def copy_project(root: Path, target: Path) -> Path:
    """Copies what belongs to the project, with the environment of this process as `.venv`."""
    target.mkdir()
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)
    (target / ".venv").symlink_to(Path(sys.prefix))
    return target
