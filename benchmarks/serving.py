#!/usr/bin/env python3
"""Speed, latency and memory of serve.py under load: `python benchmarks/serving.py`."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    sys.path[0] = str(ROOT)

import numpy as np  # noqa: E402

from benchmarks.load import Load, put  # noqa: E402
from benchmarks.ours_generation import random_checkpoint  # noqa: E402
from benchmarks.shapes import SERVING  # noqa: E402
from utils.flags import ExitingParser, at_least  # noqa: E402

PERCENTILES = (50, 95, 99)
MEGABYTE = 1e6
_LOOK_SECONDS = 0.5
_MEMORY = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)


@contextlib.contextmanager
def served(values: dict[str, Any], flags: Sequence[str]) -> Iterator[int]:
    """serve.py over initial weights, as a process of its own; gives its port."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "config.json"
        config.write_text(json.dumps(values | {"model_path": str(folder / "run")}))
        (folder / "run").mkdir()
        # In a process of its own, since TensorFlow would stay in the clients'.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(random_checkpoint, (values, str(folder / "run" / "model.ckpt")))
        command = [sys.executable, str(ROOT / "serve.py"), "--model", str(config), "--port", "0"]
        with subprocess.Popen(
            [*command, *flags],
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        ) as process:
            try:
                yield _port(process)
            finally:
                process.terminate()


def _port(process: subprocess.Popen[str]) -> int:
    """Waits until the server is there; what it says afterwards is dropped."""
    assert process.stdout is not None
    last = "nothing"
    for line in process.stdout:
        found = re.search(r" at http://127\.0\.0\.1:(\d+)$", line.rstrip())
        if found:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return int(found[1])
        last = line.rstrip()
    raise RuntimeError(f"serve.py must start; got: {last}")


def memory(port: int) -> float:
    """Resident bytes of the server's process, as it says itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        found = _MEMORY.search(answer.read().decode())
    assert found is not None
    return float(found[1])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Puts the load on a server.

    Returns:
        JSON values: what was asked, counts, rates, percentiles in seconds, and the memory in each
        quarter of the time.
    """
    shape = SERVING[arguments.shape]
    if arguments.prompt + arguments.new > shape.context:
        raise ValueError(
            f"--prompt and --new must be at most {shape.context} together; got "
            f"{arguments.prompt + arguments.new}. Lower one of them."
        )
    sizes = ("clients", "seconds", "prompt", "new")
    asked = {name: getattr(arguments, name) for name in sizes}
    flags = ["--texts", str(arguments.texts), "--most_waiting", str(arguments.most_waiting)]
    seen: list[float] = []
    with served(shape.config(arguments.precision), flags) as port:

        def watch() -> None:
            time.sleep(_LOOK_SECONDS)
            seen.append(memory(port))

        met = put(Load(port=port, vocabulary=shape.vocabulary, **asked), watch)
    if met.failures or not met.answers:
        raise RuntimeError(
            f"all requests must be answered; got {len(met.answers)} answers and "
            f"{len(met.failures)} failures: {(met.failures or ['none'])[0]}"
        )
    first = [one.first_seconds for one in met.answers]
    whole = [one.seconds for one in met.answers]
    tokens = {
        name: sum(getattr(one, name) for one in met.answers)
        for name in ("prompt_tokens", "new_tokens")
    }
    setting = {"shape": shape.to_json(), "precision": arguments.precision}
    setting |= {"texts": arguments.texts, "most_waiting": arguments.most_waiting} | asked
    return setting | {
        "answers": len(met.answers),
        "refused": met.refused,
        "seconds_to_the_last_answer": met.seconds,
        "requests_per_second": len(met.answers) / met.seconds,
        **{f"{name}_per_second": count / met.seconds for name, count in tokens.items()},
        "latency": percentiles(whole),
        "first_token": percentiles(first),
        "memory_bytes": [float(quarter.max()) for quarter in np.array_split(seen, 4)],
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """By name, such as p50."""
    return {f"p{one}": float(np.percentile(seconds, one)) for one in PERCENTILES}


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [
        f"{result['precision']}, {result['shape']}",
        f"{result['clients']} clients for {result['seconds']} s, {result['texts']} texts at once, "
        f"prompts of 1 to {result['prompt']} tokens, 1 to {result['new']} new ones",
        f"{result['answers']} answers, {result['refused']} requests refused and made again",
        f"{result['requests_per_second']:.2f} requests/s, "
        f"{result['new_tokens_per_second']:.1f} new tokens/s, "
        f"{result['prompt_tokens_per_second']:.1f} tokens/s of prompts",
    ]
    for key, name in (("latency", "whole answer"), ("first_token", "first token")):
        parts = [f"{percentile} {value:.3f} s" for percentile, value in result[key].items()]
        lines.append(f"{name}: {', '.join(parts)}")
    quarters = ", ".join(f"{one / MEGABYTE:,.0f}" for one in result["memory_bytes"])
    lines.append(f"memory in the quarters of the time, at most: {quarters} MB")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark.

    Returns:
        Exit code: 0, 1 if a request failed, 2 for wrong flags.
    """
    parser = ExitingParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--shape", choices=sorted(SERVING), default="125M", help="what is run")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    for name, default, text in (
        ("texts", 8, "texts that the server writes at once"),
        ("most_waiting", 64, "texts that may wait for their turn"),
        ("clients", 16, "that ask at once"),
        ("seconds", 60, "in which requests begin"),
        ("prompt", 256, "most tokens of a prompt"),
        ("new", 64, "most tokens to write"),
    ):
        said = f"{text} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=at_least(1), default=default, metavar="N", help=said)
    parser.add_argument("--json", action="store_true", help="print JSON (default: a table)")
    arguments = parser.parse_args(argv)
    try:
        result = measure(arguments)
    except ValueError as error:
        parser.error(str(error))
    except RuntimeError as error:
        parser.exit(1, f"{parser.prog}: error: {error}\n")
    print(json.dumps(result) if arguments.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
