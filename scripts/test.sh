#!/usr/bin/env bash
# Lint, types and all tests, in an environment that it makes itself.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" \
  requirements-dev.txt requirements-beam.txt requirements-eval.txt

# Pages are tested in a browser, which is no package of Python.
if ! command -v chromium >/dev/null; then
  if ! command -v apt-get >/dev/null || [[ $EUID -ne 0 ]]; then
    say "chromium must be installed for the tests of pages; got none on the path." \
      "Install it, for example with 'sudo apt install chromium'."
    exit 1
  fi
  say "Installing chromium (once) ..."
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    chromium fonts-dejavu-core >&2
fi

"$VENV_PYTHON" -m ruff check .
"$VENV_PYTHON" -m ruff format --check .
"$VENV_PYTHON" -m mypy
"$VENV_PYTHON" -m pytest -n 2 --dist loadfile -q "$@"
