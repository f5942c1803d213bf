#!/usr/bin/env bash
# Installs Omniboard into tools/omniboard/node_modules, in the versions of its lockfile, once.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../tools/omniboard"
INSTALLED=node_modules/.installed-package-lock.json

if cmp -s package-lock.json "$INSTALLED"; then
  exit
fi
if ! command -v npm >/dev/null; then
  printf '%s\n' "npm must be installed for Omniboard; got none on the path. Install Node.js, for" \
    "example with 'sudo apt install nodejs npm'." >&2
  exit 1
fi
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2
rm -rf node_modules/omniboard/web/node_modules # two thirds of all; the page is there as built
cp package-lock.json "$INSTALLED"
