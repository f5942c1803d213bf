"""How fast records are read, against how fast a model eats them. Prints JSON.

Usage: python benchmarks/input.py [--model configs/tiny.json] [--records 16384] [--steps 40]

Reading is measured as training does it, one batch per session call, without a model, for each way
of reading; eating is the speed that `main.py` logs when it trains the same config on the same
records. Both are the best of several stretches, since other programs may disturb one.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from configs.load import parse_config  # noqa: E402
from data.record_writer import RecordWriter  # noqa: E402
from inputs import open_sources, training_input  # noqa: E402
from utils.flags import ExitingParser, at_least  # noqa: E402

STRETCHES = 5
# Name of a way of reading: (folders of the records, mode or None for chunks).
WAYS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "chunks": (("plain",), None),
    "chunks, gzip": (("gzip",), None),
    "chunks, mix of two": (("plain", "gzip"), None),
    "documents_fixed": (("plain",), "documents_fixed"),
    "documents_random": (("plain",), "documents_random"),
}


def make_records(folder: Path, records: int, values: dict[str, Any]) -> None:
    """Writes random records of one window each, once plain and once compressed.

    Args:
        folder: for the folders ``plain`` and ``gzip``.
        records: number of them, in two files.
        values: n_ctx and n_vocab of the config.
    """
    random = np.random.default_rng(0)
    shape = (records, values["n_ctx"] + 1)
    with RecordWriter(str(folder / "plain"), "train", files_per=-(-records // 2)) as writer:
        writer.write_all(random.integers(0, values["n_vocab"], shape, dtype=np.int32))
    (folder / "gzip").mkdir()
    for path in (folder / "plain").iterdir():
        content = gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)
        (folder / "gzip" / f"{path.name}.gz").write_bytes(content)


def values_for(values: dict[str, Any], folder: Path, way: str) -> dict[str, Any]:
    """The config's values with the records of ``make_records``, read in one of WAYS."""
    folders, mode = WAYS[way]
    datasets = [[f"{folder}/{name}/train_*", "", 1, mode, 1.0] for name in folders]
    kind = "sequential_input" if mode is None else "generic_text"
    last = values["n_vocab"] - 1
    return values | {
        "datasets": datasets,
        "input_fn": kind,
        "eval_steps": 0,
        "eos_id": last,
        "padding_id": last,
        "model_path": str(folder / "run"),
    }


def reading_rate(values: dict[str, Any], records: int) -> float:
    """Records per second of the input pipeline alone, about ``records`` of them."""
    config = parse_config(values)
    sources = open_sources(config, training=True)
    batches = max(records // config.train_batch_size // STRETCHES, 1)
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(config.seed)
        dataset = training_input(config, sources, 0)({})
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        following = iterator.get_next()
        with tf.compat.v1.Session() as session:
            session.run(iterator.initializer)
            session.run(following)
            seconds = []
            for _ in range(STRETCHES):
                start = time.perf_counter()
                for _ in range(batches):
                    session.run(following)
                seconds.append(time.perf_counter() - start)
    return batches * config.train_batch_size / min(seconds)


def training_rate(values: dict[str, Any], folder: Path, steps: int) -> float:
    """Records per second that training takes in, over ``steps`` updates."""
    path = folder / "config.json"
    short = {"train_steps": steps, "log_every_steps": max(steps // STRETCHES, 1)}
    path.write_text(json.dumps(values | short))
    command = [sys.executable, str(ROOT / "main.py"), "--model", str(path)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"main.py must train to the end; got\n{done.stderr}")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    # The first update also prepares the session.
    rates = [json.loads(line)["tokens_per_second"] for line in lines[1:]]
    return float(max(rates)) / values["n_ctx"]


def measure(values: dict[str, Any], records: int, steps: int) -> dict[str, Any]:
    """Measures each way of reading, and training.

    Args:
        values: of a config file; its datasets are replaced.
        records: to read.
        steps: updates of the training run.

    Returns:
        Records per second of each, and how many times faster reading is.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_records(folder, records, values)
        reading = {way: reading_rate(values_for(values, folder, way), records) for way in WAYS}
        training = training_rate(values_for(values, folder, "chunks"), folder, steps)
    return {
        "n_ctx": values["n_ctx"],
        "train_batch_size": values["train_batch_size"],
        "training_records_per_second": round(training, 1),
        "training_steps_per_second": round(training / values["train_batch_size"], 2),
        "reading_records_per_second": {way: round(rate) for way, rate in reading.items()},
        "reading_over_training": {way: round(rate / training, 1) for way, rate in reading.items()},
    }


def main(words: list[str]) -> None:
    """Measures and prints."""
    parser = ExitingParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(ROOT / "configs" / "tiny.json"), help="config file")
    parser.add_argument("--records", type=at_least(1), default=16384, help="records to read")
    parser.add_argument("--steps", type=at_least(1), default=40, help="updates to train")
    arguments = parser.parse_args(words)
    values = json.loads(Path(arguments.model).read_text())
    print(json.dumps(measure(values, arguments.records, arguments.steps), indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
