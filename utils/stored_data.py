"""Which records a run has read, as far as can be told of them without reading them again."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any, Optional

from configs.errors import shown
from utils.files import exists, read_bytes, write_atomically

LOGGER = logging.getLogger(__name__)
DATA_FILE = "data.json"

Fingerprints = Mapping[str, Mapping[str, Optional[str]]]
"""Of data/fingerprint.py: per dataset, hashes by what they are of."""


def data_path(model_path: str) -> str:
    """Where the fingerprints of a run's data are kept."""
    return os.path.join(model_path, DATA_FILE)


def write_stored_data(model_path: str, fingerprints: Fingerprints) -> None:
    """Keeps the fingerprints in the folder of a run.

    Raises:
        OSError: it cannot be written.
    """
    content = json.dumps(fingerprints, indent=2) + "\n"
    write_atomically(data_path(model_path), content.encode())


def warn_of_other_data(model_path: str, fingerprints: Fingerprints) -> None:
    """Warns if a run is about to go on with other records than it has read.

    Datasets that are new or gone are changes of the config, and told by
    ``utils.stored_config.check_resumed_config``. Runs of earlier versions have kept nothing.

    Args:
        model_path: folder of the run.
        fingerprints: of the records that are there now.

    Raises:
        ValueError: what was kept is damaged.
    """
    stored = _read(data_path(model_path))
    for dataset_id, now in fingerprints.items():
        before = stored.get(dataset_id, {})
        changed = [
            part
            for part, value in now.items()
            if None not in (value, before.get(part)) and value != before[part]
        ]
        if changed:
            LOGGER.warning(
                "the records of %s are not those that the run has read (other %s): from here on "
                "the run reads other sequences than it would have read",
                dataset_id,
                ", ".join(changed),
            )


def _read(path: str) -> dict[str, dict[str, Any]]:
    if not exists(path):
        return {}
    text = read_bytes(path).decode("utf-8", errors="replace")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not all(isinstance(part, dict) for part in values.values()):
        raise ValueError(
            f"{path} must hold the fingerprints of the run's datasets; got "
            f"{shown(text.strip()[:200]) if text.strip() else 'an empty file'}. Restore it from a "
            "copy, or delete it to go on unchecked."
        )
    return values
