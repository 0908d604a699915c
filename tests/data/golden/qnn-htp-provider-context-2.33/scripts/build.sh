#!/usr/bin/env bash
# Compiles this package for SM8650 with onnxruntime-qnn 1.22.0, on Windows on ARM.
#
#     scripts/build.sh            PYTHON names the interpreter that has the wheel; default: python3
#
# Written by deploykit 0.1.0. Exit status: 0 compiled; 1 the provider refuses the model; 5 another wheel or none.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
mkdir -p logs artifacts/.stamps
rm -f artifacts/.stamps/compile

status=0
"${PYTHON:-python3}" scripts/compile.py > logs/compile.log 2>&1 || status=$?
cat -- logs/compile.log
if [ "$status" -ne 0 ]; then
    echo "build.sh: not compiled; see logs/compile.log" >&2
    exit "$status"
fi
touch artifacts/.stamps/compile
