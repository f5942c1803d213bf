"""How fast text becomes records, against the tokenizer alone and against GPT-Neo's way.

Usage: python benchmarks/data.py [--megabytes 40] [--rounds 5] [--processes 2] [--json]
       [--peer transformers] [--peer torch-compiled] [--peer_python FILE]

Three programs take the same text on the same cores:

* ``encode_batch``: the `tokenizers` library alone, from texts in memory to ids, with its threads;
* ``create_tfrecords``: data/create_tfrecords.py, from files to record files;
* ``one_at_a_time``: as GPT-Neo does it, a process for each input file, one call of the tokenizer
  for each document, and a message of TensorFlow for each record.

Each --peer is one more: the same files to packed chunks on disk in PyTorch's way, with as many
workers (benchmarks/peers/data.py).

The text is Python's standard library and the packages installed beside it. Each program runs in a
process of its own, in turn, for some rounds. Its time is without imports, but with all else; for
`create_tfrecords` that of the whole process is told too. Memory is that of its largest process,
imports included. Ratios are taken within a round, and the
medians are given, since other programs may disturb one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [str(ROOT), *(entry for entry in sys.path if Path(entry or ".").resolve() != ROOT)]
# Python put this folder first, where data.py would hide the package of that name.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT / "benchmarks"]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.report import GIGABYTE, add_peer_flags, missing  # noqa: E402
from data.tokenizers import load_tokenizer  # noqa: E402
from utils.flags import ExitingParser, at_least  # noqa: E402

CHUNK_SIZE = 2048
SEPARATOR = 50256
FILES = 8  # of the corpus
SUFFIXES = (".py", ".md", ".rst")
_BATCH_TEXTS = 512


def write_corpus(folder: Path, size: int) -> None:
    """Writes texts of this Python as files of JSON lines.

    Args:
        folder: for the files, made if missing.
        size: bytes of text, about.
    """
    folder.mkdir(parents=True, exist_ok=True)
    roots = {sysconfig.get_paths()[name] for name in ("stdlib", "purelib")}
    paths = {p for root in roots for p in Path(root).rglob("*") if p.suffix in SUFFIXES}
    order = sorted(paths)
    random.Random(0).shuffle(order)
    files = [(folder / f"{number}.jsonl").open("w") for number in range(FILES)]
    written = number = 0
    for path in order:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            files[number % FILES].write(json.dumps({"text": text}) + "\n")
            written += len(text.encode())
            number += 1
        if written >= size:
            break
    for file in files:
        file.close()


def _texts_of(path: Path) -> Iterator[str]:
    with path.open() as file:
        for line in file:
            yield json.loads(line)["text"]


def encode_batch(corpus: Path, output: Path, processes: int) -> dict[str, float]:
    """Encodes the corpus with the library's threads; writes nothing."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.environ["RAYON_NUM_THREADS"] = str(processes)
    texts = [text for path in sorted(corpus.iterdir()) for text in _texts_of(path)]
    backend = load_tokenizer().backend
    tokens, start = 0, time.perf_counter()
    for first in range(0, len(texts), _BATCH_TEXTS):
        batch = texts[first : first + _BATCH_TEXTS]
        tokens += sum(map(len, backend.encode_batch(batch, add_special_tokens=False)))
    return {"seconds": time.perf_counter() - start, "tokens": tokens}


def create_tfrecords(corpus: Path, output: Path, processes: int) -> dict[str, float]:
    """Makes records as a user does."""
    import tensorflow as tf  # noqa: F401

    from data.create_tfrecords import create_records
    from data.manifest import manifest_path, read_manifest
    from data.record_flags import parse_arguments

    arguments = ["--input_dir", str(corpus), "--output_dir", str(output), "--name", "ours"]
    arguments += ["--mode", "chunks", "--chunk_size", str(CHUNK_SIZE), "--use_gpt2_tokenizer"]
    options = parse_arguments([*arguments, "--processes", str(processes)])
    start = time.perf_counter()
    create_records(options)
    seconds = time.perf_counter() - start
    counts = read_manifest(manifest_path(str(output), "ours")).counts
    return {"seconds": seconds, "tokens": counts.tokens_read - counts.documents_read}


def one_at_a_time(corpus: Path, output: Path, processes: int) -> dict[str, float]:
    """Makes records as GPT-Neo does: a pool over the files, documents one by one."""
    output.mkdir(parents=True, exist_ok=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    context = multiprocessing.get_context("spawn")
    jobs = [(path, output / f"neo_{path.stem}.tfrecords") for path in sorted(corpus.iterdir())]
    with context.Pool(processes) as pool:
        pool.map(_import_tensorflow, range(processes), chunksize=1)
        start = time.perf_counter()
        tokens = sum(pool.imap_unordered(_one_file, jobs))
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "tokens": tokens}


def _import_tensorflow(_: int) -> None:
    import tensorflow as tf  # noqa: F401

    time.sleep(0.5)  # so that the others get one each


def _one_file(job: tuple[Path, Path]) -> int:
    import tensorflow as tf

    source, target = job
    backend = load_tokenizer().backend
    tokens, pending = 0, []
    with tf.io.TFRecordWriter(str(target)) as writer:
        for text in _texts_of(source):
            ids = backend.encode(text).ids
            tokens += len(ids)
            pending += [*ids, SEPARATOR]
            while len(pending) > CHUNK_SIZE:
                values = tf.train.Int64List(value=pending[: CHUNK_SIZE + 1])
                feature = {"text": tf.train.Feature(int64_list=values)}
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
                pending = pending[CHUNK_SIZE + 1 :]
    return tokens


PROGRAMS: dict[str, Callable[[Path, Path, int], dict[str, float]]] = {
    "encode_batch": encode_batch,
    "create_tfrecords": create_tfrecords,
    "one_at_a_time": one_at_a_time,
}


def run_apart(program: str, corpus: Path, output: Path, processes: int) -> dict[str, float]:
    """Runs a program in a process of its own.

    Args:
        program: one of PROGRAMS.
        corpus: folder of the text.
        output: folder for its records.
        processes: cores that it may use.

    Returns:
        Its seconds and tokens, and the seconds of the whole process.
    """
    words = [program, str(corpus), str(output), str(processes)]
    return _timed([sys.executable, __file__, "--program", *words])


def _timed(command: Sequence[str]) -> dict[str, float]:
    """The JSON that a command prints, and the seconds of its process."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        *_, last = ["no message", *done.stderr.strip().splitlines()]
        raise RuntimeError(f"{command[-1]} must run; got: {last}")
    whole = time.perf_counter() - start
    return json.loads(done.stdout.splitlines()[-1]) | {"process_seconds": whole}


def run_peer(
    peer: str, python: str, corpus: Path, output: Path, processes: int
) -> dict[str, float]:
    """As ``run_apart``, with the interpreter that has the peer's packages."""
    output.mkdir(parents=True)
    tokenizer = output / "tokenizer.json"
    load_tokenizer().backend.save(str(tokenizer))
    task = {
        "peer": peer,
        "tokenizer": str(tokenizer),
        "files": [str(path) for path in sorted(corpus.iterdir())],
        "output": str(output / "chunks.bin"),
        "chunk_size": CHUNK_SIZE,
        "separator": SEPARATOR,
        "processes": processes,
    }
    return _timed([python, "-m", "benchmarks.peers.data", json.dumps(task)])


def _peak_memory() -> int:
    """Bytes of the largest process: this one or one that it started."""
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    return max(resource.getrusage(user).ru_maxrss for user in users) * unit


def measure(
    size: int,
    rounds: int,
    processes: int,
    run: Callable[[str, Path, Path, int], dict[str, float]] = run_apart,
    peers: Sequence[str] = (),
    python: str = sys.executable,
) -> dict[str, Any]:
    """Runs all programs in turn.

    Args:
        size: bytes of text, about.
        rounds: how often.
        processes: cores to use.
        run: runs one program.
        peers: that take turns with them.
        python: interpreter that has their packages.

    Returns:
        The results.
    """
    results: dict[str, list[dict[str, float]]] = {name: [] for name in (*PROGRAMS, *peers)}
    with tempfile.TemporaryDirectory() as name:
        corpus = Path(name) / "corpus"
        write_corpus(corpus, size)
        for number in range(rounds):
            for program in PROGRAMS:
                output = Path(name) / f"{program}_{number}"
                results[program].append(run(program, corpus, output, processes))
            for peer in peers:
                output = Path(name) / f"{peer}_{number}"
                results[peer].append(run_peer(peer, python, corpus, output, processes))
        size = sum(len(text.encode()) for path in corpus.iterdir() for text in _texts_of(path))
    tokens = {result["tokens"] for found in results.values() for result in found}
    if len(tokens) != 1:
        raise RuntimeError(f"all programs must find the same tokens; got {tokens}")
    ours = results["create_tfrecords"]

    def ratio(program: str, key: str = "seconds") -> float:
        pairs = zip(results[program], ours)
        return round(statistics.median(a["seconds"] / b[key] for a, b in pairs), 2)

    return {
        "megabytes": round(size / 1e6, 2),
        "tokens": int(tokens.pop()),
        "processes": processes,
        "rounds": rounds,
        "tokens_per_second": {
            program: round(statistics.median(r["tokens"] / r["seconds"] for r in found))
            for program, found in results.items()
        },
        "create_tfrecords_over": {
            "encode_batch": ratio("encode_batch"),
            "one_at_a_time": ratio("one_at_a_time"),
            "encode_batch, with the start of the process": ratio("encode_batch", "process_seconds"),
            **{peer: ratio(peer) for peer in peers},
        },
        "peak_memory_bytes": {
            program: max(r["peak_memory_bytes"] for r in found)
            for program, found in results.items()
        },
        "rounds_in_seconds": {
            program: [round(r["seconds"], 2) for r in found] for program, found in results.items()
        },
    }


def main(words: Sequence[str]) -> None:
    """Measures and prints; a wrong flag ends the process with one line."""
    parser = ExitingParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=40, help="size of the text")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="runs of each program")
    cores = os.cpu_count() or 1
    parser.add_argument("--processes", type=at_least(1), default=cores, help="cores to use")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_peer_flags(parser)
    parser.add_argument("--program", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.program:
        program, corpus, output, processes = arguments.program
        result = PROGRAMS[program](Path(corpus), Path(output), int(processes))
        print(json.dumps(result | {"peak_memory_bytes": _peak_memory()}))
        return
    packages = ("torch", *(peer for peer in arguments.peer if peer == "transformers"))
    if problem := missing(arguments, (*packages, "tokenizers")):
        parser.error(problem)
    size = int(arguments.megabytes * 1e6)
    results = measure(
        size,
        arguments.rounds,
        arguments.processes,
        peers=arguments.peer,
        python=arguments.peer_python,
    )
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    print(
        f"{results['megabytes']} MB, {results['tokens']:,} tokens, on {arguments.processes} cores"
    )
    for program, rate in results["tokens_per_second"].items():
        memory = results["peak_memory_bytes"][program] / GIGABYTE
        print(f"{program:18} {rate:>12,} tokens/s {memory:>8.2f} GB")
    for other, times in results["create_tfrecords_over"].items():
        print(f"create_tfrecords is {times} times as fast as {other}")


if __name__ == "__main__":
    main(sys.argv[1:])
