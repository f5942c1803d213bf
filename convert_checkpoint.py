"""Converts checkpoints: ``python convert_checkpoint.py --help`` says which, and how."""

from __future__ import annotations

import logging
import os
import sys
from typing import Optional

# TensorFlow's start-up messages would bury ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def _report(error: Exception, code: int) -> int:
    from utils.errors import message

    print(f"convert_checkpoint.py: error: {message(error)}", file=sys.stderr)
    return code


def main(argv: Optional[list[str]] = None) -> int:
    """Runs the command line.

    Returns:
        0, 1 (files that cannot be read or written), 2 (usage, input), or 130 (Ctrl-C).
    """
    from interop.command_line import convert, parse_arguments
    from utils.files import file_problem
    from utils.output import escape_what_cannot_be_shown

    arguments = sys.argv[1:] if argv is None else argv
    escape_what_cannot_be_shown(sys.stdout, sys.stderr)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    debug = "--debug" in arguments
    if not debug:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        print(convert(parse_arguments(arguments)))
    except (ValueError, RuntimeError) as error:
        if debug:
            raise
        return _report(error, 2 if isinstance(error, ValueError) else 1)
    except OSError as error:
        if debug:
            raise
        return _report(OSError(file_problem(error, "a file")), 1)
    except Exception as error:
        if debug or not type(error).__module__.startswith("tensorflow"):
            raise
        return _report(error, 1)
    except KeyboardInterrupt:
        print("convert_checkpoint.py: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
