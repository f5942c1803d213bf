#!/usr/bin/env python3
"""Lists local records of runs: `python scripts/list_runs.py 'val_loss < 3' 'n_layer = 12'`.

Conditions are on metrics (their last values), keys of the config, and id, name, status, started,
result and step. Without any, all runs are listed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tracking.command_line import DEFAULT_RUNS_DIR
from tracking.run_table import as_text, fields_in, filter_rows, read_rows, sort_rows
from utils.flags import ExitingParser, local_folder

COLUMNS = ("id", "status", "name", "step", "loss", "val_loss", "started")


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = ExitingParser(prog="list_runs.py", description="Lists local records of runs.")
    parser.add_argument("condition", nargs="*", help="such as 'val_loss < 3'")
    parser.add_argument(
        "--runs_dir", type=local_folder, default=DEFAULT_RUNS_DIR, help="folder of the records"
    )
    parser.add_argument("--sort", default="id", metavar="FIELD", help="smallest first")
    parser.add_argument("--columns", nargs="+", default=[], metavar="FIELD", help="further columns")
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the command.

    Args:
        argv: arguments without the program name; those of the process if None.

    Returns:
        0, or 2 if an argument is unusable.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        rows = filter_rows(read_rows(arguments.runs_dir), arguments.condition)
        if rows:
            rows = sort_rows(rows, arguments.sort)
    except ValueError as error:
        parser.error(str(error))
    wanted = [*COLUMNS, *fields_in(arguments.condition), *arguments.columns]
    print(as_text(rows, list(dict.fromkeys(wanted))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
