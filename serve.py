"""A trained model over HTTP: ``python serve.py --help`` lists what can be set."""

from __future__ import annotations

import os
import sys
from typing import Optional

# TensorFlow's start-up messages would bury ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def _run(argv: list[str]) -> None:
    from commands.server import serve
    from configs.load import load_config
    from serving.server.command_line import parse_arguments
    from utils.run_log import set_up_logging

    arguments = parse_arguments(argv)
    config = load_config(arguments.model, arguments.overrides, mesh_is_fitted=True)
    name = os.path.splitext(os.path.basename(arguments.model))[0]
    set_up_logging(f"{name}-serve", arguments.debug)
    serve(config, arguments)


def main(argv: Optional[list[str]] = None) -> int:
    """Runs the command line.

    Returns:
        0, 1 (failed run), 2 (usage, config), or 130 (Ctrl-C before the server is there).
    """
    from utils.errors import message
    from utils.output import escape_what_cannot_be_shown

    words = sys.argv[1:] if argv is None else argv
    escape_what_cannot_be_shown(sys.stdout, sys.stderr)
    try:
        _run(words)
    except KeyboardInterrupt:
        print("serve.py: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        ours = isinstance(error, (ValueError, RuntimeError, OSError))
        if "--debug" in words or not (ours or type(error).__module__.startswith("tensorflow")):
            raise
        print(f"serve.py: error: {message(error)}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
