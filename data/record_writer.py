"""Writing record files that appear all at once, and going on after an interruption."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np

from data.record_encoding import encode_records
from data.record_parts import compress_parts, gzip_path, join_parts, part_path
from data.records import GZIP_SUFFIX, SUFFIX
from utils.errors import reason


class RecordWriter:
    """Writes records to numbered files that appear all at once.

    Everything is written under temporary names; only `close` gives the files
    their real ones, so that an interrupted job leaves no data set that looks
    complete. Used as a context manager it closes on success and discards on an
    exception.

    A job that is to go on after it was killed keeps `state` somewhere, and gives it to `restore`
    of a new writer: what was written after that state is then written again. Since no file is
    ever appended to, a file may consist of several parts until it is closed.
    """

    def __init__(
        self,
        output_dir: str,
        name: str,
        files_per: int = 100_000,
        process: int | None = None,
        work_dir: str | None = None,
        compress: bool = False,
    ) -> None:
        """Opens a data set for writing; the first file is made with the first record.

        Args:
            output_dir: folder, made if missing; local or `gs://`.
            name: first part of every file name.
            files_per: records per file.
            process: number put into the file names when several jobs write one data set.
            work_dir: local folder of the temporary files; `output_dir` if None.
            compress: whether each file is compressed, as a whole, when all are complete.

        Raises:
            ValueError: `files_per` is below 1, or `name` is not a plain file name.
        """
        if files_per < 1:
            raise ValueError(
                f"files_per must be at least 1; got {files_per}. Give the records per file."
            )
        if not name or "/" in name or os.sep in name:
            raise ValueError(
                f"name must be a file name without folders; got {name!r}. "
                "Give the folder as output_dir."
            )
        self._output_dir = output_dir
        self._work_dir = output_dir if work_dir is None else work_dir
        self._name = name
        self._files_per = files_per
        self._process = "" if process is None else f"_{process}"
        self._compress = compress
        self._file: Any = None
        self._counts: list[int] = [0]  # records of each file; the last one is not full
        self._parts: list[int] = [0]  # closed parts of each file

    def write(self, ids: Iterable[int]) -> None:
        """Appends one record.

        Args:
            ids: token ids.

        Raises:
            ValueError: the folder cannot be written to.
        """
        array = ids if isinstance(ids, np.ndarray) else list(ids)
        self.write_all([np.asarray(array, np.int32)])

    def write_all(self, records: Sequence[np.ndarray] | np.ndarray) -> None:
        """Appends records.

        Args:
            records: token ids of each record, [length], int32, masked ones as their complement
                (data/record_encoding.py); or all in one array, [records, length].

        Raises:
            ValueError: the folder cannot be written to.
        """
        for content in encode_records(records):
            if self._file is None:
                self._open()
            self._file.write(content)
            self._counts[-1] += 1
            if self._counts[-1] == self._files_per:
                self.end_file()
                self._counts.append(0)
                self._parts.append(0)

    def state(self) -> dict[str, Any]:
        """Says what has been written, and sees to it that it is on the disk.

        Returns:
            What `restore` needs, as JSON can hold it.
        """
        if self._file is not None:
            self._file.flush()
        is_open = self._file is not None
        parts = [os.path.getsize(path) for path in self._part_paths(len(self._counts) - 1, is_open)]
        return {"counts": self._counts, "parts": self._parts[:-1], "open_parts": parts}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a state; anything written after it is cut off.

        Args:
            state: from `state`, of a writer with the same arguments.
        """
        assert self._counts == [0], "a writer goes on before it has written"
        self._counts = list(state["counts"])
        self._parts = [*state["parts"], len(state["open_parts"])]
        for path, size in zip(self._part_paths(len(self._counts) - 1), state["open_parts"]):
            if os.path.exists(path):  # else it has its name already
                os.truncate(path, size)

    def adopt(self, records: int) -> None:
        """Takes over files that were written elsewhere, each as its first part, or compressed.

        Args:
            records: in all of them; all files but the last are full.
        """
        assert self._counts == [0], "a writer adopts before it has written"
        full, rest = divmod(records, self._files_per)
        self._counts = [*[self._files_per] * full, rest]
        self._parts = [*[1] * full, int(rest > 0)]

    @property
    def files(self) -> dict[str, int]:
        """Records in each file, by the name that the file will have."""
        return {self._final_name(i): count for i, count in enumerate(self._counts) if count}

    def end_file(self) -> None:
        """Writes out what is open; a state then speaks of whole parts only."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._parts[-1] += 1

    def compress(self, threads: int = 1) -> None:
        """Ends the last file and compresses all if that was asked for, still without a real name.

        It may be called again, also after `restore`, when it was interrupted.

        Args:
            threads: files that are compressed at a time. Their bytes do not depend on it.
        """
        self.end_file()
        if not self._compress:
            return
        pool = ThreadPoolExecutor(threads)
        try:
            list(pool.map(self._compress_file, range(len(self.files))))
        finally:
            pool.shutdown(cancel_futures=True)

    def close(self) -> list[str]:
        """Ends the last file and gives all files their real names.

        It may be called again, also after `restore`, when it was interrupted.

        Returns:
            Paths of the record files, in the order written.
        """
        self.compress()
        paths = []
        for i, name in enumerate(self.files):
            path = os.path.join(self._output_dir, name)
            join_parts([self._gzip_path(i)] if self._compress else self._part_paths(i), path)
            paths.append(path)
        return paths

    def discard(self) -> None:
        """Removes everything that was written and not yet closed."""
        import tensorflow as tf

        self.end_file()
        for i in range(len(self._counts)):
            for part in self._part_paths(i):
                tf.io.gfile.remove(part)
        self._counts, self._parts = [0], [0]

    def __enter__(self) -> RecordWriter:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes, or discards if the block ended with an exception."""
        if kind is None:
            self.close()
        else:
            self.discard()

    def _open(self) -> None:
        import tensorflow as tf

        part = self._part_paths(len(self._counts) - 1, is_open=True)[-1]
        try:
            tf.io.gfile.makedirs(self._work_dir)
            self._file = tf.io.TFRecordWriter(part)
        except tf.errors.OpError as error:
            raise ValueError(
                f"output_dir must be a folder that can be written to; got {self._output_dir} "
                f"({reason(error)}). Give another folder."
            ) from error

    def _part_paths(self, i: int, is_open: bool = False) -> list[str]:
        parts = range(self._parts[i] + is_open)
        return [part_path(self._work_dir, self._short_name(i), part) for part in parts]

    def _gzip_path(self, i: int) -> str:
        return gzip_path(self._work_dir, self._short_name(i))

    def _short_name(self, i: int) -> str:
        return f"{self._name}_{i}{self._process}"

    def _final_name(self, i: int) -> str:
        ending = GZIP_SUFFIX if self._compress else ""
        return f"{self._short_name(i)}_{self._counts[i]}{SUFFIX}{ending}"

    def _compress_file(self, i: int) -> None:
        compress_parts(self._part_paths(i), self._gzip_path(i))
