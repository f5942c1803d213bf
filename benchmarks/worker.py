"""A contender in a process of its own, which waits to be told when to run.

Contenders take turns on one machine, each with its own memory and threads, so that what else the
machine does meets all of them alike.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any, Callable

Run = Callable[[], Any]
"""Does the work once; what it returns is reported as ``value``."""


def serve(build: Callable[[dict[str, Any]], dict[str, Run]]) -> None:
    """Builds the contender that the first argument describes in JSON, and runs what is asked for.

    Standard input holds one name of ``build``'s result per line; each is answered by one line of
    JSON on standard output: seconds, those of all its threads together (``cpu_seconds``), the
    value, and the process's largest memory in bytes.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print
    runs: dict[str, Run] = {}

    def prepare() -> list[str]:
        runs.update(build(json.loads(sys.argv[1])))
        return sorted(runs)

    _answer(answers, prepare)
    for line in sys.stdin:
        _answer(answers, runs[line.strip()])


def peak_memory_bytes() -> int:
    """The largest resident memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _answer(answers: Any, run: Run) -> None:
    began, cpu_began = time.perf_counter(), time.process_time()
    value = run()
    times = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu_began,
    }
    answer = times | {"value": value, "peak_memory_bytes": peak_memory_bytes()}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
