#!/usr/bin/env python3
"""Makes the quickstart's records from text that is on every machine.

The text is the source of Python's own standard library. A twentieth of its
files, chosen by the hash of their name, is held out for evaluation.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import tempfile
import tokenize
import zlib
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from data import create_tfrecords  # noqa: E402

OUTPUT_DIR = _ROOT / "datasets" / "stdlib"
CHUNK_SIZE = 128
HELD_OUT_ONE_IN = 20
_LEFT_OUT_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)
# pydoc_data's topics are prose in one string, and encodings' tables are numbers; both are large.
_LEFT_OUT_PACKAGES = frozenset({"encodings", "pydoc_data"})
_FEWEST_FILES = 100


def source_files(library: Path) -> list[Path]:
    """Lists the library's source files, without its tests and installed packages.

    Args:
        library: folder of the standard library.

    Returns:
        Paths in a fixed order.

    Raises:
        ValueError: there are too few, as in an embedded Python without sources.
    """
    left_out = _LEFT_OUT_FOLDERS | _LEFT_OUT_PACKAGES
    files = [
        path
        for path in sorted(library.rglob("*.py"))
        if not left_out.intersection(path.relative_to(library).parts[:-1])
    ]
    if len(files) < _FEWEST_FILES:
        raise ValueError(
            f"the standard library must have at least {_FEWEST_FILES} source files; "
            f"got {len(files)} in {library}. Use a Python that is installed with its sources."
        )
    return files


def is_held_out(name: str) -> bool:
    """Decides whether a file is for evaluation; the same everywhere.

    Args:
        name: path of the file inside the library, with forward slashes.

    Returns:
        Whether it is held out.
    """
    return zlib.crc32(name.encode()) % HELD_OUT_ONE_IN == 0


def write_documents(library: Path, folder: Path) -> dict[str, Path]:
    """Collects the sources into one file of JSON lines per split.

    Args:
        library: folder of the standard library.
        folder: where to write.

    Returns:
        Path of the file of each split, `train` and `eval`.
    """
    splits: dict[str, list[str]] = {"train": [], "eval": []}
    for path in source_files(library):
        with tokenize.open(path) as file:  # honours the encoding that the file declares
            line = json.dumps({"text": file.read()})
        name = path.relative_to(library).as_posix()
        splits["eval" if is_held_out(name) else "train"].append(line)
    paths = {}
    for split, lines in splits.items():
        paths[split] = folder / f"{split}.jsonl"
        paths[split].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def record_arguments(split: str, documents: Path) -> list[str]:
    """Gives the command that makes the records of one split.

    Args:
        split: `train` or `eval`.
        documents: its documents.

    Returns:
        Arguments of data/create_tfrecords.py.
    """
    arguments = f"--mode chunks --chunk_size {CHUNK_SIZE} --use_gpt2_tokenizer --overwrite"
    places = ["--input_dir", str(documents), "--name", split, "--output_dir", str(OUTPUT_DIR)]
    return arguments.split() + places


def main(argv: Sequence[str] | None = None) -> int:
    """Makes the records unless they are there.

    Args:
        argv: takes no arguments; those of the process if None.

    Returns:
        Exit code.
    """
    if sys.argv[1:] if argv is None else argv:
        print("prepare_stdlib.py takes no arguments.", file=sys.stderr)
        return 2
    if all(any(OUTPUT_DIR.glob(f"{split}_*.tfrecords")) for split in ("train", "eval")):
        print(f"Records are there already: {OUTPUT_DIR}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            paths = write_documents(Path(sysconfig.get_paths()["stdlib"]), Path(folder))
        except ValueError as error:
            print(f"prepare_stdlib.py: {error}", file=sys.stderr)
            return 2
        for split, documents in paths.items():
            print(f"Records for {split}, from the sources of Python's standard library:")
            code = create_tfrecords.main(record_arguments(split, documents))
            if code:
                return code
    print(f"Records: {OUTPUT_DIR}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
