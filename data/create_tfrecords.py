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

import numpy as np  # noqa: E402

from data.account import Account  # noqa: E402
from data.dataset_config import (  # noqa: E402
    dataset_config,
    dataset_config_path,
    previous_dataset_config,
    write_dataset_config,
)
from data.documents import find_files  # noqa: E402
from data.encoding import EncodedBatch, EncoderSpec  # noqa: E402
from data.manifest import (  # noqa: E402
    Counts,
    Manifest,
    identify,
    manifest_path,
    tokenizer_fingerprint,
    write_manifest,
)
from data.preparation import Plan, Preparation  # noqa: E402
from data.progress import Work, describe_files, work_folder  # noqa: E402
from data.record_flags import build_parser, parse_arguments  # noqa: E402
from data.records import record_files, remove_files  # noqa: E402
from data.separator import parse_separator  # noqa: E402
from data.tokenizers import GPT2_NAME, Tokenizer  # noqa: E402
from utils.files import exists  # noqa: E402

_log = logging.getLogger("create_tfrecords")

_JOB_FORMAT = 2  # of unfinished work; another one cannot be gone on with


def create_records(options: argparse.Namespace) -> Account:
    """Does the whole job.

    Args:
        options: checked options of the command line.

    Returns:
        The account of documents, records and tokens.

    Raises:
        ValueError: the input cannot be read or gives no record, or the output is in use.
    """
    config_path, previous_config = None, {}
    if options.write_dataset_config is not None:  # refused before any work
        config_path = dataset_config_path(options.write_dataset_config or options.name)
        previous_config = previous_dataset_config(config_path, options.overwrite)
    plan, tokenizer = _make_plan(options)
    work = Work(work_folder(options.output_dir, options.name))
    try:
        preparation = _begin(plan, tokenizer, work, options)
        preparation.make()
        account = preparation.account
        _check_not_empty(account, options)
        preparation.seal()
        _publish(preparation, plan, tokenizer, options)
        if config_path is not None:
            content = dataset_config(
                tokenizer,
                options.use_gpt2_tokenizer,
                eos_id=int(plan.separator[-1]),
                output_dir=options.output_dir,
                name=options.name,
                compressed=options.compress,
            )
            write_dataset_config(config_path, content, previous_config)
            _log.info("dataset config: %s", config_path)
        work.remove()
    except BaseException as error:
        _give_up(work, error)
        raise
    return account


def _make_plan(options: argparse.Namespace) -> tuple[Plan, Tokenizer]:
    paths, others = find_files(options.input_dir, options.suffix)
    if others:
        _log.info("%d files of other formats are left out; --suffix adds text files.", others)
    spec = EncoderSpec(
        tokenizer_path=options.encoder_path or GPT2_NAME,
        is_pretrained=options.use_gpt2_tokenizer,
        treat_eot_as_text=options.treat_eot_as_text,
        ftfy=options.ftfy,
        wikitext_detokenize=options.wikitext_detokenize,
    )
    tokenizer = spec.load()
    in_chunks = options.mode == "chunks"
    is_needed = in_chunks or options.write_dataset_config is not None
    if is_needed or options.separator is not None or tokenizer.eos_id is not None:
        separator = parse_separator(options.separator, tokenizer)
    else:
        separator = np.zeros(0, np.int32)
    plan = Plan(
        paths=paths,
        text_key=options.text_key,
        spec=spec,
        name=options.name,
        output_dir=options.output_dir,
        files_per=options.files_per,
        chunk_length=options.chunk_size + 1 if in_chunks else None,
        separator=separator,
        minimum_size=options.minimum_size,
        min_unique_tokens=options.min_unique_tokens,
        compress=options.compress,
        seed=options.seed,
        epochs=options.repack_epochs,
    )
    return plan, tokenizer


def _begin(
    plan: Plan, tokenizer: Tokenizer, work: Work, options: argparse.Namespace
) -> Preparation:
    """Takes up earlier work, or starts anew, and refuses what must not be replaced."""
    job = _job(plan, tokenizer, options)
    if work.is_saved and not options.resume and not options.overwrite:
        raise ValueError(
            f"output_dir must hold no unfinished work on {options.name!r}; got {work.folder}. Give "
            "--resume to go on with it, --overwrite to start again, or another --name."
        )
    if work.is_saved and options.resume:
        work.resume(job)
    else:
        _refuse_previous(options)
        is_again = work.is_begun
        work.start(job)
        if options.resume and is_again:
            _log.info(
                "The work on %r was interrupted before a first state was saved in %s; it starts "
                "again.",
                options.name,
                work.folder,
            )
        elif options.resume:
            _log.info("There is no unfinished work on %r; it starts now.", options.name)
    preparation = Preparation(plan, work, options.processes, options.skip_bad, watch=_with_progress)
    if not preparation.is_published:
        _refuse_previous(options)
    if preparation.account.documents_bad and not options.skip_bad:
        raise ValueError(
            "--skip_bad must be given again, since documents were left out before the "
            f"interruption; got --resume without it and {preparation.account.documents_bad} of "
            "them. Give it, or --overwrite without --resume to start again."
        )
    return preparation


def _record_options(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    """The options that decide which records come out and have no place of their own."""
    return {
        "text_key": plan.text_key,
        "minimum_size": plan.minimum_size,
        "min_unique_tokens": plan.min_unique_tokens,
        "seed": plan.seed,
        "repack_epochs": plan.epochs,
        "treat_eot_as_text": plan.spec.treat_eot_as_text,
        "normalize_with_ftfy": plan.spec.ftfy,
        "normalize_with_wikitext_detokenize": plan.spec.wikitext_detokenize,
    }


def _job(plan: Plan, tokenizer: Tokenizer, options: argparse.Namespace) -> dict[str, Any]:
    """All that decides the bytes of the record files."""
    return {
        "format": _JOB_FORMAT,
        "mode": options.mode,
        "chunk_size": options.chunk_size,
        "separator": plan.separator.tolist(),
        "files_per": plan.files_per,
        "compress": plan.compress,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        **_record_options(plan, options),
        "files": describe_files(plan.paths),
    }


def _publish(
    preparation: Preparation, plan: Plan, tokenizer: Tokenizer, options: argparse.Namespace
) -> None:
    """Gives the record files their names, removes earlier ones, and writes the manifest last."""
    path = manifest_path(plan.output_dir, plan.name)
    if exists(path):  # it would speak of files that are not there any more
        remove_files([path])
    files = set(preparation.writer.close())
    remove_files(set(record_files(plan.output_dir, plan.name)) - files)
    account = preparation.account
    in_chunks = plan.chunk_length is not None
    dropped = {
        "too_small": account.tokens_too_small,
        "few_unique": account.tokens_repetitive,
        "tail": account.tokens_tail,
    }
    manifest = Manifest(
        name=plan.name,
        tokenizer=identify(tokenizer),
        mode=options.mode,
        chunk_size=options.chunk_size if in_chunks else None,
        separator=tuple(plan.separator.tolist()),
        options=_record_options(plan, options) | {"skip_bad": options.skip_bad},
        counts=Counts(
            documents_read=account.documents,
            documents_kept=account.documents_kept,
            documents_dropped={
                "too_small": account.documents_too_small,
                "bad": account.documents_bad,
            },
            records=account.records,
            tokens_read=account.tokens_read,
            tokens_kept=account.tokens_kept,
            tokens_dropped=dropped,
            text_bytes=account.text_bytes,
        ),
        files=preparation.writer.files,
        loss_mask=account.tokens_masked > 0,
    )
    write_manifest(manifest, plan.output_dir)


def _give_up(work: Work, error: BaseException) -> None:
    """Keeps the work for --resume if some is saved and it can come to a good end."""
    if not work.is_saved or isinstance(error, _NoRecords):
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


def _refuse_previous(options: argparse.Namespace) -> None:
    previous = record_files(options.output_dir, options.name)
    if previous and not options.overwrite:
        raise ValueError(
            f"output_dir must hold no records of the name {options.name!r}; got {len(previous)} "
            f"files in {options.output_dir}. Give another --name, or --overwrite to replace them."
        )


class _NoRecords(ValueError):
    """Nothing came out, and nothing would if the work went on."""


def _check_not_empty(account: Account, options: argparse.Namespace) -> None:
    if account.records:
        return
    if account.records_repetitive:
        raise _NoRecords(
            f"at least one record must have {options.min_unique_tokens} different ids; got "
            f"{account.records_repetitive} records with fewer, out of {options.input_dir}. "
            "Give a smaller --min_unique_tokens."
        )
    if options.mode == "chunks" and account.documents_kept:
        raise _NoRecords(
            f"a chunk must be filled with {options.chunk_size + 1} tokens; "
            f"got {account.tokens_tail} tokens in all of {options.input_dir}. "
            "Give more text or a smaller --chunk_size."
        )
    raise _NoRecords(
        f"at least one document must have {max(1, options.minimum_size)} tokens; got "
        f"{account.documents} documents, the longest of {account.longest_document} tokens, in "
        f"{options.input_dir}. Give more text or a smaller --minimum_size."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: arguments without the program name; those of the process if None.

    Returns:
        Exit code: 0 success, 1 a lost process, 2 wrong usage or input, 130 interrupted.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
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
