"""Memory over time of a list of steps: which buffers exist at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory that one step allocates.

    Attributes:
        size_bytes: bytes.
        label: what it holds, for reports.
    """

    size_bytes: int
    label: str


@dataclass(frozen=True)
class Step:
    """One operation.

    Attributes:
        reads: buffers that it reads.
        writes: buffers that it allocates.
        in_place: it is elementwise: its result may take over a buffer that it reads last.
    """

    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    in_place: bool = False


@dataclass(frozen=True)
class Lifetime:
    """The steps during which a buffer exists.

    Attributes:
        buffer: the buffer.
        first: number of the step that allocates it.
        last: number of the last step that finds it allocated.
    """

    buffer: Buffer
    first: int
    last: int

    def covers(self, number: int) -> bool:
        """Whether the buffer exists during step ``number``."""
        return self.first <= number <= self.last


def lifetimes(steps: Sequence[Step]) -> list[Lifetime]:
    """From the step that makes a buffer to the last that reads it, in the order of ``steps``.

    A step holds what it reads and what it writes at the same time, except that an elementwise
    step writes over an equally large buffer that nothing reads after it.

    Args:
        steps: in the order of execution.
    """
    last: dict[Buffer, int] = {}
    for number, step in enumerate(steps):
        for buffer in (*step.writes, *step.reads):
            last[buffer] = number
    taken_over: set[Buffer] = set()
    for number, step in enumerate(steps):
        if not step.in_place:
            continue
        free = [b for b in dict.fromkeys(step.reads) if last[b] == number]
        for buffer in step.writes:
            match = next((b for b in free if b.size_bytes == buffer.size_bytes), None)
            if match is not None:
                free.remove(match)
                taken_over.add(match)
    return [
        Lifetime(buffer, number, last[buffer] - (buffer in taken_over))
        for number, step in enumerate(steps)
        for buffer in step.writes
    ]


def occupancy(intervals: Sequence[Lifetime], steps: int) -> list[int]:
    """Bytes that exist during each of ``steps`` steps."""
    changes = [0] * (steps + 1)
    for interval in intervals:
        changes[interval.first] += interval.buffer.size_bytes
        changes[interval.last + 1] -= interval.buffer.size_bytes
    return list(accumulate(changes[:-1]))
