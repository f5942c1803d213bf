"""The flag that names the database."""

import argparse
import os
from typing import Any


def add_mongo_flag(parser: Any) -> None:
    """Adds --mongo_url to a parser or a group of flags.

    The default is not shown with its value, which holds a password.
    """
    assert isinstance(parser, argparse._ActionsContainer)
    parser.add_argument(
        "--mongo_url",
        default=os.environ.get("MONGO_URL") or None,
        metavar="URL",
        help="MongoDB of the runs, mongodb://USER:PASSWORD@HOST:PORT/DATABASE; from the variable "
        "it is in no list of processes (default: the variable MONGO_URL, else none)",
    )
