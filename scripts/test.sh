#!/usr/bin/env bash
# Lint, types and all tests, in an environment that it makes itself.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" requirements-dev.txt requirements-beam.txt

"$VENV_PYTHON" -m ruff check .
"$VENV_PYTHON" -m ruff format --check .
"$VENV_PYTHON" -m mypy
"$VENV_PYTHON" -m pytest -n 2 --dist loadfile -q "$@"
