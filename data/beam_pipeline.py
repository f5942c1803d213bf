"""Text to record files as an Apache Beam pipeline; the files are those of data/preparation.py.

::

    shards of files -> documents, by bucket -> chunks -> records, by bucket -> parts -> files
                            |                   ^  |           |                 ^
                            sizes -> sums ------'  '- pieces   sizes -> sums ----'

With a seed, documents and records are put into buckets by the top bits of the hashes that
data/shuffle.py sorts by, and a bucket is sorted in memory; without, buckets are stretches of the
input. The only thing that depends on all of the input is how much lies before each bucket, which
is a sum over the sizes of buckets. So a worker holds one bucket and these sums, whatever the size
of the corpus.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from data.account import Account
from data.beam_entries import Report, Starts
from data.beam_packing import PIECES, JoinPieces, OrderChunks, PlaceInOrder, PlaceShuffled
from data.beam_reading import REPORTS, SIZES, ReadDocuments, make_shards
from data.beam_writing import JoinParts, WriteParts
from data.documents import BadDocument, Key
from data.preparation import Plan
from utils.files import names_in, read_bytes, size_and_time, write_atomically

SHARD_BYTES = 64 << 20
BUCKET_TOKENS = 8 << 20
"""Tokens that are sorted at once, about, at four bytes each."""

_TEXT_BYTES_PER_TOKEN = 4
_COMPRESSED = (".gz", ".tgz", ".zst", ".xz", ".zip", ".tar")
_EXPANSION = 4  # of what is compressed
_FEWEST_BITS, _MOST_BITS = 3, 24
_REPORT = "report-"
# Their job servers have options that are not known here.
_RUNNERS_WITH_SERVERS = ("flink", "portable", "spark")

_Keyed = tuple[int, Any]


class PipelineError(RuntimeError):
    """The runner could not do it."""


@dataclass(frozen=True)
class Buckets:
    """How much is sorted at once.

    Attributes:
        bits: of a hash that are the number of a bucket.
        tokens: of a bucket where nothing is shuffled.
    """

    bits: int
    tokens: int

    @classmethod
    def for_input(cls, paths: Sequence[str], sizes: Sequence[int]) -> Buckets:
        """Chooses.

        Args:
            paths: input files.
            sizes: of the files, in bytes.

        Returns:
            Buckets of about `BUCKET_TOKENS`.
        """
        text = sum(
            size * (_EXPANSION if path.endswith(_COMPRESSED) else 1)
            for path, size in zip(paths, sizes)
        )
        count = text // (BUCKET_TOKENS * _TEXT_BYTES_PER_TOKEN)
        bits = max(_FEWEST_BITS, min(_MOST_BITS, count.bit_length()))
        return cls(bits, BUCKET_TOKENS)


class _SumReports(beam.CombineFn):
    def create_accumulator(self) -> Report:
        return Report()

    def add_input(self, accumulator: Report, element: Report) -> Report:
        accumulator.add(element)
        return accumulator

    def merge_accumulators(self, accumulators: Any) -> Report:
        whole = Report()
        for accumulator in accumulators:
            whole.add(accumulator)
        return whole

    def extract_output(self, accumulator: Report) -> Report:
        return accumulator


def _sums(sizes: Any, reading: Any, skip_bad: bool, name: str) -> Any:
    """What lies before each bucket, as a side input; None if nothing is to be made."""

    def add_up(found: list[tuple[int, int]], report: Report) -> Optional[Starts]:
        return None if report.bad and not skip_bad else Starts.of_sizes(found)

    found = (
        sizes
        | f"{name}: sizes" >> beam.CombinePerKey(sum)
        | f"{name}: all sizes" >> beam.combiners.ToList()
        | f"{name}: sums" >> beam.Map(add_up, reading)
    )
    return beam.pvalue.AsSingleton(found)


def build_pipeline(pipeline: beam.Pipeline, plan: Plan, work_dir: str, skip_bad: bool) -> None:
    """Adds all steps to a pipeline.

    Args:
        pipeline: an empty one.
        plan: what is to be made.
        work_dir: a folder that all workers reach; gets the files and a report.
        skip_bad: whether to go on behind documents that cannot be read.
    """
    sizes = [size_and_time(path)[0] for path in plan.paths]
    buckets = Buckets.for_input(plan.paths, sizes)
    shards = [tuple(shard) for shard in make_shards(plan.paths, sizes, SHARD_BYTES)]
    plan = dataclasses.replace(plan, paths=[])  # it goes to every worker
    read = (
        pipeline
        | "Shards" >> beam.Create(shards)
        | "Spread" >> beam.Reshuffle()
        | "Read"
        >> beam.ParDo(ReadDocuments(plan, buckets.bits, skip_bad))
        .with_output_types(_Keyed)
        .with_outputs(SIZES, REPORTS, main="documents")
    )
    reading = beam.pvalue.AsSingleton(
        read[REPORTS] | "What was read" >> beam.CombineGlobally(_SumReports())
    )
    starts = _sums(read[SIZES], reading, skip_bad, "Documents")
    reports = [read[REPORTS]]
    if plan.chunk_length is not None:
        records = _chunks(read["documents"], starts, plan, buckets)
        reports.append(records[REPORTS])
        in_buckets, counts = records["records"], records[SIZES]
    elif plan.seed is None:
        placed = read["documents"] | "Place" >> beam.ParDo(
            PlaceInOrder(plan, buckets.tokens), starts
        ).with_output_types(_Keyed).with_outputs(SIZES, main="records")
        in_buckets, counts = placed["records"], placed[SIZES]
    else:
        in_buckets, counts = read["documents"], read[SIZES]
    firsts = _sums(counts, reading, skip_bad, "Records")
    _ = (
        in_buckets
        | "Records by bucket" >> beam.GroupByKey()
        | "Write parts" >> beam.ParDo(WriteParts(plan, work_dir), firsts).with_output_types(_Keyed)
        | "Parts by file" >> beam.GroupByKey()
        | "Join parts" >> beam.ParDo(JoinParts(plan, work_dir))
    )
    _ = (
        reports
        | "All reports" >> beam.Flatten()
        | "Report" >> beam.CombineGlobally(_SumReports())
        | "Write report" >> beam.Map(_write_report, work_dir)
    )


def _chunks(documents: Any, starts: Any, plan: Plan, buckets: Buckets) -> Any:
    """Documents to chunks, by bucket."""
    assert plan.chunk_length is not None
    if plan.seed is None:
        place = beam.ParDo(PlaceInOrder(plan, buckets.tokens), starts)
    else:
        documents = documents | "Documents by bucket" >> beam.GroupByKey()
        place = beam.ParDo(PlaceShuffled(plan), starts)
    cut = documents | "Cut" >> place.with_output_types(_Keyed).with_outputs(PIECES, main="whole")
    joined = (
        cut[PIECES]
        | "Pieces by chunk" >> beam.GroupByKey()
        | "Join pieces" >> beam.ParDo(JoinPieces(plan.chunk_length)).with_output_types(_Keyed)
    )
    return (
        (cut["whole"], joined)
        | "All chunks" >> beam.Flatten()
        | "Order"
        >> beam.ParDo(OrderChunks(plan, buckets.bits, buckets.tokens), starts)
        .with_output_types(_Keyed)
        .with_outputs(SIZES, REPORTS, main="records")
    )


def _write_report(report: Report, work_dir: str) -> None:
    content = json.dumps(dataclasses.asdict(report)).encode()
    write_atomically(os.path.join(work_dir, f"{_REPORT}{uuid.uuid4().hex}"), content)


def read_report(work_dir: str, chunk_length: Optional[int]) -> Report:
    """Reads what a pipeline has reported.

    Args:
        work_dir: its folder.
        chunk_length: ids in a chunk, if records are chunks.

    Returns:
        The report.
    """
    # Several only if that step was repeated, and then they are the same.
    name = next(name for name in names_in(work_dir) if name.startswith(_REPORT))
    content = json.loads(read_bytes(os.path.join(work_dir, name)))
    bad = [BadDocument(**{**document, "key": Key(*document["key"])}) for document in content["bad"]]
    report = Report(Account(**content["account"]), bad)
    if chunk_length is not None:
        packed = report.account.tokens_read - report.account.tokens_too_small
        report.account.tokens_tail = packed % chunk_length
    return report


def parse_pipeline_options(flags: Sequence[str]) -> PipelineOptions:
    """Reads the options of Beam and its runners.

    Args:
        flags: arguments of the command line.

    Returns:
        The options.

    Raises:
        ValueError: an option is unknown or has a wrong value.
    """
    parsers: list[Any] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            _, unknown = parsers[0].parse_known_args(list(flags))
    except SystemExit as error:
        line = message.getvalue().strip().splitlines()[-1].split("error: ")[-1]
        raise ValueError(f"{line}. See the options of Apache Beam and its runners.") from error
    options = PipelineOptions(list(flags))
    if unknown and _runner(options) not in _RUNNERS_WITH_SERVERS:
        raise ValueError(
            f"options must be those of this command or of Apache Beam; got {' '.join(unknown)}. "
            "See --help, and the options of Beam's runner."
        )
    return options


def _runner(options: PipelineOptions) -> str:
    """Name of the runner, as Beam understands it in any spelling."""
    name = (options.view_as(StandardOptions).runner or "direct").lower()
    return name[: -len("runner")] if name.endswith("runner") else name


def run_pipeline(plan: Plan, work_dir: str, skip_bad: bool, options: PipelineOptions) -> Report:
    """Makes all record files of a plan, under temporary names.

    Args:
        plan: what is to be made.
        work_dir: a folder that all workers reach.
        skip_bad: whether to go on behind documents that cannot be read.
        options: of Beam.

    Returns:
        What was read and made; nothing is made where documents cannot be read and are not to be
        skipped.

    Raises:
        PipelineError: the runner failed.
    """
    # The direct runner first looks on the network for a program to do its work, and else gives it
    # to this one.
    runner = FnApiRunner() if _runner(options) == "direct" else None
    pipeline = beam.Pipeline(runner=runner, options=options)
    build_pipeline(pipeline, plan, work_dir, skip_bad)
    try:
        result = pipeline.run()
        state = result.wait_until_finish()
    except Exception as error:  # each runner has its own kinds
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise PipelineError(lines[-1]) from error
    if state != PipelineState.DONE:
        raise PipelineError(f"it ended in the state {state}")
    return read_report(work_dir, plan.chunk_length)
