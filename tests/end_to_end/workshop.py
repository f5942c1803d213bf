"""A tiny data set, model and tokenizer in a folder, and ways to run main.py there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import main
from data.record_writer import RecordWriter

ROOT = Path(main.__file__).resolve().parent
N_CTX, BATCH = 11, 4
STEPS, STEPS_PER_CHECKPOINT, LOG_EVERY = 300, 50, 5

# Byte-level: Ġ is the space, Ċ the newline; é is two tokens, neither of them a character.
_TOKENS = [*"abcdefghijklmnopqrstuvwxyz.,", "Ġ", "Ċ", "Ã", "©", *"ABCDEFGHIJKLMNOPQRST"]
_MERGES = [("t", "h"), ("i", "n"), ("a", "n"), ("e", "r"), ("Ġ", "th"), ("in", "g"), ("Ġ", "a")]
_WORDS = "the night train was standing at a little café and an old man ran after her hat"


class Result(NamedTuple):
    """How a command ended.

    Attributes:
        code: exit code; negative for a signal.
        out: standard output.
        err: standard error.
    """

    code: int
    out: str
    err: str


class Workshop:
    """The folder in which commands run: records, tokenizer, configs, runs and logs."""

    def __init__(self, folder: Path):
        self.folder = folder

    def config(self, name: str, **keys: Any) -> str:
        """Writes ``<name>.json``, a config whose run is in ``runs/<name>``; returns its path.

        ``keys`` replace those of the tiny config; those that are None are left out. All workers
        share the folder, so a name belongs to the test file that used it first.
        """
        file = os.environ["PYTEST_CURRENT_TEST"].split("::")[0]
        owner = once(self, f"owner_of_{name}", lambda: file)
        assert owner == file, f"{name}.json is of {owner}: {file} must choose another name"
        values = json.loads((self.folder / "base.json").read_text())
        values |= {"model_path": f"runs/{name}"} | keys
        values = {key: value for key, value in values.items() if value is not None}
        path = self.folder / f"{name}.json"
        # At once: another worker may be reading the same config.
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(values))
        temporary.replace(path)
        return str(path)

    def run_folder(self, name: str) -> Path:
        """Where the run of config ``name`` is."""
        return self.folder / "runs" / name

    def copy_run(self, source: str, name: str, step: int | None = None, **keys: Any) -> str:
        """Copies a run under another name, as it was at ``step``; returns its config's path."""
        target = self.run_folder(name)
        shutil.copytree(self.run_folder(source), target)
        if step is not None:
            for file in target.glob("model.ckpt-*"):
                if not file.name.startswith(f"model.ckpt-{step}."):
                    file.unlink()
            (target / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
        return self.config(name, **keys)

    def start(
        self, *words: Any, elsewhere: bool = False, stderr: Any = subprocess.PIPE, **variables: str
    ) -> subprocess.Popen[str]:
        """Starts ``python main.py`` in the folder, without a terminal.

        Args:
            words: of the command line.
            elsewhere: start it in an empty folder, where no record is found.
            stderr: where it goes.
            variables: added to those of the environment.
        """
        folder = self.folder / "elsewhere" if elsewhere else self.folder
        folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            [sys.executable, str(ROOT / "main.py"), *map(str, words)],
            cwd=folder,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def run(self, *words: Any) -> Result:
        """Runs ``python main.py`` to its end."""
        return finish(self.start(*words))

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; every one must be whole."""
        text = (self.run_folder(name) / "metrics.jsonl").read_text()
        assert text.endswith("\n")
        return [json.loads(line) for line in text.splitlines()]

    def checkpoints(self, name: str) -> list[int]:
        """Steps of the checkpoints that are on disk."""
        files = self.run_folder(name).glob("model.ckpt-*.index")
        return sorted(int(file.stem.rsplit("-", 1)[1]) for file in files)

    def variables(self, name: str, step: int | None = None) -> dict[str, np.ndarray]:
        """All variables of a checkpoint, the newest by default."""
        folder = str(self.run_folder(name))
        path = tf.train.latest_checkpoint(folder) if step is None else f"{folder}/model.ckpt-{step}"
        reader = tf.train.load_checkpoint(path)
        return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


def finish(process: subprocess.Popen[str], timeout: float = 300.0) -> Result:
    """Waits for the end of a command."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"main.py did not end within {timeout} s; it said\n{err}")
    return Result(process.returncode, out, err)


def make_tokenizer(path: Path) -> Tokenizer:
    tokens = list(dict.fromkeys(_TOKENS + [left + right for left, right in _MERGES]))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, _MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))
    return tokenizer


def _make_records(folder: Path, tokenizer: Tokenizer) -> None:
    """23 records for training in files of 9, 10 held out."""
    random = np.random.default_rng(3)
    eos = tokenizer.token_to_id("<|endoftext|>")
    stream: list[int] = []
    while len(stream) < 33 * (N_CTX + 1):
        text = " ".join(random.choice(_WORDS.split(), 5)).capitalize() + "."
        stream += [*tokenizer.encode(text).ids, eos]
    records = np.array(stream[: 33 * (N_CTX + 1)]).reshape(33, N_CTX + 1).tolist()
    for name, chosen in (("train", records[:23]), ("eval", records[23:])):
        with RecordWriter(str(folder / "records"), name, files_per=9) as writer:
            for record in chosen:
                writer.write(record)


def make_workshop(folder: Path) -> None:
    tokenizer = make_tokenizer(folder / "tokenizer.json")
    _make_records(folder, tokenizer)
    n_vocab = tokenizer.get_vocab_size()
    assert n_vocab == 60
    dataset = {
        "id": "tiny",
        "n_vocab": n_vocab,
        "path": "records/train_*.tfrecords",
        "eval_path": "records/eval_*.tfrecords",
        "tokenizer_is_pretrained": False,
        "tokenizer_path": "tokenizer.json",
        "eos_id": n_vocab - 1,
    }
    config = {
        "n_layer": 2,
        "n_embd": 14,
        "n_head": 2,
        "n_ctx": N_CTX,
        "attention_types": [[["global", "local"], 1]],
        "local_attention_radius": 3,
        "embed_dropout": 0.1,
        "attn_dropout": 0.1,
        "res_dropout": 0.1,
        "datasets": [[dataset, None, None, None]],
        "train_batch_size": BATCH,
        "train_steps": STEPS,
        "lr": 0.01,
        "lr_decay": "cosine",
        "lr_decay_end": STEPS,
        "warmup_steps": 3,
        "weight_decay": 0.1,
        "gradient_clipping": 1.0,
        "log_every_steps": LOG_EVERY,
        "predict_max_steps": 6,
        "seed": 3,
    }
    (folder / "base.json").write_text(json.dumps(config))


def once(workshop: Workshop, name: str, make: Callable[[], Any]) -> Any:
    """What ``make`` returns (JSON), made by whichever worker comes first."""
    with open(workshop.folder / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = workshop.folder / f".{name}.result"
        if not result.exists():
            result.write_text(json.dumps(make()))
        return json.loads(result.read_text())


class Program:
    """main.py called in this process: no second import of TensorFlow."""

    def __init__(self, capfd: Any):
        self._capfd = capfd

    def __call__(self, *words: Any) -> Result:
        """Calls it; the settings of the log are put back."""
        self._capfd.readouterr()
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        try:
            code = main.main([str(word) for word in words])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        finally:
            for handler in set(root.handlers) - set(handlers):
                handler.close()
            root.handlers[:] = handlers
            root.setLevel(level)
        captured = self._capfd.readouterr()
        return Result(code, captured.out, captured.err)


def wait_for_step(workshop: Workshop, name: str, step: int, process: Any) -> None:
    """Returns as soon as the run has logged ``step``; fails if it ends before."""
    file = workshop.run_folder(name) / "metrics.jsonl"
    deadline = time.monotonic() + 200.0
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the run ended too early: {process.communicate()}"
        with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
            if json.loads(file.read_text().splitlines()[-1])["step"] >= step:
                return
        time.sleep(0.005)
    pytest.fail(f"step {step} was not reached: {finish(process, 1.0)}")
