#!/usr/bin/env bash
# Runs the compiled model on VEK385; arguments go to scripts/run.py (--data FOLDER --out FOLDER).
# Written by deploykit 0.1.0.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# On the board the provider reads the compiled model by its cache key; copy artifacts/cache with the package.
exec "${PYTHON:-python3}" scripts/run.py "$@"
