"""Keys that the schema knows and the code does not act on yet.

One table: a feature that gets built loses its line here, and nothing else changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from configs.errors import problem
from configs.schema import Config


@dataclass(frozen=True)
class UnbuiltFeature:
    """A key whose active values are refused.

    Attributes:
        key: The key of the config.
        is_active: Whether the key's value asks for the feature.
        off_value: The value that does without it, as written in JSON.
    """

    key: str
    is_active: Callable[[Any], bool]
    off_value: str


UNBUILT_FEATURES: tuple[UnbuiltFeature, ...] = (UnbuiltFeature("eval_tasks", bool, "[]"),)


def unbuilt_problems(config: Config, skip: frozenset[str] = frozenset()) -> list[str]:
    """Returns one problem line for each active feature that is not built yet.

    Args:
        config: The config.
        skip: Keys whose values are known to be wrong and are not judged.
    """
    lines = []
    for feature in UNBUILT_FEATURES:
        value = getattr(config, feature.key)
        if feature.key not in skip and feature.is_active(value):
            remedy = f"remove it or set it to {feature.off_value}"
            lines.append(problem(feature.key, "is not built yet", value, remedy))
    return lines
