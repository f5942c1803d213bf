"""What a checkpoint of any format is, in our terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Optional

from configs.schema import Config
from data.tokenizers import Tokenizer
from interop.tensors import Source


def nothing() -> None:
    """Does nothing."""


@dataclass(frozen=True)
class Weights:
    """The tensors.

    Attributes:
        source: of our variables: weights, and state of training if there is any.
        step: updates that the weights have seen.
        files: names, sizes and times of what they are read from.
        check: what is compared before converting and takes longer than the rest.
        state_step: updates that the state of training has seen; None for those of the weights.
        check_state: raises ValueError if the config cannot go on with the state.
        left_out: state that has no place here; empty if there is none.
    """

    source: Source
    step: int
    files: Sequence[object]
    check: Callable[[], None] = nothing
    state_step: Optional[int] = None
    check_state: Callable[[], None] = nothing
    left_out: str = ""


@dataclass(frozen=True)
class Model:
    """A model, before its tensors are looked at.

    Attributes:
        kind: what it is called, such as gpt2.
        origin: a sentence for its card, which says where it comes from.
        config: of ours.
        folder: that its tokenizer lies in, if it has one.
        tokenizer: None if it has none.
        open: looks at the tensors, and raises ValueError if they are not those of the config.
    """

    kind: str
    origin: str
    config: Config
    folder: str
    tokenizer: Optional[Tokenizer]
    open: Callable[[], Weights]
