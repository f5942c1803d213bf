"""The command line of data/create_tfrecords.py, and of its form for clusters."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Any

from data.documents import DEFAULT_TEXT_KEY
from data.formats import ACCEPTED_SUFFIXES
from data.shuffle import DEFAULT_SEED
from utils.flags import RaisingParser

_log = logging.getLogger("create_tfrecords")

DEFAULT_CHUNK_SIZE = 2048
_TOO_LARGE = 1 << 63
_REPLACED_FLAGS = {
    "--base_dir": "--input_dir",
    "--min_size": "--minimum_size",
    "--no_ftfy": "nothing: text is repaired only when --normalize_with_ftfy is given",
    "--no-ftfy": "nothing: text is repaired only when --normalize_with_ftfy is given",
}


# Of create_tfrecords.py alone; each with what there is on a cluster.
_LOCAL_FLAGS = {
    "--processes": "the options of the runner, such as --direct_num_workers",
    "--resume": "nothing: the runner repeats what failed, and an ended run starts again",
}


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line.

    Returns:
        The parser.
    """
    parser = _build_shared_parser(
        "create_tfrecords.py", "Turns text into TFRecord files for training."
    )
    group = parser.add_argument_group("this machine")
    group.add_argument(
        "--processes",
        type=int,
        default=0,
        metavar="N",
        help="processes that encode; the records do not depend on it (default: 0, all cores)",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on where the same command was interrupted, and make the same records as without "
        "the interruption (default: off)",
    )
    return parser


def build_beam_parser() -> argparse.ArgumentParser:
    """Builds the command line of the form for clusters.

    Returns:
        The parser.
    """
    return _build_shared_parser(
        "create_tfrecords_beam.py",
        "Turns text into TFRecord files for training, as an Apache Beam pipeline: the same files\n"
        "as create_tfrecords.py makes. All further options go to Beam, such as --runner\n"
        "DirectRunner --direct_running_mode multi_processing --direct_num_workers 4.",
    )


def _build_shared_parser(prog: str, description: str) -> argparse.ArgumentParser:
    parser = RaisingParser(
        prog=prog,
        allow_abbrev=False,
        description=description,
        epilog="Accepted inputs: " + " ".join(ACCEPTED_SUFFIXES) + " and those of --suffix.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_input_flags(parser.add_argument_group("input"))
    _add_token_flags(parser.add_argument_group("tokens"))
    _add_order_flags(parser.add_argument_group("order"))
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
    _add(
        group,
        "--text_key",
        default=DEFAULT_TEXT_KEY,
        metavar="KEY",
        help="key of the text in JSON objects (default: %(default)s); objects without it may have "
        "prompt and completion, and only the completion is learned",
    )
    _add(
        group,
        "--skip_bad",
        action="store_true",
        help="leave out documents that cannot be read, count them and name the first "
        "(default: off, they end the work)",
    )
    _add(
        group,
        "--normalize_with_ftfy",
        "--ftfy",
        dest="ftfy",
        action="store_true",
        help="repair wrongly decoded text with ftfy (default: off)",
    )
    _add(
        group,
        "--normalize_with_wikitext_detokenize",
        "--wikitext_detokenize",
        dest="wikitext_detokenize",
        action="store_true",
        help="undo the separated tokens of WikiText (default: off)",
    )


def _add_order_flags(group: argparse._ArgumentGroup) -> None:
    _add(
        group,
        "--seed",
        type=int,
        metavar="N",
        help="shuffle the documents, and the records that they are packed into, with this seed "
        f"(default: keep the order of the input; {DEFAULT_SEED} with --repack_epochs)",
    )
    _add(
        group,
        "--repack_epochs",
        "--n_repack_epochs",
        type=int,
        default=1,
        metavar="EPOCHS",
        help="pack the documents so often, each time in another order, so that records begin and "
        "end elsewhere; in chunks mode (default: %(default)s)",
    )
    _add(
        group,
        "--preserve_data_order",
        action="store_true",
        help="keep the order of the input in --repack_epochs too; each epoch then begins with "
        "what the one before left over (default: off)",
    )
    _add(
        group,
        "--min_unique_tokens",
        type=int,
        default=0,
        metavar="IDS",
        help="drop records with fewer different ids, which unsettle training; 200 suits records "
        "of 2,048 (default: %(default)s, none)",
    )


def _add(group: argparse._ArgumentGroup, *flags: str, **options: Any) -> None:
    """Adds a flag that may be written with dashes between its words, too."""
    spellings = [spelling for flag in flags for spelling in (flag, _dashed(flag))]
    group.add_argument(*dict.fromkeys(spellings), **options)


def _dashed(flag: str) -> str:
    return "--" + flag[2:].replace("_", "-")


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
    _add(
        group,
        "--treat_eot_as_text",
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
    _add(group, "--output_dir", required=True, metavar="DIR", help="folder of the records")
    group.add_argument(
        "--files_per",
        type=int,
        default=100_000,
        metavar="RECORDS",
        help="records per file (default: %(default)s)",
    )
    group.add_argument(
        "--compress",
        action="store_true",
        help="compress each file with gzip; training reads it as it is (default: off)",
    )
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="replace records of this name, unfinished work on them, and the dataset config, that "
        "are there already; an eval_path in it is kept (default: off)",
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
    _refuse_flags(argv, _REPLACED_FLAGS, "is not an option any more")
    options = build_parser().parse_args(list(argv))
    _complete(options)
    return options


def parse_beam_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Reads and checks the command line of the form for clusters.

    Args:
        argv: arguments without the program name.

    Returns:
        The options, and the arguments that are left for Beam.

    Raises:
        ValueError: an option is missing, out of range, replaced, or has no meaning there.
    """
    _refuse_flags(argv, _REPLACED_FLAGS, "is not an option any more")
    _refuse_flags(argv, _LOCAL_FLAGS, "is an option of create_tfrecords.py alone")
    options, others = build_beam_parser().parse_known_args(list(argv))
    _complete(options)
    return options, others


def _refuse_flags(argv: Sequence[str], refused: dict[str, str], why: str) -> None:
    for argument in argv:
        flag = argument.split("=")[0]
        if flag in refused:
            raise ValueError(f"{flag} {why}. Use {refused[flag]}.")


def _complete(options: argparse.Namespace) -> None:
    """Checks options, and sets those whose default depends on others."""
    _check_ranges(options)
    _check_combinations(options)
    if options.chunk_size is None:
        options.chunk_size = DEFAULT_CHUNK_SIZE
    if options.repack_epochs > 1 and options.seed is None and not options.preserve_data_order:
        options.seed = DEFAULT_SEED


def _check_ranges(options: argparse.Namespace) -> None:
    for flag, lowest in (
        ("chunk_size", 1),
        ("files_per", 1),
        ("minimum_size", 0),
        ("min_unique_tokens", 0),
        ("repack_epochs", 1),
        ("seed", 0),
    ):
        value = getattr(options, flag)
        if value is not None and not lowest <= value < _TOO_LARGE:
            raise ValueError(
                f"--{flag} must be at least {lowest}; got {value}. "
                "Give a larger number or leave it out."
                if value < lowest
                else f"--{flag} must be below 2^63; got {value}. Give a smaller number."
            )


def _check_combinations(options: argparse.Namespace) -> None:
    if options.seed is not None and options.preserve_data_order:
        raise ValueError(
            f"--seed must not be given with --preserve_data_order, which shuffles nothing; got "
            f"{options.seed}. Leave out one of them."
        )
    if options.mode == "chunks":
        length = (options.chunk_size or DEFAULT_CHUNK_SIZE) + 1
        if options.min_unique_tokens > length:
            raise ValueError(
                f"--min_unique_tokens must be at most the {length} ids of a record; got "
                f"{options.min_unique_tokens}. Give a smaller number or a larger --chunk_size."
            )
        return
    if options.chunk_size is not None:
        _log.warning("--chunk_size has no effect in --mode documents.")
    if options.repack_epochs > 1:
        raise ValueError(
            "--repack_epochs must be 1 in --mode documents, where nothing is packed; got "
            f"{options.repack_epochs}. Leave it out, and train for several epochs."
        )
