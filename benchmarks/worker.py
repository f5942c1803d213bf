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
    JSON on standard output: seconds, the value, and the process's largest memory in bytes.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print
    began = time.perf_counter()
    runs = build(json.loads(sys.argv[1]))
    _answer(answers, seconds=time.perf_counter() - began, value=sorted(runs))
    for line in sys.stdin:
        began = time.perf_counter()
        value = runs[line.strip()]()
        _answer(answers, seconds=time.perf_counter() - began, value=value)


def _answer(answers: Any, **values: Any) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    memory = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    answers.write(json.dumps(values | {"peak_memory_bytes": memory}) + "\n")
    answers.flush()
