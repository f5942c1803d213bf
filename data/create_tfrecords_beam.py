#!/usr/bin/env python3
"""Turns text into record files on many machines: `python data/create_tfrecords_beam.py`.

The options, and the files that come out, are those of data/create_tfrecords.py; the work is an
Apache Beam pipeline (data/beam_pipeline.py), which Dataflow, Flink or Spark can run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    # As in create_tfrecords.py: tokenizers.py of this folder would hide the library.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT / "data"]
    sys.path.insert(0, str(_ROOT))

from data.account import Account  # noqa: E402
from data.record_flags import build_beam_parser, parse_beam_arguments  # noqa: E402
from utils.files import (  # noqa: E402
    file_problem,
    is_remote,
    make_folder,
    missing_folders,
    names_in,
    read_bytes,
    remove_folder,
    tensorflow_errors,
    write_atomically,
)
from utils.output import escape_what_cannot_be_shown  # noqa: E402

_TOKENIZER = "tokenizer.json"  # in the work folder, since workers do not see this machine's files

# Parts of Beam that tell of each step and each process.
_CHATTY = (
    "typehints",
    "runners.worker",
    "runners.portability.fn_api_runner",
    "runners.portability.local_job_service",
)


def create_records(options: argparse.Namespace, beam_flags: Sequence[str]) -> Account:
    """Does the whole job.

    Args:
        options: checked options of the command line.
        beam_flags: options of Beam.

    Returns:
        The account of documents, records and tokens.

    Raises:
        ValueError: Beam is missing, the input cannot be read or gives no record, or the output is
            in use.
        PipelineError: the runner failed.
    """
    _prepare_beam()
    from data.beam_pipeline import parse_pipeline_options, run_pipeline
    from data.input_files import describe_files, refuse_changed_files
    from data.preparation import name_bad
    from data.record_job import RecordJob
    from data.record_writer import RecordWriter

    beam_options = parse_pipeline_options(beam_flags)
    job = RecordJob.from_options(options)
    job.refuse_previous()
    input_files = describe_files(job.plan.paths)
    with _work_folder(options) as folder:
        plan = job.plan
        if not plan.spec.is_pretrained:
            path = os.path.join(folder, _TOKENIZER)
            write_atomically(path, read_bytes(plan.spec.tokenizer_path))
            plan = dataclasses.replace(
                plan, spec=dataclasses.replace(plan.spec, tokenizer_path=path)
            )
        report = run_pipeline(plan, folder, options.skip_bad, beam_options)
        if report.bad and not options.skip_bad:
            raise report.bad[0].error()
        refuse_changed_files(input_files)
        for number, bad in enumerate(report.bad, 1):
            name_bad(bad, number)
        job.refuse_empty(report.account)
        job.refuse_previous()
        with tensorflow_errors(options.output_dir):
            writer = RecordWriter(
                plan.output_dir, plan.name, plan.files_per, work_dir=folder, compress=plan.compress
            )
            writer.adopt(report.account.records)
            job.publish(writer, report.account)
    return report.account


@contextlib.contextmanager
def _work_folder(options: argparse.Namespace) -> Iterator[str]:
    """A folder beside the records, which all workers reach. It is gone in the end."""
    start = f".{options.name}.beam-"
    left = [name for name in names_in(options.output_dir) if name.startswith(start)]
    if left and not options.overwrite:
        raise ValueError(
            f"output_dir must hold no unfinished work on {options.name!r}; got "
            f"{os.path.join(options.output_dir, left[0])}. Wait for the run that it belongs to, or "
            "give --overwrite if there is none, or another --name."
        )
    made = [] if is_remote(options.output_dir) else missing_folders(options.output_dir)
    folder = os.path.join(options.output_dir, start + uuid.uuid4().hex[:8])
    try:
        for name in left:
            remove_folder(os.path.join(options.output_dir, name))
        make_folder(folder)
    except OSError as error:
        raise ValueError(
            f"output_dir must be a folder that can be written to; got {options.output_dir} "
            f"({error.strerror or error}). Give another folder."
        ) from error
    try:
        yield folder
    finally:
        remove_folder(folder)
        for path in made:
            if not os.listdir(path):
                os.rmdir(path)


def _prepare_beam() -> None:
    """Sees to it that Beam can be imported, and that its processes find this project."""
    logging.disable(logging.WARNING)  # it tells which of its extras are not installed
    try:
        import apache_beam  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"apache_beam must be installed; got: {error}. "
            "Install it with: pip install -r requirements-beam.txt"
        ) from error
    finally:
        logging.disable(logging.NOTSET)
    for part in _CHATTY:
        logging.getLogger(f"apache_beam.{part}").setLevel(logging.WARNING)
    logging.getLogger("apache_beam.runners.common").setLevel(logging.CRITICAL)  # tracebacks
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(_ROOT) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, paths)])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: arguments without the program name; those of the process if None.

    Returns:
        Exit code: 0 success, 1 a runner that failed or a full disk, 2 wrong usage or input, 130
        interrupted.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    escape_what_cannot_be_shown(sys.stdout, sys.stderr)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    # 3, since builds with CUDA report harmless errors on every import.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not arguments:
        build_beam_parser().print_help()
        return 0
    try:
        options, beam_flags = parse_beam_arguments(arguments)
        account = create_records(options, beam_flags)
    except ValueError as error:
        print(f"create_tfrecords_beam.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        problem = file_problem(error, options.output_dir)
        print(f"create_tfrecords_beam.py: {problem}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(f"create_tfrecords_beam.py: the pipeline failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("create_tfrecords_beam.py: interrupted; nothing was published.", file=sys.stderr)
        return 130
    print(account.summary(options.repack_epochs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
