#!/usr/bin/env bash
# Lint, types and all tests, in an environment that it makes itself.
set -euo pipefail

# Meanwhile: without Omniboard only the test that looks at a run there is left out.
OMNIBOARD_LOG="$(mktemp)"
bash "$(dirname "${BASH_SOURCE[0]}")/install_omniboard.sh" 2>"$OMNIBOARD_LOG" &
OMNIBOARD=$!

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" \
  requirements-dev.txt requirements-beam.txt requirements-eval.txt requirements-mongod.txt

# Pages are tested in a browser, docker-compose.yml by Compose's parser: no packages of Python.
missing=()
for tool in chromium docker-compose; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
if ((${#missing[@]})); then
  if ! command -v apt-get >/dev/null || [[ $EUID -ne 0 ]]; then
    say "${missing[*]} must be installed for the tests; got none on the path." \
      "Install it, for example with 'sudo apt install ${missing[*]}'."
    exit 1
  fi
  say "Installing ${missing[*]} (once) ..."
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" fonts-dejavu-core >&2
fi

"$VENV_PYTHON" -m ruff check .
"$VENV_PYTHON" -m ruff format --check .
"$VENV_PYTHON" -m mypy
wait "$OMNIBOARD" || say "Omniboard was not installed: $(head -n 2 "$OMNIBOARD_LOG" | tr "\n" " ")"
"$VENV_PYTHON" -m pytest -n 2 --dist loadfile -q "$@"
