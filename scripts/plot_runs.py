#!/usr/bin/env python3
"""Draws loss, learning rate and throughput of runs: `python scripts/plot_runs.py runs/tiny`.

A run is its folder (model_path) or its record (`runs/7`). One run's pictures are put into its
folder, as loss.png and loss.html; with --out, those of one or several into files of that name.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tracking.plots import names_of, read_curves, write_page, write_png
from utils.flags import ExitingParser, local_folder


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = ExitingParser(prog="plot_runs.py", description="Draws curves of runs.")
    parser.add_argument(
        "run", nargs="+", type=local_folder, help="folder of a run or of its record"
    )
    parser.add_argument(
        "--out", metavar="NAME", help="write NAME.png and NAME.html (default: loss in the folder)"
    )
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the command.

    Args:
        argv: arguments without the program name; those of the process if None.

    Returns:
        0; 1 if a file cannot be written, 2 if an argument is unusable.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if len(arguments.run) > 1 and not arguments.out:
        parser.error("--out must be given with several runs; got none. Add --out NAME.")
    out = arguments.out or os.path.join(arguments.run[0], "loss")
    try:
        names = names_of(arguments.run)
        runs = {name: read_curves(folder) for name, folder in zip(names, arguments.run)}
        title = ", ".join(names)
        for write, path in ((write_png, f"{out}.png"), (write_page, f"{out}.html")):
            write(runs, title, path)
            print(path)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
