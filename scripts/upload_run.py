#!/usr/bin/env python3
"""Brings local records of runs into MongoDB: `python scripts/upload_run.py runs/7`.

For runs whose database was away, or that had none. What is there already is brought up to date.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tracking.mongo_flag import add_mongo_flag
from utils.flags import ExitingParser, local_folder


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the command.

    Args:
        argv: arguments without the program name; those of the process if None.

    Returns:
        0; 1 if the database or a record cannot be reached, 2 if an argument is unusable.
    """
    parser = ExitingParser(prog="upload_run.py", description="Brings records into MongoDB.")
    parser.add_argument(
        "record", nargs="+", type=local_folder, help="folder of a record, such as runs/7"
    )
    add_mongo_flag(parser)
    arguments = parser.parse_args(argv)
    if not arguments.mongo_url:
        parser.error("--mongo_url must be given; got none. Write it, or set MONGO_URL.")

    from pymongo.errors import PyMongoError

    from tracking.database import Database
    from tracking.mirror import Mirror

    try:
        with Database(arguments.mongo_url) as database:
            for folder in arguments.record:
                number = Mirror(os.path.normpath(folder), database).update()
                print(f"{folder}: run {number} in {database.name}")
    except ValueError as error:
        parser.error(str(error))
    except (PyMongoError, OSError) as error:
        print(f"{parser.prog}: error: {str(error).partition(', Timeout')[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
