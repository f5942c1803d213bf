"""Which base a run began from, as its folder tells: a run keeps it to its end."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from typing import Any, Optional

from configs.errors import shown
from configs.schema import Config
from utils.files import exists, is_remote, read_bytes, write_atomically
from utils.stored_config import config_path, is_run_config

LOGGER = logging.getLogger(__name__)
BASE_FILE = "base.json"
_KEYS = ("init_from", "fresh_opt", "earlier_updates")


def _base_path(model_path: str) -> str:
    return os.path.join(model_path, BASE_FILE)


def _absolute(path: str) -> str:
    return path if is_remote(path) else os.path.abspath(path)


def _identity(path: str) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def write_base(model_path: str, base: str, files: Sequence[str]) -> None:
    """Keeps in the folder of a run what it begins from.

    Args:
        model_path: folder of the run.
        base: ``init_from``.
        files: paths of what is read of it; sizes and times of local ones tell whether they are
            still the same.

    Raises:
        OSError: it cannot be written.
    """
    known = {_absolute(path): None if is_remote(path) else _identity(path) for path in files}
    content = {"init_from": _absolute(base), "files": known}
    write_atomically(_base_path(model_path), (json.dumps(content, indent=2) + "\n").encode())


def _read_base(model_path: str) -> dict[str, Any]:
    path = _base_path(model_path)
    if not exists(path):
        return {}
    text = read_bytes(path).decode("utf-8", errors="replace")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not isinstance(values.get("files"), dict):
        raise ValueError(
            f"{path} must tell which base the run began from; got "
            f"{shown(text.strip()[:200]) if text.strip() else 'an empty file'}. Restore it from a "
            "copy, or delete it to go on unchecked."
        )
    return values


def with_base_of_run(config: Config, stored: Optional[dict[str, Any]], begun: bool) -> Config:
    """The config with the base of its run, which a resumed run need not name again.

    Args:
        config: a checked config.
        stored: of ``read_stored_config``.
        begun: whether the run has a checkpoint; until then another base may be named.

    Raises:
        ValueError: a begun run had another base, or its base has changed since.
    """
    before = stored if stored is not None and is_run_config(stored) else {}
    kept = {key: before[key] for key in _KEYS if before.get(key) is not None}
    if config.init_from is None:
        if "init_from" in kept:
            LOGGER.info("%s is the base of this run", kept["init_from"])
        return config.model_copy(update=kept)
    if not begun:
        return config
    _check_same_base(config, kept)
    return config.model_copy(update=kept)


def _check_same_base(config: Config, kept: dict[str, Any]) -> None:
    folder, base = config.model_path, str(config.init_from)
    remedy = "Leave --init_from and --fresh_opt out to resume, or use another model_path."
    if "init_from" not in kept:
        raise ValueError(
            f"--init_from must be given when a run begins; got {base} for {folder}, which has a "
            f"checkpoint and began without a base. {remedy}"
        )
    record = _read_base(folder)
    known = record.get("init_from", _absolute(kept["init_from"]))
    if _absolute(base) != known:
        raise ValueError(
            f"--init_from must stay {kept['init_from']}, from which {folder} began; got {base}. "
            f"{remedy}"
        )
    for key in ("fresh_opt", "earlier_updates"):
        got, wanted = getattr(config, key), kept.get(key)
        if got != wanted and (got or key == "fresh_opt"):  # updates are found, not given
            raise ValueError(
                f"{key} must stay {shown(wanted)}, as in {config_path(folder)}; got {shown(got)}. "
                f"{remedy}"
            )
    changed = [
        path
        for path, identity in record.get("files", {}).items()
        if identity is not None and os.path.isfile(path) and _identity(path) != identity
    ]
    if changed:
        raise ValueError(
            f"the base of a run must stay as it was; got another {changed[0]} than the one from "
            f"which {folder} began. {remedy}"
        )
