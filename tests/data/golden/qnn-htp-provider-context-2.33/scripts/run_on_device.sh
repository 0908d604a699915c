#!/usr/bin/env bash
# Runs the built context binary on SM8650 through adb. Written by deploykit 0.1.0.
#
#   scripts/run_on_device.sh INPUT_LIST [OUTPUT_FOLDER]
#
# INPUT_LIST has one sample per line: name:=file pairs, or one file where the model has one input; files are relative to
# the folder of INPUT_LIST. Libraries, stub, skel and qnn-net-run all come from one SDK, the one of this package.
set -euo pipefail

PACKAGE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
WANTED=2.33
ABI="${DEVICE_ABI:-aarch64-android}"
REMOTE="${DEVICE_FOLDER:-/data/local/tmp/deploykit}/"model

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $1"; [ -z "${2:-}" ] || say "  next: $2"; exit "${3:-5}"; }

[ "$#" -ge 1 ] || die "no input list was given" "scripts/run_on_device.sh INPUT_LIST [OUTPUT_FOLDER]" 2
[ -f "$1" ] || die "$1: no such file" "" 2
INPUTS="$(cd -- "$(dirname -- "$1")" && pwd -P)"
LIST="$INPUTS/$(basename -- "$1")"
OUTPUT="${2:-$PACKAGE/artifacts/device_output}"
SDK="${QAIRT_SDK_ROOT:-${QNN_SDK_ROOT:-}}"
[ -n "$SDK" ] || die "neither QAIRT_SDK_ROOT nor QNN_SDK_ROOT is set" "export QAIRT_SDK_ROOT=/path/to/qairt/$WANTED"
cd -- "$PACKAGE"
[ -f artifacts/model_ctx_qnn.bin ] || die "the context binary artifacts/model_ctx_qnn.bin is not built" "scripts/build.sh"
command -v adb > /dev/null || die "adb is missing" "install the Android platform tools"
adb get-state > /dev/null || die "adb sees no device" "connect one, or set ANDROID_SERIAL"

FILES=(
  "$SDK/bin/$ABI/qnn-net-run"
  "$SDK/lib/$ABI/libQnnHtp.so"
  "$SDK/lib/$ABI/libQnnSystem.so"
  "$SDK/lib/$ABI/libQnnHtpNetRunExtensions.so"
  "$SDK/lib/$ABI/libQnnHtpV75Stub.so"
  "$SDK/lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"
)
for file in "${FILES[@]}"; do
  [ -f "$file" ] || die "$file is missing" "install the whole SDK, or set DEVICE_ABI"
done

say "copying to $REMOTE"
adb shell "mkdir -p '$REMOTE/artifacts' '$REMOTE/config' '$REMOTE/inputs'"
adb push "${FILES[@]}" "$REMOTE/" > /dev/null
adb push artifacts/model_ctx_qnn.bin "$REMOTE/artifacts/" > /dev/null
adb push config/. "$REMOTE/config/" > /dev/null
adb push "$INPUTS/." "$REMOTE/inputs/" > /dev/null

# The list names files relative to its own folder, which is inputs/ on the device.
REWRITTEN="$(mktemp)"
trap 'rm -f -- "$REWRITTEN"' EXIT
while IFS= read -r line || [ -n "$line" ]; do
  [ -n "${line//[[:space:]]/}" ] || continue
  words=()
  for word in $line; do
    case "$word" in
      *:=*) words+=("${word%%:=*}:=inputs/${word##*:=}") ;;
      *) words+=("inputs/$word") ;;
    esac
  done
  printf '%s\n' "${words[*]}"
done < "$LIST" > "$REWRITTEN"
adb push "$REWRITTEN" "$REMOTE/input_list.txt" > /dev/null
adb shell "cd '$REMOTE' && rm -rf output"

say "[net-run] qnn-net-run"
adb shell "cd '$REMOTE' && chmod +x qnn-net-run && export LD_LIBRARY_PATH=. ADSP_LIBRARY_PATH='.;/vendor/dsp/cdsp;/vendor/lib/rfsa/adsp;/system/lib/rfsa/adsp' && ./"'qnn-net-run --backend libQnnHtp.so --retrieve_context artifacts/model_ctx_qnn.bin --input_list input_list.txt --output_dir output --config_file config/run_config.json'
mkdir -p -- "$OUTPUT"
adb pull "$REMOTE/output/." "$OUTPUT/" > /dev/null
say "outputs: $OUTPUT"
