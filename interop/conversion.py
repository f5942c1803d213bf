"""One conversion: part by part into the output folder, interrupted and resumed at any place."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

from tqdm import tqdm

from interop.tensors import Part, Source, Target, checksum, is_finite, warn_of_spoiled
from utils.files import check_writable, missing_folders, write_atomically

LOGGER = logging.getLogger(__name__)
RECORD_FILE = "conversion.json"
"""In a folder whose conversion is complete: what was converted, and which files it has written."""

WORKSHOP = ".conversion"
_PLAN, _JOURNAL = os.path.join(WORKSHOP, "plan.json"), os.path.join(WORKSHOP, "journal.jsonl")
_LOCK = "lock"
_UNITS = {"GB": 10**9, "MB": 10**6, "kB": 10**3}


def check_place(folder: str) -> None:
    """Refuses an output folder before anything is looked at.

    Raises:
        ValueError: the folder cannot be made or written, or holds what no conversion has written.
    """
    path = os.path.abspath(folder)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    why = "" if os.path.isdir(path) else "it is no folder"
    try:
        check_writable(os.path.join(folder, RECORD_FILE))
    except OSError as error:
        why = why or str(error.strerror)
    if why:
        raise ValueError(
            f"the output folder must be one that can be made and written; got {folder} "
            f"({path}: {why}). Name another one."
        )
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    begun = _read(folder, RECORD_FILE) or _read(folder, _PLAN)
    if begun is None and set(names) - {WORKSHOP}:
        more = ", …" if len(names) > 3 else ""
        raise ValueError(
            f"the output folder must be empty or not there yet; got {folder}, which holds "
            f"{', '.join(names[:3])}{more}. Name another one."
        )


def _read(folder: str, name: str) -> Optional[dict[str, Any]]:
    """The plan or the record of a conversion; None if there is none."""
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
        return {"identity": values["identity"], "files": [str(n) for n in values["files"]]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} must be what a conversion has written; got: {error!r:.100}. Delete "
            f"{folder}, or name another folder."
        ) from error


def _size(size_bytes: int) -> str:
    """A size in the unit that shows it, such as ``12.5 MB``."""
    unit = next((unit for unit in ("GB", "MB", "kB") if size_bytes >= _UNITS[unit]), "bytes")
    return f"{size_bytes / _UNITS[unit]:,.1f} {unit}" if unit in _UNITS else f"{size_bytes} bytes"


class Output:
    """The output folder of a conversion.

    Args:
        folder: a local path.
        identity: what is converted, and how; another one is another conversion.
        overwrite: whether a conversion that is there is done again.
    """

    def __init__(self, folder: str, identity: Mapping[str, Any], overwrite: bool):
        self.folder = folder
        self.workshop = os.path.join(folder, WORKSHOP)
        self._made = missing_folders(folder)
        self._identity = json.loads(json.dumps(identity))
        self._overwrite = overwrite

    def is_finished(self) -> bool:
        """Whether there is nothing to do.

        Raises:
            ValueError: the folder holds something else.
        """
        check_place(self.folder)
        record, plan = _read(self.folder, RECORD_FILE), _read(self.folder, _PLAN)
        known = plan or record
        if self._overwrite and known is not None:
            self._check_only_ours(record, plan)
            return False
        if known is not None and known["identity"] != self._identity:
            raise ValueError(
                "the output folder must hold this conversion or none; got "
                f"{self.folder}, which holds one of other files or with other options. Name "
                "another folder, or replace what it has written with --overwrite."
            )
        if plan is not None or record is None:
            return False
        lost = [name for name in record["files"] if not os.path.exists(self._path(name))]
        if lost:
            raise ValueError(
                f"a converted folder must be whole; got no {', '.join(lost[:3])} in {self.folder}. "
                "Convert again with --overwrite."
            )
        return True

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, os.path.basename(name))

    def _check_only_ours(self, *known: Optional[dict[str, Any]]) -> None:
        written = {
            WORKSHOP,
            RECORD_FILE,
            *(name for item in known if item for name in item["files"]),
        }
        names = set(os.listdir(self.folder)) - written
        others = sorted(name for name in names if not name.endswith(".partial"))
        if others:
            raise ValueError(
                "--overwrite must only delete what a conversion has written; got "
                f"{', '.join(others[:3])} in {self.folder} as well. Name another folder."
            )

    def begin(self, files: Sequence[str], size_bytes: int) -> None:
        """Makes the folder, or cleans it with ``--overwrite``; a resumed one stays as it is.

        Args:
            files: names of all that will be written into it.
            size_bytes: of the weights.

        Raises:
            ValueError: the disk has no room.
        """
        place = os.path.abspath(self.folder)
        if self._overwrite:
            self._clean()
        there = sum(
            os.path.getsize(os.path.join(folder, name))
            for folder in (place, self.workshop)
            for name in os.listdir(folder)
            if os.path.isfile(os.path.join(folder, name))
        )
        free = shutil.disk_usage(place).free
        begun = _read(self.folder, _PLAN) is not None
        if size_bytes - there > free:
            if not begun:
                self.discard()
            raise ValueError(
                f"the disk must have room for the weights; got {_size(free)} free of "
                f"{_size(size_bytes - there)} in {self.folder}. Make room, or name another folder."
            )
        if not begun:
            self._write(os.path.join(self.folder, _PLAN), files)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the folder for this process, which ends the lock however it ends.

        Raises:
            ValueError: another process has it.
        """
        os.makedirs(self.workshop, exist_ok=True)
        with open(os.path.join(self.workshop, _LOCK), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(
                    "the output folder must be written by one process at a time; got "
                    f"{self.folder}, into which another one converts. Wait for its end."
                ) from error
            yield

    def _write(self, path: str, files: Sequence[str]) -> None:
        content = {"identity": self._identity, "files": sorted(files)}
        write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())

    def _clean(self) -> None:
        for known in (_read(self.folder, RECORD_FILE), _read(self.folder, _PLAN)):
            for name in known["files"] if known else ():
                if os.path.isfile(self._path(name)):
                    os.remove(self._path(name))
        for name in set(os.listdir(self.workshop)) - {_LOCK}:
            os.remove(os.path.join(self.workshop, name))

    def discard(self) -> None:
        """Leaves nothing of a conversion that cannot be gone on with."""
        self._clean()
        shutil.rmtree(self.workshop)
        for folder in self._made:
            if not os.path.isdir(folder) or os.listdir(folder):
                break
            os.rmdir(folder)

    def complete(self, files: Sequence[str]) -> None:
        """Says that the conversion is done."""
        there = [name for name in files if os.path.exists(self._path(name))]
        self._write(os.path.join(self.folder, RECORD_FILE), there)
        shutil.rmtree(self.workshop)

    def journal(self) -> dict[str, dict[str, int]]:
        """Checksums of the tensors of each part that has been written, by the part's file."""
        path = os.path.join(self.folder, _JOURNAL)
        if not os.path.isfile(path):
            return {}
        entries = {}
        with open(path, encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError):  # a line at which the process was killed
                    entry = json.loads(line)
                    entries[entry["part"]] = entry["checksums"]
        return entries

    def note(self, part: Part, checksums: Mapping[str, int]) -> None:
        """Adds a part to the journal."""
        with open(os.path.join(self.folder, _JOURNAL), "a", encoding="utf-8") as file:
            entry = json.dumps({"part": part.file, "checksums": dict(checksums)})
            file.write(f"\n{entry}\n")  # whatever a killed process has left in the line before
            file.flush()
            os.fsync(file.fileno())

    def forget(self) -> None:
        """Empties the journal, so that the next attempt writes everything again."""
        os.remove(os.path.join(self.folder, _JOURNAL))


def write_tensors(source: Source, target: Target, parts: Sequence[Part], output: Output) -> None:
    """Writes what is not there yet, puts it in place, reads it back and compares.

    Args:
        source: of the tensors, under the target's names.
        target: of their format.
        parts: of ``target.parts``.
        output: which has begun.

    Raises:
        ValueError: a tensor cannot be converted.
        RuntimeError: what was read back is not what was written.
    """
    checksums = output.journal()
    done = target.finished(parts) & checksums.keys()
    if done:
        LOGGER.info("going on: %d of %d parts are there", len(done), len(parts))
    sizes = {part.file: sum(s.size_bytes for s in part.specs.values()) for part in parts}
    with _bar("writing", sizes, sum(sizes[file] for file in done)) as bar:
        for part in parts:
            if part.file not in done:
                checksums[part.file] = dict(target.write(part, source))
                output.note(part, checksums[part.file])
                bar.update(sizes[part.file])
    written = target.finish(parts)
    spoiled: list[str] = []
    with _bar("reading back", sizes, 0) as bar:
        for part in parts:
            spoiled += _compare(written, part, checksums[part.file], output)
            bar.update(sizes[part.file])
    warn_of_spoiled(spoiled, output.folder)


def _bar(words: str, sizes: Mapping[str, int], done: int) -> Any:
    # None: no bar where stderr is no terminal.
    total = sum(sizes.values())
    return tqdm(desc=words, total=total, initial=done, unit="B", unit_scale=True, disable=None)


def _compare(
    written: Source, part: Part, checksums: Mapping[str, int], output: Output
) -> list[str]:
    """Compares what was written with what was read; returns the tensors that are not finite."""
    spoiled = []
    for name, spec in part.specs.items():
        try:
            array = written.read(name)
            same = array.shape == spec.shape and checksum(array) == checksums[name]
            spoiled += [] if is_finite(array) else [name]
        except ValueError:
            same = False
        if not same:
            output.forget()
            raise RuntimeError(
                f"what was written must be what is read back; got another {name} from "
                f"{output.folder}. Look at the disk, and run the same command again."
            )
    return spoiled


def parameter_count(source: Source) -> int:
    """Elements of all tensors."""
    return sum(math.prod(spec.shape) for spec in source.specs.values())


def run(
    source: Source,
    target: Target,
    output: Output,
    texts: Mapping[str, str],
    carry: Callable[[], None],
    carried: Sequence[str],
) -> int:
    """Fills the output folder; leaves nothing there if the input turns out to be unusable.

    Args:
        source: of the tensors, under the target's names.
        target: of their format.
        output: that is not finished.
        texts: content of further files, by name, in the order in which they are written.
        carry: copies the files of the tokenizer.
        carried: names that they may have.

    Returns:
        The number of parts.

    Raises:
        ValueError, RuntimeError: as ``Output.begin`` and ``write_tensors``.
    """
    parts = target.parts(source.specs)
    files = [*target.files(parts), *texts, *carried, RECORD_FILE]
    with output.held():
        output.begin(files, sum(spec.size_bytes for spec in source.specs.values()))
        try:
            write_tensors(source, target, parts, output)
        except ValueError:  # the input's fault: with any other input the parts are another's
            output.discard()
            raise
        carry()
        for name, text in texts.items():
            write_atomically(os.path.join(output.folder, name), text.encode())
        output.complete(files)
    return len(parts)
