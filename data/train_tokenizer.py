#!/usr/bin/env python3
"""Makes a tokenizer out of text: `python data/train_tokenizer.py`.

Text is read as a stream, in all formats that data/create_tfrecords.py reads. The same documents
give the same tokenizer, whatever their format and order.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):
    # Run as a script: Python put this folder first on the path, where tokenizers.py would hide
    # the library of that name. The root of the project belongs there instead.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT / "data"]
    sys.path.insert(0, str(_ROOT))

from data.bpe_training import SPECIAL_TOKENS, smallest_size, train_bpe  # noqa: E402
from data.documents import (  # noqa: E402
    DEFAULT_TEXT_KEY,
    BadDocument,
    find_files,
    is_text,
    read_keyed_documents,
)
from data.formats import ACCEPTED_SUFFIXES  # noqa: E402
from data.input_files import describe_files, refuse_changed_files  # noqa: E402
from data.tokenizers import Tokenizer  # noqa: E402
from utils.files import exists, file_problem, is_remote, write_atomically  # noqa: E402
from utils.flags import RaisingParser  # noqa: E402
from utils.output import escape_what_cannot_be_shown  # noqa: E402

_log = logging.getLogger("train_tokenizer")

FILE_NAME = "byte-level-bpe.tokenizer.json"
DEFAULT_VOCAB_SIZE = 50257  # GPT-2's
LARGEST_VOCAB_SIZE = 1 << 24  # memory for it is taken before the first merge
_TOO_LARGE = 1 << 63
_SPLIT = 128  # what n_vocab is to be a multiple of, so that common layouts can split it
_SECONDS_BETWEEN_LINES = 30
_BAD_SHOWN = 10


@dataclass
class TextRead:
    """How much text was read.

    Attributes:
        documents: documents, the last perhaps in part.
        text_bytes: of their text in UTF-8.
        skipped: documents that could not be read.
    """

    documents: int = 0
    text_bytes: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        """The numbers, for people."""
        skipped = f", {self.skipped:,} bad documents skipped" if self.skipped else ""
        return f"{self.documents:,} documents, {self.text_bytes:,} bytes of text{skipped}"


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line.

    Returns:
        The parser.
    """
    parser = RaisingParser(
        prog="train_tokenizer.py",
        allow_abbrev=False,
        description=f"Trains a byte-level BPE tokenizer and writes {FILE_NAME}.",
        epilog="Accepted inputs: " + " ".join(ACCEPTED_SUFFIXES) + " and that of --file_type.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--input_dir",
        "--base_dir",
        required=True,
        metavar="PATH",
        help="folder of the text, read with its subfolders, or a single file",
    )
    parser.add_argument(
        "--output_dir", required=True, metavar="DIR", help=f"folder of the new {FILE_NAME}"
    )
    parser.add_argument(
        "--file_type",
        metavar="EXT",
        help="read only files with this ending, such as txt or jsonl.zst; files with an ending "
        "that is no format are read as text, such as py (default: all accepted formats)",
    )
    parser.add_argument(
        "--text_key",
        default=DEFAULT_TEXT_KEY,
        metavar="KEY",
        help="key of the text in JSON; objects without it may have prompt and completion "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--skip_bad",
        action="store_true",
        help="leave out documents that cannot be read, count them and name the first "
        "(default: off, the first one is an error)",
    )
    parser.add_argument(
        "--vocab_size",
        type=int,
        default=DEFAULT_VOCAB_SIZE,
        metavar="IDS",
        help="ids, special tokens and the 256 bytes included (default: %(default)s)",
    )
    parser.add_argument(
        "--min_frequency",
        type=int,
        default=2,
        metavar="N",
        help="join two tokens only if they stand together as often as this (default: %(default)s)",
    )
    parser.add_argument(
        "--special_token",
        action="append",
        default=[],
        metavar="TOKEN",
        help="another special token, with an id after those of "
        f"{' and '.join(SPECIAL_TOKENS)}, which are 0 and 1; may be repeated (default: none)",
    )
    parser.add_argument(
        "--max_bytes",
        type=int,
        metavar="BYTES",
        help="stop reading after so much text, which is the text of the first files "
        "(default: no limit)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help=f"replace {FILE_NAME} if it is there already (default: off)",
    )
    return parser


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads and checks the command line.

    Args:
        argv: arguments without the program name.

    Returns:
        The options; ``special_token`` holds all special tokens.

    Raises:
        ValueError: an option is unknown, missing or out of range.
    """
    options = build_parser().parse_args(list(argv))
    for token in options.special_token:
        if not is_text(token):
            raise ValueError(
                f"--special_token must be text in UTF-8; got {token!r}. Give another name."
            )
    if too_short := [token for token in options.special_token if len(token) < 2]:
        raise ValueError(
            "--special_token must have two characters or more, since those of one stand for bytes; "
            f"got {too_short[0]!r}. Give a longer name, such as <|name|>."
        )
    options.special_token = list(dict.fromkeys((*SPECIAL_TOKENS, *options.special_token)))
    smallest = smallest_size(options.special_token)
    if options.vocab_size < smallest:
        raise ValueError(
            f"--vocab_size must be at least {smallest}, for 256 bytes and "
            f"{len(options.special_token)} special tokens; got {options.vocab_size}. "
            "Give a larger number."
        )
    if options.vocab_size > LARGEST_VOCAB_SIZE:
        raise ValueError(
            f"--vocab_size must be at most {LARGEST_VOCAB_SIZE}; got {options.vocab_size}. Give a "
            "smaller number."
        )
    for flag in ("min_frequency", "max_bytes"):
        value = getattr(options, flag)
        if value is not None and not 1 <= value < _TOO_LARGE:
            raise ValueError(f"--{flag} must be from 1 to 2^63 - 1; got {value}. Leave it out.")
    return options


def make_tokenizer(options: argparse.Namespace) -> tuple[str, Tokenizer, TextRead]:
    """Does the whole job.

    Args:
        options: of ``parse_arguments``.

    Returns:
        Path of the tokenizer, the tokenizer, and how much text made it.

    Raises:
        ValueError: the input cannot be read or is empty, or the output is in use.
    """
    path = _output_path(options)
    files = _input_files(options)
    read = TextRead()
    texts = _limited(_texts_of(files, options, read), options.max_bytes, read)
    backend = train_bpe(texts, options.vocab_size, options.min_frequency, options.special_token)
    if not read.text_bytes:
        raise ValueError(
            f"input_dir must hold text; got {read} in {options.input_dir}. Give another folder."
        )
    tokenizer = Tokenizer(backend, path)
    try:
        write_atomically(path, tokenizer.to_json().encode())
    except OSError as error:
        raise _unwritable(options.output_dir, error.strerror or str(error)) from error
    return path, tokenizer, read


def _output_path(options: argparse.Namespace) -> str:
    """Where the tokenizer will be, made sure of before any work."""
    path = os.path.join(options.output_dir, FILE_NAME)
    if exists(path) and not options.overwrite:
        raise ValueError(
            f"output_dir must hold no tokenizer yet; got {path}. Give another --output_dir, or "
            "--overwrite to replace it. Records that it made become useless then."
        )
    if not is_remote(path):
        try:
            os.makedirs(options.output_dir, exist_ok=True)
        except OSError as error:
            raise _unwritable(options.output_dir, error.strerror or str(error)) from error
        if not os.access(options.output_dir, os.W_OK):
            raise _unwritable(options.output_dir, "Permission denied")
    return path


def _unwritable(output_dir: str, why: str) -> ValueError:
    return ValueError(
        f"output_dir must be a folder that can be written to; got {output_dir} ({why}). "
        "Give another folder."
    )


def _input_files(options: argparse.Namespace) -> list[str]:
    if options.file_type is None:
        files, others = find_files(options.input_dir)
        if others:
            _log.info("%d files of other formats are left out; see --file_type.", others)
        return files
    ending = f".{options.file_type.lstrip('.')}"
    files = [file for file in find_files(options.input_dir, [ending])[0] if file.endswith(ending)]
    if not files:
        raise ValueError(
            f"input_dir must hold at least one file with the ending of --file_type; got none with "
            f"{ending} in {options.input_dir}. Correct or leave out --file_type."
        )
    return files


def _texts_of(files: Sequence[str], options: argparse.Namespace, read: TextRead) -> Iterator[str]:
    """Reads all documents; on a terminal a bar shows how much of the files is done."""
    from tqdm import tqdm

    described = describe_files(files)
    sizes = [size for _, size, _ in described]
    # None: no bar where stderr is no terminal.
    with tqdm(total=sum(sizes), unit="B", unit_scale=True, disable=None) as bar:
        for file, size, before in zip(files, sizes, described):
            bar.set_postfix_str(os.path.basename(file), refresh=False)
            for document in read_keyed_documents([file], options.text_key):
                if isinstance(document, BadDocument):
                    _skip(document, options, read)
                    continue
                read.documents += 1
                if document.prompt is not None:  # its tokens never join with the completion's
                    yield document.prompt
                yield document.text
            refuse_changed_files([before])
            bar.update(size)


def _skip(document: BadDocument, options: argparse.Namespace, read: TextRead) -> None:
    if not options.skip_bad:
        raise document.error()
    if read.skipped < _BAD_SHOWN:
        _log.warning("skipped: %s", document)
    elif read.skipped == _BAD_SHOWN:
        _log.warning("more bad documents are counted, not named")
    read.skipped += 1


def _limited(texts: Iterable[str], max_bytes: int | None, read: TextRead) -> Iterator[str]:
    """Passes texts on up to a limit, counts them, and says from time to time how many."""
    said = time.monotonic()
    for text in texts:
        encoded = text.encode()
        if max_bytes is not None and read.text_bytes + len(encoded) > max_bytes:
            encoded = encoded[: max_bytes - read.text_bytes]
            text = encoded.decode(errors="ignore")  # without the half character at the end
        read.text_bytes += len(encoded)
        yield text
        if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            _log.info("%s read", read)
        if max_bytes is not None and read.text_bytes >= max_bytes:
            break
    _log.info("%s read; joining tokens now", read)


def summary(path: str, tokenizer: Tokenizer, read: TextRead, options: argparse.Namespace) -> str:
    """Says what was made and how to use it.

    Args:
        path: of the tokenizer.
        tokenizer: the tokenizer.
        read: the text that it was made of.
        options: what was asked for.

    Returns:
        Lines for a person, the last of which names the file.
    """
    size, specials = tokenizer.size, options.special_token
    merges = size - smallest_size(specials)
    lines = [
        f"text: {read}",
        f"vocabulary: {size:,} ids = {len(specials)} special + 256 bytes + {merges:,} joined",
        "special tokens: " + " ".join(f"{token} {n}" for n, token in enumerate(specials)),
    ]
    if size < options.vocab_size:
        lines.append(
            f"The vocabulary is smaller than --vocab_size {options.vocab_size:,}: no other two "
            f"tokens of the text stand together {options.min_frequency:,} times or more. It works "
            "as it is; for a larger one give more text or a lower --min_frequency."
        )
    rounded = -(-size // _SPLIT) * _SPLIT
    if rounded != size:
        lines.append(
            f"n_vocab of a model may be larger: {rounded:,} is the next multiple of {_SPLIT}, so "
            "that a layout can split the vocabulary."
        )
    lines.append(
        f"Use it: python data/create_tfrecords.py --encoder_path {path} …; the dataset config that "
        "--write_dataset_config makes names it to training"
    )
    return "\n".join([*lines, f"tokenizer: {path} ({size:,} ids)"])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: arguments without the program name; those of the process if None.

    Returns:
        Exit code: 0 success, 1 a file system that fails, 2 wrong usage or input, 130 interrupted.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    escape_what_cannot_be_shown(sys.stdout, sys.stderr)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if not arguments:
        build_parser().print_help()
        return 0
    try:
        options = parse_arguments(arguments)
        print(summary(*make_tokenizer(options), options))
    except ValueError as error:
        print(f"train_tokenizer.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        problem = file_problem(error, options.input_dir)
        print(f"train_tokenizer.py: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("train_tokenizer.py: interrupted; nothing was written.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
