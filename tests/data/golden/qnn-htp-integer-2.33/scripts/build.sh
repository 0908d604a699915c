#!/usr/bin/env bash
# Builds this package for SM8650 with QAIRT 2.33 (route legacy-complete).
# Written by deploykit 0.1.0. It needs the SDK's root in QAIRT_SDK_ROOT or QNN_SDK_ROOT.
#
# It refuses another SDK version, logs every step to logs/, removes what a failed step left behind, and goes on
# after the last good step when it is started again.
set -euo pipefail

PACKAGE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
cd -- "$PACKAGE"

WANTED=2.33
HOST=x86_64-linux-clang
STAMPS=artifacts/.stamps
CURRENT_OUTPUTS=()

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; [ -z "${2:-}" ] || say "  next: $2"; exit "${3:-5}"; }

remove_partial() {
  local status=$?
  if [ -n "${CURRENT_OUTPUTS[*]:-}" ]; then
    say "removing what the interrupted step left: ${CURRENT_OUTPUTS[*]}"
    rm -rf -- "${CURRENT_OUTPUTS[@]}"
  fi
  exit "$status"
}
trap remove_partial EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

find_sdk() {
  SDK="${QAIRT_SDK_ROOT:-${QNN_SDK_ROOT:-}}"
  [ -n "$SDK" ] || die "neither QAIRT_SDK_ROOT nor QNN_SDK_ROOT is set" "export QAIRT_SDK_ROOT=/path/to/qairt/$WANTED"
  [ -d "$SDK" ] || die "$SDK: no such folder" "set QAIRT_SDK_ROOT to the root of the SDK"
  SDK="$(cd -- "$SDK" && pwd -P)"
}

sdk_version() {
  local version=""
  if [ -f "$SDK/sdk.yaml" ]; then
    version="$(sed -n 's/^[[:space:]]*version:[[:space:]]*["'\'']\{0,1\}v\{0,1\}\([0-9][0-9.]*\).*/\1/p' "$SDK/sdk.yaml" | head -n 1)"
  fi
  if [ -z "$version" ]; then
    version="$(basename -- "$SDK" | sed -n 's/^v\{0,1\}\([0-9]\{1,\}\.[0-9][0-9.]*\)$/\1/p')"
  fi
  printf '%s' "$version"
}

check_sdk() {
  local version
  version="$(sdk_version)"
  [ -n "$version" ] || die "$SDK: its version cannot be read from sdk.yaml or the folder's name" "point QAIRT_SDK_ROOT at an unchanged SDK"
  case "$version." in
    "$WANTED".*) ;;
    *) die "$SDK is version $version, this package is for $WANTED" "make the package again with --sdk $version, or use SDK $WANTED" ;;
  esac
  say "QAIRT $version in $SDK"
}

check_tool() {
  [ -x "$SDK/bin/$HOST/$1" ] || die "$1 is missing in $SDK/bin/$HOST" "install the whole SDK"
}

fingerprint() {
  # The command, the tool itself, then the contents of its inputs; a missing input counts as absent.
  printf '%s\0' "$@"
  sha256sum < "$SDK/bin/$HOST/$1"
  local input
  for input in "${STEP_INPUTS[@]}"; do
    if [ -f "$input" ]; then sha256sum < "$input"; else printf 'absent %s\n' "$input"; fi
  done
}

contents() {
  # One hash over all files of some outputs, names and contents; nothing where an output is missing.
  local output
  for output in "$@"; do [ -e "$output" ] || return 0; done
  find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum
}

run_step() {
  # run_step NAME TOOL ARGUMENT...; reads STEP_INPUTS and STEP_OUTPUTS
  local name="$1" tool="$2" print output status=0
  shift 2
  print="$(fingerprint "$tool" "$@" | sha256sum)"
  if [ -f "$STAMPS/$name" ] && [ "$(cat -- "$STAMPS/$name")" = "$print$(contents "${STEP_OUTPUTS[@]}")" ]; then
    say "[$name] done before, kept"
    return
  fi
  say "[$name] $tool"
  rm -f -- "$STAMPS/$name"
  rm -rf -- "${STEP_OUTPUTS[@]}"
  CURRENT_OUTPUTS=("${STEP_OUTPUTS[@]}")
  { printf '+'; printf ' %q' "$tool" "$@"; printf '\n'; } > "logs/$name.log"
  "$SDK/bin/$HOST/$tool" "$@" >> "logs/$name.log" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    tail -n 20 -- "logs/$name.log" >&2
    die "[$name] $tool ended with status $status" "deploykit diagnose ${DEPLOYKIT_PACKAGE:-$PACKAGE}/logs/$name.log"
  fi
  for output in "${STEP_OUTPUTS[@]}"; do
    [ -e "$output" ] || die "[$name] $tool ended well but did not write $output" "deploykit diagnose ${DEPLOYKIT_PACKAGE:-$PACKAGE}/logs/$name.log"
  done
  gate_"${name//-/_}"
  CURRENT_OUTPUTS=()
  printf '%s' "$print$(contents "${STEP_OUTPUTS[@]}")" > "$STAMPS/$name"
}

find_sdk
check_sdk
check_tool qnn-onnx-converter
check_tool qnn-model-lib-generator
check_tool qnn-context-binary-generator
command -v sha256sum > /dev/null || die "sha256sum is missing" "install coreutils"
mkdir -p -- "$STAMPS" logs
export PATH="$SDK/bin/$HOST:$PATH"
export LD_LIBRARY_PATH="$SDK/lib/$HOST${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PYTHONPATH="$SDK/lib/python${PYTHONPATH:+:$PYTHONPATH}"

gate_convert() {
  # The converter reports a name mismatch with a count of 0 and no error.
  if grep -q 'Processed 0 quantization encodings' logs/convert.log; then
    die "[convert] no encoding was applied: the names in the encodings do not match the model" "deploykit encodings check" 1
  fi
  command -v python3 > /dev/null || die "python3 is missing; the converter's types cannot be compared"
  python3 scripts/check_types.py artifacts/model_net.json config/intended_types.json || die "[convert] the converter changed the precision (see above)" "read report.html; do not deploy this build" 1
}
STEP_INPUTS=(model/model.onnx encodings/model.json)
STEP_OUTPUTS=(artifacts/model.cpp artifacts/model.bin artifacts/model_net.json)
run_step convert qnn-onnx-converter --input_network model/model.onnx --output_path artifacts/model.cpp --quantization_overrides encodings/model.json --float_fallback --float_bitwidth 16 --act_bitwidth 8 --weights_bitwidth 8 --bias_bitwidth 32 --preserve_io layout

gate_model_lib() {
  :
}
STEP_INPUTS=(artifacts/model.cpp artifacts/model.bin)
STEP_OUTPUTS=(artifacts/lib/x86_64-linux-clang/libmodel.so)
run_step model-lib qnn-model-lib-generator -c artifacts/model.cpp -b artifacts/model.bin -o artifacts/lib -t x86_64-linux-clang

gate_context_binary() {
  :
}
STEP_INPUTS=(artifacts/lib/x86_64-linux-clang/libmodel.so config/backend_config.json config/htp_prepare.json)
STEP_OUTPUTS=(artifacts/model_ctx.bin)
run_step context-binary qnn-context-binary-generator --backend libQnnHtp.so --model artifacts/lib/x86_64-linux-clang/libmodel.so --binary_file model_ctx --output_dir artifacts --config_file config/backend_config.json

say 'built: artifacts/model_ctx.bin'
