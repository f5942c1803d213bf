"""Contenders that take turns, and what came of it: medians, ratios, memory, shares of the limit."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class Contender:
    """A worker process.

    Args:
        name: in the results.
        module: that calls ``worker.serve``.
        task: what it is told to build.
        python: interpreter that has the contender's packages.
    """

    def __init__(self, name: str, module: str, task: dict[str, Any], python: str = sys.executable):
        self.name = name
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [python, "-m", module, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.built = self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        assert self._process.stderr is not None
        *_, last = ["no message", *self._process.stderr.read().strip().splitlines()]
        raise RuntimeError(f"{self.name} must run; got: {last}")

    def run(self, what: str) -> dict[str, Any]:
        """Runs once: seconds, value, peak_memory_bytes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._read()

    def __enter__(self) -> Contender:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def ours_and_peers(
    work: str, config: dict[str, Any], task: dict[str, Any], peers: Sequence[str], python: str
) -> Iterator[list[Contender]]:
    """This project, then its peers, each in its process.

    Args:
        work: ``training`` or ``generation``.
        config: the model as this project has it.
        task: what is to be done, with the model's shape.
        peers: their names.
        python: their interpreter.
    """
    with contextlib.ExitStack() as stack:
        ours = Contender("ours", f"benchmarks.ours_{work}", task | {"config": config})
        contenders = [stack.enter_context(ours)]
        for peer in peers:
            theirs = Contender(peer, f"benchmarks.peers.{work}", task | {"model": peer}, python)
            contenders.append(stack.enter_context(theirs))
        yield contenders


def alternate(contenders: Sequence[Contender], what: str, rounds: int) -> dict[str, list[Any]]:
    """Lets each contender run in turn, ``rounds`` times, after one round that does not count.

    Returns:
        Answers by the contender's name.
    """
    answers: dict[str, list[Any]] = {contender.name: [] for contender in contenders}
    for contender in contenders:
        contender.run(what)
    for _ in range(rounds):
        for contender in contenders:
            answers[contender.name].append(contender.run(what))
    return answers


def summary(answers: list[Any], work: float) -> dict[str, Any]:
    """Median, extremes, rate and memory of one contender.

    Args:
        answers: of ``Contender.run``.
        work: what one run does, for the rate per second.
    """
    seconds = [answer["seconds"] for answer in answers]
    return {
        "seconds_median": statistics.median(seconds),
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "per_second": work / statistics.median(seconds),
        "peak_memory_bytes": max(answer["peak_memory_bytes"] for answer in answers),
    }


def ratios(ours: list[Any], theirs: list[Any]) -> dict[str, float]:
    """How much faster than a peer, round by round, so that a slow minute meets both."""
    each = [b["seconds"] / a["seconds"] for a, b in zip(ours, theirs)]
    return {"median": statistics.median(each), "min": min(each), "max": max(each)}
