#!/usr/bin/env python3
"""Turns text into record files for training: `python data/create_tfrecords.py`.

The corpus is never in memory: text is read, encoded and written as a stream,
and sorted on disk where it is to be shuffled (data/preparation.py). The records
depend on the input and the options only, not on the number of processes or on
interruptions.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    # Run as a script: Python put this folder first on the path, where tokenizers.py would hide
    # the library of that name. The root of the project belongs there instead.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT / "data"]
    sys.path.insert(0, str(_ROOT))

from data.account import Account  # noqa: E402
from data.encoding import EncodedBatch  # noqa: E402
from data.input_files import InputChanged, describe_files, refuse_changed_files  # noqa: E402
from data.manifest import tokenizer_fingerprint  # noqa: E402
from data.preparation import Preparation  # noqa: E402
from data.progress import Work, work_folder  # noqa: E402
from data.record_flags import build_parser, parse_arguments  # noqa: E402
from data.record_job import NoRecords, RecordJob  # noqa: E402
from utils.files import file_problem, tensorflow_errors  # noqa: E402
from utils.output import escape_what_cannot_be_shown  # noqa: E402

_log = logging.getLogger("create_tfrecords")

_JOB_FORMAT = 3  # of unfinished work; another one cannot be gone on with


def create_records(options: argparse.Namespace) -> Account:
    """Does the whole job.

    Args:
        options: checked options of the command line.

    Returns:
        The account of documents, records and tokens.

    Raises:
        ValueError: the input cannot be read or gives no record, or the output is in use.
        OSError: what is made cannot be written.
    """
    job = RecordJob.from_options(options)
    described = _describe(job)
    work = Work(work_folder(options.output_dir, options.name))
    try:
        preparation = _begin(job, described, work)
        with tensorflow_errors(options.output_dir):
            preparation.make()
            refuse_changed_files(described["files"])
            account = preparation.account
            job.refuse_empty(account)
            preparation.seal()
            job.publish(preparation.writer, account)
        work.remove()
    except BaseException as error:
        _give_up(work, error)
        raise
    return account


def _begin(job: RecordJob, described: dict[str, Any], work: Work) -> Preparation:
    """Takes up earlier work, or starts anew, and refuses what must not be replaced."""
    options = job.options
    if work.is_saved and not options.resume and not options.overwrite:
        raise ValueError(
            f"output_dir must hold no unfinished work on {options.name!r}; got {work.folder}. Give "
            "--resume to go on with it, --overwrite to start again, or another --name."
        )
    if work.is_saved and options.resume:
        work.resume(described)
    else:
        job.refuse_previous()
        is_again = work.is_begun
        work.start(described)
        if options.resume and is_again:
            _log.info(
                "The work on %r was interrupted before a first state was saved in %s; it starts "
                "again.",
                options.name,
                work.folder,
            )
        elif options.resume:
            _log.info("There is no unfinished work on %r; it starts now.", options.name)
    preparation = Preparation(
        job.plan, work, options.processes, options.skip_bad, watch=_with_progress
    )
    if not preparation.is_published:
        job.refuse_previous()
    if preparation.account.documents_bad and not options.skip_bad:
        raise ValueError(
            "--skip_bad must be given again, since documents were left out before the "
            f"interruption; got --resume without it and {preparation.account.documents_bad} of "
            "them. Give it, or --overwrite without --resume to start again."
        )
    return preparation


def _describe(job: RecordJob) -> dict[str, Any]:
    """All that decides the bytes of the record files."""
    return {
        "format": _JOB_FORMAT,
        "mode": job.options.mode,
        "chunk_size": job.options.chunk_size,
        "separator": job.plan.separator.tolist(),
        "files_per": job.plan.files_per,
        "compress": job.plan.compress,
        "tokenizer": tokenizer_fingerprint(job.tokenizer),
        **job.record_options,
        "files": describe_files(job.plan.paths),
    }


def _give_up(work: Work, error: BaseException) -> None:
    """Keeps the work for --resume if some is saved and it can come to a good end."""
    if not work.is_saved or isinstance(error, (NoRecords, InputChanged)):
        work.remove()
    elif work.is_held:
        work.release()
        _log.info("What is done is kept in %s; --resume goes on with it.", work.folder)


def _with_progress(batches: Iterable[EncodedBatch], account: Account) -> Iterator[EncodedBatch]:
    from tqdm import tqdm

    # None: no bar where stderr is no terminal.
    with tqdm(initial=account.documents, unit=" documents", disable=None, mininterval=0.5) as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch.ids) + len(batch.bad))
            bar.set_postfix_str(f"{account.tokens_read:,} tokens", refresh=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: arguments without the program name; those of the process if None.

    Returns:
        Exit code: 0 success, 1 a lost process or a full disk, 2 wrong usage or input, 130
        interrupted.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    escape_what_cannot_be_shown(sys.stdout, sys.stderr)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    # 3, since builds with CUDA report harmless errors on every import.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not arguments:
        build_parser().print_help()
        return 0
    try:
        options = parse_arguments(arguments)
        account = create_records(options)
    except ValueError as error:
        print(f"create_tfrecords.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        problem = file_problem(error, options.output_dir)
        print(f"create_tfrecords.py: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("create_tfrecords.py: interrupted; no record file was written.", file=sys.stderr)
        return 130
    except BrokenExecutor:
        print(
            "create_tfrecords.py: all processes must live to the end; got one that was ended from "
            "outside, perhaps for lack of memory. Give a smaller --processes.",
            file=sys.stderr,
        )
        return 1
    print(account.summary(options.repack_epochs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
