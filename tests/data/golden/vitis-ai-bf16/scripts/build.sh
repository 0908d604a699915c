#!/usr/bin/env bash
# Builds this package for VEK385 with Vitis AI 6.3 (route compiler-bf16).
# Written by deploykit 0.1.0.
#
# Run it inside the Vitis AI container. The compiler needs the AI Engine licence folder mounted at usr/licenses.
# It goes on after the last good step when it is started again.
set -euo pipefail

PACKAGE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
cd -- "$PACKAGE"
PYTHON="${PYTHON:-python3}"
STAMPS=artifacts/.stamps
mkdir -p "$STAMPS" logs

say() { printf '%s\n' "$*" >&2; }

contents() { # one hash over what a step reads and what it left: the package's own files, and the artifacts
  find . -path ./logs -prune -o -path "./$STAMPS" -prune -o -type f ! -name 'manifest.json*' -print0 \
    | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}

step() { # NAME COMMAND…: run once, log to logs/NAME.log, stamp when it worked
  local name=$1 status=0
  shift
  if [ -e "$STAMPS/$name" ] && [ "$(cat -- "$STAMPS/$name")" = "$(contents)" ]; then
    say "$name: done before"
    return 0
  fi
  say "$name: $*"
  "$@" 2>&1 | tee "logs/$name.log" || status=$?
  if [ "$status" -ne 0 ]; then
    say "error: step $name failed; its log is logs/$name.log"
    say "  next: deploykit diagnose ${DEPLOYKIT_PACKAGE:-$PACKAGE}/logs/$name.log"
    exit 5
  fi
  contents > "$STAMPS/$name"
}

step compile "$PYTHON" scripts/compile.py
say "built: artifacts/cache"
