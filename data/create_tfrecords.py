#!/usr/bin/env python3
"""Turns text into record files for training: `python data/create_tfrecords.py`.

Text is read, encoded and written as a stream; the corpus is never in memory.
The records depend on the input and the options only, not on the number of
processes.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

_ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    # Run as a script: Python put this folder first on the path, where tokenizers.py would hide
    # the library of that name. The root of the project belongs there instead.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT / "data"]
    sys.path.insert(0, str(_ROOT))

from data.dataset_config import (  # noqa: E402
    dataset_config,
    dataset_config_path,
    previous_dataset_config,
    write_dataset_config,
)
from data.documents import ACCEPTED_SUFFIXES, find_files, read_documents  # noqa: E402
from data.encoding import EncoderSpec, encode_texts  # noqa: E402
from data.packing import Account, pack_chunks, pack_documents  # noqa: E402
from data.record_writer import RecordWriter  # noqa: E402
from data.records import record_files, remove_files  # noqa: E402
from data.separator import parse_separator  # noqa: E402
from data.tokenizers import GPT2_NAME  # noqa: E402

_log = logging.getLogger("create_tfrecords")

DEFAULT_CHUNK_SIZE = 2048
_REPLACED_FLAGS = {
    "--base_dir": "--input_dir",
    "--min_size": "--minimum_size",
    "--normalize-with-ftfy": "--ftfy",
    "--normalize-with-wikitext-detokenize": "--wikitext-detokenize",
    "--no_ftfy": "nothing: text is repaired only when --ftfy is given",
    "--no-ftfy": "nothing: text is repaired only when --ftfy is given",
}


class _Parser(argparse.ArgumentParser):
    """Reports a usage error as a ValueError, in one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}. See {self.prog} --help.")


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line.

    Returns:
        The parser.
    """
    parser = _Parser(
        prog="create_tfrecords.py",
        allow_abbrev=False,
        description="Turns text into TFRecord files for training.",
        epilog="Accepted inputs: " + " ".join(ACCEPTED_SUFFIXES) + " and those of --suffix.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_input_flags(parser.add_argument_group("input"))
    _add_token_flags(parser.add_argument_group("tokens"))
    _add_output_flags(parser.add_argument_group("output"))
    return parser


def _add_input_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--input_dir",
        required=True,
        metavar="PATH",
        help="folder, read with its subfolders, or a single file",
    )
    group.add_argument(
        "--suffix",
        action="append",
        default=[],
        metavar=".EXT",
        help="also read files with this ending as text, one document each; may be repeated",
    )
    group.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="shuffle the order of the input files with this seed (default: natural order)",
    )
    group.add_argument(
        "--ftfy",
        action="store_true",
        help="repair wrongly decoded text with ftfy (default: off)",
    )
    group.add_argument(
        "--wikitext-detokenize",
        "--wikitext_detokenize",
        action="store_true",
        help="undo the separated tokens of WikiText (default: off)",
    )


def _add_token_flags(group: argparse._ArgumentGroup) -> None:
    tokenizer = group.add_mutually_exclusive_group(required=True)
    tokenizer.add_argument(
        "--use_gpt2_tokenizer", action="store_true", help="use the GPT-2 vocabulary"
    )
    tokenizer.add_argument(
        "--encoder_path", metavar="FILE", help="use this tokenizer JSON file instead"
    )
    group.add_argument(
        "--separator",
        metavar="IDS_OR_TEXT",
        help="put after each document in chunks mode, and the eos_id of the dataset config: ids "
        "such as '[0]' or '0,1', or a text to encode (default: the tokenizer's end of text)",
    )
    group.add_argument(
        "--treat_eot_as_text",
        "--treat-eot-as-text",
        action="store_true",
        help="encode special tokens found in a text, such as <|endoftext|>, as ordinary "
        "characters (default: off, as their own id)",
    )
    group.add_argument(
        "--minimum_size",
        type=int,
        default=1,
        metavar="TOKENS",
        help="drop documents with fewer tokens (default: %(default)s)",
    )
    group.add_argument(
        "--processes",
        type=int,
        default=0,
        metavar="N",
        help="processes that encode; the records do not depend on it (default: 0, all cores)",
    )


def _add_output_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mode",
        choices=("documents", "chunks"),
        default="documents",
        help="documents: one record per document; chunks: documents joined and cut into records "
        "of equal length (default: %(default)s)",
    )
    group.add_argument(
        "--chunk_size",
        type=int,
        metavar="TOKENS",
        help="context length n_ctx in chunks mode; a record holds one id more "
        f"(default: {DEFAULT_CHUNK_SIZE})",
    )
    group.add_argument("--name", required=True, help="first part of every file name")
    group.add_argument("--output_dir", required=True, metavar="DIR", help="folder of the records")
    group.add_argument(
        "--files_per",
        type=int,
        default=100_000,
        metavar="RECORDS",
        help="records per file (default: %(default)s)",
    )
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="replace records of this name, and the dataset config, that are there already; an "
        "eval_path in it is kept (default: off)",
    )
    group.add_argument(
        "--write_dataset_config",
        nargs="?",
        const="",
        metavar="NAME",
        help="also write configs/dataset_configs/NAME.json, or the file NAME if it ends in .json "
        "(default: off; NAME: the value of --name)",
    )


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads and checks the command line.

    Args:
        argv: arguments without the program name.

    Returns:
        The options.

    Raises:
        ValueError: an option is unknown, missing, out of range or replaced.
    """
    for argument in argv:
        flag = argument.split("=")[0]
        if flag in _REPLACED_FLAGS:
            raise ValueError(f"{flag} is not an option any more. Use {_REPLACED_FLAGS[flag]}.")
    options = build_parser().parse_args(list(argv))
    if options.mode == "documents":
        if options.chunk_size is not None:
            _log.warning("--chunk_size has no effect in --mode documents.")
        if options.separator is not None and options.write_dataset_config is None:
            _log.warning("--separator has no effect in --mode documents.")
    if options.chunk_size is None:
        options.chunk_size = DEFAULT_CHUNK_SIZE
    for flag, lowest in (("chunk_size", 1), ("files_per", 1), ("minimum_size", 0)):
        if getattr(options, flag) < lowest:
            raise ValueError(
                f"--{flag} must be at least {lowest}; got {getattr(options, flag)}. "
                "Give a larger number or leave it out."
            )
    return options


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
    paths, others = find_files(options.input_dir, options.suffix, options.seed)
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
    separator = None
    if options.mode == "chunks" or config_path is not None:
        separator = parse_separator(options.separator, tokenizer)
    previous = _previous_records(options)
    account = Account()
    texts = _with_progress(read_documents(paths), account)
    documents = encode_texts(texts, spec, options.processes)
    if options.mode == "documents":
        records = pack_documents(documents, options.minimum_size, account)
    else:
        assert separator is not None
        length = options.chunk_size + 1
        records = pack_chunks(documents, length, separator, options.minimum_size, account)
    with RecordWriter(options.output_dir, options.name, options.files_per) as writer:
        for ids in records:
            writer.write(ids)
        _check_not_empty(account, options)
        remove_files(previous)
    if config_path is not None:
        assert separator is not None
        content = dataset_config(
            tokenizer,
            options.use_gpt2_tokenizer,
            eos_id=int(separator[-1]),
            output_dir=options.output_dir,
            name=options.name,
        )
        write_dataset_config(config_path, content, previous_config)
        _log.info("dataset config: %s", config_path)
    return account


def _with_progress(texts: Iterable[str], account: Account) -> Iterator[str]:
    from tqdm import tqdm

    # None: no bar where stderr is no terminal.
    with tqdm(texts, unit=" documents", disable=None, mininterval=0.5) as bar:
        for text in bar:
            yield text
            bar.set_postfix_str(f"{account.tokens_read:,} tokens", refresh=False)


def _previous_records(options: argparse.Namespace) -> list[str]:
    previous = record_files(options.output_dir, options.name)
    if previous and not options.overwrite:
        raise ValueError(
            f"output_dir must hold no records of the name {options.name!r}; got {len(previous)} "
            f"files in {options.output_dir}. Give another --name, or --overwrite to replace them."
        )
    return previous


def _check_not_empty(account: Account, options: argparse.Namespace) -> None:
    if account.records:
        return
    if options.mode == "chunks" and account.documents > account.documents_dropped:
        raise ValueError(
            f"a chunk must be filled with {options.chunk_size + 1} tokens; "
            f"got {account.tokens_tail} tokens in all of {options.input_dir}. "
            "Give more text or a smaller --chunk_size."
        )
    raise ValueError(
        f"at least one document must have {max(1, options.minimum_size)} tokens; got "
        f"{account.documents} documents, the longest of {account.longest_document} tokens, in "
        f"{options.input_dir}. Give more text or a smaller --minimum_size."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: arguments without the program name; those of the process if None.

    Returns:
        Exit code: 0 success, 2 wrong usage or input, 130 interrupted.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    # 3, since builds with CUDA report harmless errors on every import.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if not arguments:
        build_parser().print_help()
        return 0
    try:
        account = create_records(parse_arguments(arguments))
    except ValueError as error:
        print(f"create_tfrecords.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("create_tfrecords.py: interrupted; nothing was written.", file=sys.stderr)
        return 130
    print(account.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
