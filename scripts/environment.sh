# Sourced by the other scripts: makes `.venv` beside this folder and fills it.
#
#   source environment.sh [requirements file...]
#
# Leaves $ROOT (the project) and $VENV_PYTHON (the interpreter of `.venv`) and
# changes into $ROOT. $PYTHON, when set, names the interpreter to build with.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV_PYTHON="$ROOT/.venv/bin/python"
cd "$ROOT"

say() { printf '%s\n' "$*" >&2; }

# Succeeds when $1 runs, is a version that TensorFlow 2.15 has wheels for, and can make a venv.
# It has to be run: a shim on the path may stand for a Python that is not there.
usable_python() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 11))' \
    >/dev/null 2>&1
}

find_python() {
  local candidate
  if [[ -n "${PYTHON:-}" ]]; then
    if usable_python "$PYTHON"; then
      printf '%s\n' "$PYTHON"
      return
    fi
    say "PYTHON must be a working Python 3.9, 3.10 or 3.11 with the venv module; got $PYTHON." \
      "Unset it or name another interpreter."
    return 1
  fi
  for candidate in python3.11 python3.10 python3.9 python3 python \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.{11,10,9}.*/bin/python; do
    if usable_python "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  say "Python 3.9, 3.10 or 3.11 with the venv module must be installed (TensorFlow 2.15 has no" \
    "other versions); got none on this machine. Install one, for example with" \
    "'apt install python3.11 python3.11-venv' or 'pyenv install 3.11', or name one with" \
    "PYTHON=/path/to/python3.11."
  return 1
}

make_venv() {
  local python
  if usable_python "$VENV_PYTHON"; then
    return
  fi
  python="$(find_python)" || return 1
  say "Making .venv with $("$python" --version 2>&1) ..."
  "$python" -m venv --clear "$ROOT/.venv" >&2
}

# Installs the requirements files given, unless exactly these are installed already. The stamp
# holds their content, and is written last: an interrupted install is done again.
install_requirements() {
  local stamp wanted file arguments=()
  for file in "$@"; do
    arguments+=(-r "$ROOT/$file")
  done
  stamp="$ROOT/.venv/installed-$1.sha256"
  wanted="$(cd "$ROOT" && cat "$@" | "$VENV_PYTHON" -c \
    'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')" || return 1
  if [[ -f "$stamp" && "$(cat "$stamp")" == "$wanted" ]]; then
    return
  fi
  say "Installing $* (once; this takes a few minutes) ..."
  "$VENV_PYTHON" -m pip install --quiet --disable-pip-version-check "${arguments[@]}" >&2 ||
    return 1
  printf '%s\n' "$wanted" >"$stamp"
}

make_venv || exit 1
for requirements in requirements.txt "$@"; do
  install_requirements "$requirements" || exit 1
done
# 3, since builds with CUDA report harmless errors on every import.
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
