"""Command line: trains as main.py does, supervised and tracked. ``--help`` lists all flags."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from tracking.database import Database

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # remote folders are read with TensorFlow

USAGE_ERROR, RUN_ERROR = 2, 1


def _database(url: Optional[str]) -> Optional[Database]:
    """The database of ``--mongo_url``, which may be away; one that refuses us is a mistake."""
    if not url:
        return None
    from pymongo.errors import PyMongoError

    from tracking.database import Database

    database = Database(url)
    with contextlib.suppress(PyMongoError):  # the log will tell
        database.check_access()
    return database


def run(argv: list[str]) -> int:
    """Trains as the flags say.

    Returns:
        Exit code of the training process that was the last.

    Raises:
        ValueError: flags or config are unusable.
        OSError: the folder of records cannot be written.
    """
    from configs.load import load_config
    from tracking.command_line import parse_experiment
    from utils.cluster import read_cluster
    from utils.command_line import base_keys

    arguments, words = parse_experiment(argv)
    hosts = read_cluster(arguments, dict(os.environ))  # the child reads it, too
    if hosts is not None and not hosts.is_chief:
        raise ValueError(
            f"run_experiment.py must run on the chief, which has the metrics; got {hosts.here}. "
            "Start main.py there."
        )
    config = load_config(
        arguments.model,
        [*arguments.overrides, *base_keys(arguments)],
        arguments.steps_per_checkpoint,
        mesh_is_fitted=arguments.fit_mesh,
    )

    from tracking.experiment import Experiment
    from tracking.output import Output

    output = Output()
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(logging.INFO)
    database = _database(arguments.mongo_url)
    experiment = Experiment(arguments, config, words, output, database)
    outcome = experiment.run()
    why = f" ({outcome.reason})" if outcome.reason else ""
    print(f"{experiment.record.dir}: {outcome.status}{why}", file=sys.stderr)
    return outcome.code


def main(argv: Optional[list[str]] = None) -> int:
    """Runs the command line.

    Returns:
        0, 1 (failed run), 2 (usage, config), or 128 + the number of the signal that ended it.
    """
    from utils.errors import message

    try:
        return run(sys.argv[1:] if argv is None else argv)
    except ValueError as error:
        print(f"run_experiment.py: error: {message(error)}", file=sys.stderr)
        return USAGE_ERROR
    except OSError as error:
        from utils.files import file_problem

        print(f"run_experiment.py: error: {file_problem(error, 'the record')}", file=sys.stderr)
        return RUN_ERROR
    except KeyboardInterrupt:  # before the training process was started
        print("run_experiment.py: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
