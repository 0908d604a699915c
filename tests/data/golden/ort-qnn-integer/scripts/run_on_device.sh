#!/usr/bin/env bash
# Runs the compiled model of this package on the machine it is started on: copy the package to SM8550 first.
#
#     scripts/run_on_device.sh [INPUTS.npz] [-o OUTPUTS.npz]
#
# Written by deploykit 0.1.0. It needs Python with the onnxruntime-qnn wheel of that platform, QAIRT 2.51.0 or newer inside
# (PYTHON names the interpreter). On a Linux x86-64 machine the same call runs the emulator.
set -euo pipefail
exec "${PYTHON:-python3}" "$(dirname -- "${BASH_SOURCE[0]}")/run.py" "$@"
