"""A tracked run: its record, its training process, and what is carried from one to the other."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from configs.schema import Config
from tracking.metrics import EVALUATION_PREFIX, RunMetrics, now
from tracking.output import Output
from tracking.process import TrainingProcess
from tracking.provenance import experiment_info, repositories
from tracking.record import CONFIG_FILE, INFO_FILE, METRICS_FILE, OUTPUT_FILE, Record, read_json
from tracking.supervisor import USAGE_ERROR, Limits, Outcome, Signs, StopRequest, Supervisor
from tracking.tensorboard import TensorBoard
from utils.files import exists, is_remote, names_in, read_bytes, write_atomically
from utils.run_lock import is_held_by_other

if TYPE_CHECKING:
    from tracking.database import Database
    from tracking.mirroring import Mirroring

LOGGER = logging.getLogger(__name__)
MARKER = "tracking.json"
"""In the folder of a run: names its record."""

CURVES_FILE = "curves.png"
BEAT_SECONDS = 10.0  # between two heartbeats of the record, as Sacred does it
_REMOTE_POLL = 10.0  # seconds between two looks at a bucket
_TRACE_LENGTH = 100_000  # characters
_KEPT_STARTS = 100  # of which the record tells
_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)\.index")


class Experiment:
    """One tracked run.

    Args:
        arguments: of the command line.
        config: a checked config.
        words: of main.py's command line.
        output: takes what is printed.
        database: to which the record is carried; None for none.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        config: Config,
        words: Sequence[str],
        output: Output,
        database: Optional[Database] = None,
    ) -> None:
        self._database = database
        self._arguments = arguments
        self._config = config
        self._words = list(words)
        self._output = output
        self._remote = is_remote(config.model_path)
        self._signs = Signs(0, 0, 0, 0)
        self._tensorboard: Optional[TensorBoard] = None
        self._next_look = self._next_beat = 0.0
        self._unreadable = self._unwritable = self._changed = self._marked = False
        self._begun = False  # whether a process of this run has logged a step
        self._lines_before, self._pid = 0, 0
        self.record, self._continued = self._open_record()
        # Samples that the record has are not copied again.
        self._copied = dict.fromkeys(self.record.run_entry["artifacts"], b"")
        self._marker = json.dumps({"record": self.record.key, "id": self.record.id})
        earlier = read_json(os.path.join(self.record.dir, METRICS_FILE))
        self._metrics = RunMetrics(config.model_path, str(self.record.id), earlier)

    def _open_record(self) -> tuple[Record, bool]:
        """The record of the run in model_path if it has one here, else a new one."""
        record = Record(self._arguments.runs_dir)
        config = self._config.to_json_dict()
        number = None if self._arguments.new else self._number_of_record()
        if number is not None:
            record.go_on(number, config)
            # A record without its output can go on.
            with contextlib.suppress(FileNotFoundError):
                self._output.begin_with(read_bytes(os.path.join(record.dir, OUTPUT_FILE)))
            if self._arguments.experiment_name:
                record.run_entry["experiment"]["name"] = self._arguments.experiment_name
            return record, True
        name = self._arguments.experiment_name or _stem(self._arguments.model)
        meta = {"command_line": ["main.py", *self._words], "options": {}}
        record.begin(experiment_info(name), config, meta)
        return record, False

    def _number_of_record(self) -> Optional[int]:
        path = os.path.join(self._config.model_path, MARKER)
        if not exists(path):
            return None
        try:
            marker = json.loads(read_bytes(path))
            number, key = int(marker["id"]), str(marker["record"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} must name the record of the run; got a file that does not. Remove it, "
                "and the run gets a new record."
            ) from error
        info = read_json(os.path.join(self._arguments.runs_dir, str(number), INFO_FILE))
        if info.get("key") == key:
            return number
        LOGGER.warning(
            "the record of the run in %s is not in %s: it gets a new one there",
            self._config.model_path,
            self._arguments.runs_dir,
        )
        return None

    def run(self) -> Outcome:
        """Trains, with restarts, and closes the record with how that ended."""
        LOGGER.info(
            "%s the record %s", "continuing" if self._continued else "writing", self.record.dir
        )
        arguments = self._arguments
        limits = Limits(
            arguments.initial_heartbeat_timeout,
            arguments.heartbeat_timeout,
            arguments.restarts,
            arguments.restart_wait,
        )
        mirroring = self._start_mirroring()
        if arguments.tensorboard:
            self._tensorboard = TensorBoard(self._config.model_path, self.record.dir)
        with StopRequest() as stop, contextlib.ExitStack() as ending:
            if self._tensorboard is not None:
                ending.callback(self._tensorboard.close)
            supervisor = Supervisor(
                self._start, self._look, limits, stop, self._config.train_steps, self._recreate_tpu
            )
            outcome = supervisor.run()
        try:
            self._close(outcome)
        except OSError as error:
            LOGGER.error(
                "the record %s cannot be closed: %s. Mend that and give the same command again",
                self.record.dir,
                error,
            )
        if mirroring is not None:
            mirroring.finish()
        self.record.close()
        return outcome

    def _start_mirroring(self) -> Optional[Mirroring]:
        if self._database is None:
            return None
        from tracking.mirroring import Mirroring

        mirroring = Mirroring(self.record.dir, self._database)
        mirroring.start()
        return mirroring

    def _start(self, begun: bool) -> TrainingProcess:
        words = [*self._words, "--sacred_id", str(self.record.id)]
        if begun:  # what a restart resumes must not be deleted
            words = [word for word in words if word not in ("--new", "--yes")]
        process = TrainingProcess(words, self._output, self.record.dir)
        self._lines_before, self._pid = self._signs.lines, process.pid
        starts = self.record.info.setdefault("starts", [])
        entry = {"time": now().isoformat(), "step": self._signs.step, "pid": process.pid}
        for repository in repositories():
            entry["commit"] = repository["commit"]
        starts.append(entry)
        del starts[:-_KEPT_STARTS]
        self._next_beat = 0.0
        return process

    def _recreate_tpu(self) -> None:
        arguments = self._arguments
        if not (arguments.tpu and arguments.recreate_tpu) or arguments.no_delete_tpu:
            return
        LOGGER.info("recreating the TPU: %s", arguments.recreate_tpu)
        result = subprocess.run(
            arguments.recreate_tpu,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for line in result.stdout.decode("utf-8", errors="replace").splitlines():
            LOGGER.info("%s", line)
        if result.returncode:
            LOGGER.warning("the command ended with exit code %d", result.returncode)

    def _look(self) -> Signs:
        """Reads what the run has written and, when it is time, writes the record."""
        now = time.monotonic()
        if self._tensorboard is not None:
            self._tensorboard.announce()
        if now >= self._next_look:
            self._next_look = now + (_REMOTE_POLL if self._remote else 0.0)
            self._read()
        is_first_step = self._begun and not self._marked
        if now >= self._next_beat or is_first_step:
            self._next_beat = now + BEAT_SECONDS
            self._beat()
        signs = self._signs
        self._signs = Signs(signs.lines, self._output.size, signs.step, signs.checkpoint)
        return self._signs

    def _read(self) -> None:
        try:
            self._changed |= self._metrics.refresh()
            steps = [
                int(match[1])
                for name in names_in(self._config.model_path)
                if (match := _CHECKPOINT.fullmatch(name))
            ]
        except OSError as error:
            if not self._unreadable:
                LOGGER.warning("the files of the run cannot be read for now: %s", error)
            self._unreadable = True
            return
        self._unreadable = False
        metrics = self._metrics
        self._signs = Signs(metrics.lines, 0, metrics.last_step, max(steps, default=0))
        if self._pid and metrics.lines > self._lines_before:
            # Steps of a run that holds the folder already are not those of a process it refuses.
            self._begun |= self._remote or not is_held_by_other(self._config.model_path, self._pid)

    def _beat(self) -> None:
        """Brings the record up to date; training goes on when that fails."""
        try:
            self._mark()
            self._copy_artifacts()
            if self._changed:
                self.record.write_curves(self._metrics)
                self._changed = False
            self.record.info["latest"] = {"step": self._metrics.last_step} | _latest(self._metrics)
            self.record.beat(self._output.text(), _result(self._metrics))
            self._unwritable = False
        except OSError as error:
            if not self._unwritable:
                LOGGER.warning("the record cannot be written for now: %s", error)
            self._unwritable = True

    def _mark(self) -> None:
        """Names the record in the run's folder, once this run has begun there, and not before.

        By then --new has deleted what it deletes; a start that is refused leaves the name that is
        there.
        """
        if not self._begun:
            return
        path = os.path.join(self._config.model_path, MARKER)
        if not exists(path) or read_bytes(path) != self._marker.encode():
            write_atomically(path, self._marker.encode())
        self._marked = True

    def _copy_artifacts(self) -> None:
        folder = self._config.model_path
        names = {CONFIG_FILE: "resolved_config.json"}
        for name in names_in(folder):
            if re.fullmatch(rf"predictions_{self.record.id}_\d+\.txt", name):
                names[name] = name
        for name, artifact in names.items():
            path = os.path.join(folder, name)
            if exists(path) and (name == CONFIG_FILE or name not in self._copied):
                content = read_bytes(path)
                if self._copied.get(name) != content:
                    self.record.add_artifact(artifact, path)
                    self._copied[name] = content if name == CONFIG_FILE else b""

    def _draw(self) -> None:
        """Puts the picture of the curves among the artifacts."""
        from tracking.plots import write_png

        curves = {name: curve.as_json() for name, curve in self._metrics.curves.items()}
        if "loss" in curves:
            path = os.path.join(self.record.dir, CURVES_FILE)
            try:
                write_png({"": curves}, self.record.run_entry["experiment"]["name"], path)
                self.record.add_artifact(CURVES_FILE, path)
            except Exception as error:  # of a drawing library; the status matters more
                LOGGER.warning("%s was not drawn: %s", CURVES_FILE, error)

    def _close(self, outcome: Outcome) -> None:
        self._read()
        is_refused = outcome.code == USAGE_ERROR and outcome.status == "FAILED"
        if self._continued and is_refused and not self._begun:
            self.record.put_back()
            return
        self._draw()
        self._beat()
        if outcome.status == "COMPLETED":
            self.record.completed_event(now(), _result(self._metrics))
        elif outcome.status == "INTERRUPTED":
            self.record.interrupted_event(now(), outcome.status)
        else:
            self.record.failed_event(now(), _fail_trace(outcome, self._output))


def _stem(model: str) -> str:
    return os.path.splitext(os.path.basename(model))[0]


def _latest(metrics: RunMetrics) -> dict[str, Any]:
    return {name: curve.last for name, curve in metrics.curves.items()}


def _result(metrics: RunMetrics) -> Optional[float]:
    """Loss on held-out records if there is one, else that of training."""
    latest: Mapping[str, Optional[float]] = _latest(metrics)
    return latest.get(f"{EVALUATION_PREFIX}loss", latest.get("loss"))


def _fail_trace(outcome: Outcome, output: Output) -> list[str]:
    """Why a run has failed, as lines: its traceback, or else the end of its output."""
    text = outcome.trace[-_TRACE_LENGTH:] or "\n".join(output.text().splitlines()[-50:]) + "\n"
    return [*text.splitlines(keepends=True), outcome.reason + "\n"]
