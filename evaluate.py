"""Scores a trained model on tasks: ``python evaluate.py --help`` says which, and how."""

from __future__ import annotations

import os
import sys
from typing import Optional

# TensorFlow's start-up messages would bury ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def _report(error: Exception, code: int) -> int:
    from utils.errors import message

    print(f"evaluate.py: error: {message(error)}", file=sys.stderr)
    return code


def main(argv: Optional[list[str]] = None) -> int:
    """Runs the command line.

    Returns:
        0, 1 (failed run), 2 (usage, config, tasks), or 130 (Ctrl-C).
    """
    from utils.output import escape_what_cannot_be_shown

    words = sys.argv[1:] if argv is None else argv
    debug = "--debug" in words
    escape_what_cannot_be_shown(sys.stdout, sys.stderr)
    try:
        from commands.tasks import score_tasks
        from evaluation.command_line import parse_arguments

        print(score_tasks(parse_arguments(words)), end="")
    except (ValueError, RuntimeError, OSError) as error:
        if debug:
            raise
        return _report(error, 2 if isinstance(error, ValueError) else 1)
    except Exception as error:
        if debug or not type(error).__module__.startswith("tensorflow"):
            raise
        return _report(error, 1)
    except KeyboardInterrupt:
        print("evaluate.py: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
