#!/usr/bin/env bash
# Trains, evaluates and samples a small model on this machine, from nothing but Python.
# What is there already is reused: a second run goes on from the checkpoint.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
SECONDS=0
MODEL_PATH="$ROOT/runs/tiny"
PROMPT="$ROOT/datasets/stdlib/prompt.txt"

step() { printf '\n== %s\n' "$*"; }

step "Records from the sources of Python's standard library"
"$VENV_PYTHON" scripts/prepare_stdlib.py

step "Training (continues from a checkpoint if there is one)"
"$VENV_PYTHON" main.py --model tiny --steps_per_checkpoint 40

step "Evaluation on files held out"
"$VENV_PYTHON" main.py --model tiny --eval

step "Generated text"
printf 'import os\nimport sys\n\n\ndef main(' >"$PROMPT"
"$VENV_PYTHON" main.py --model tiny --predict --prompt "$PROMPT" --max_new_tokens 60 --seed 1

step "Curves"
"$VENV_PYTHON" scripts/plot_runs.py "$MODEL_PATH"

cat <<END

Done in $SECONDS s after the installation.
  records      $ROOT/datasets/stdlib
  run          $MODEL_PATH (checkpoints, metrics.jsonl, TensorBoard)
  curves       $MODEL_PATH/loss.png, loss.html
  config       $ROOT/configs/tiny.json
END
