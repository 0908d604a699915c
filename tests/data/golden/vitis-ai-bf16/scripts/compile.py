"""Compile the model of this package for the NPU, and judge the result by the compiler's own summary.

    python scripts/compile.py [--strict] [--anew]

There is no compiler to call: opening the model in ONNX Runtime with the VitisAIExecutionProvider compiles it and writes
a cache. Needs the Vitis AI container and nothing of deploykit. A clean return proves nothing: errors of the
AI Engine compiler are swallowed and the model then runs on the CPU. So the summary decides:

    0  compiled, operators run on the NPU      1  nothing, or less than asked, runs on the NPU
    5  the provider is not there, or opening the model failed
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMMARY = "final-vaiml-pass-summary.txt"
PROVIDER = "VitisAIExecutionProvider"


def load_session(path="config/session.json"):
    """The session's description, with paths made absolute and an overlay file looked up in the installation."""
    session = json.loads((ROOT / path).read_text(encoding="utf-8"))
    options = session["provider_options"]
    for name in ("config_file", "cache_dir"):
        if name in options:
            options[name] = str(ROOT / options[name])
    if "xclbin" in options:
        options["xclbin"] = find_overlay(options["xclbin"])
    return session


def find_overlay(name):
    """An overlay (.xclbin) by its path, or below the folder that RYZEN_AI_INSTALLATION_PATH names."""
    if Path(name).is_file():
        return name
    installed = os.environ.get("RYZEN_AI_INSTALLATION_PATH")
    found = sorted(Path(installed).rglob(name)) if installed else []
    if not found:
        stop(5, f"{name} is not there; set RYZEN_AI_INSTALLATION_PATH, or name the file in config/session.json. "
                "Without it the model runs on the CPU without a message.")
    return str(found[0])


def stop(status, text):
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(status)


def provider_version():
    """ONNX Runtime with the provider; stops when the provider is missing."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        stop(5, f"{sys.executable} has no onnxruntime\n  next: run this in the vendor's environment, which has {PROVIDER}")
    if PROVIDER not in onnxruntime.get_available_providers():
        stop(5, f"this ONNX Runtime ({onnxruntime.__version__}) has no {PROVIDER}. "
                "A plain onnxruntime installed over the vendor's hides it: use the vendor's environment.")
    return onnxruntime.__version__


def forget_stale_cache(cache, made_by):
    """The provider does not check who made a cache: one of another provider or model is deleted here."""
    note = cache / "made_by.json"
    known = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else None
    if cache.exists() and known != made_by:
        print(f"deleting {cache}: made by {known or 'something unknown'}", file=sys.stderr)
        shutil.rmtree(cache)
    cache.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(made_by) + "\n", encoding="utf-8")


def read_summary(folder):
    """The summary's `name: number (percent)` lines as numbers; None when the compiler wrote no summary."""
    files = sorted(folder.rglob(SUMMARY)) if folder.is_dir() else []
    if not files:
        return None
    numbers = {}
    for line in files[0].read_text(encoding="utf-8", errors="replace").splitlines():
        match = re.match(r"\s*(.+?):\s*([0-9.]+)\s*(?:\(([0-9.]+)%\))?\s*$", line)
        if match:
            numbers[match[1]] = float(match[2])
            if match[3]:
                numbers[match[1] + " %"] = float(match[3])
    return numbers


def judge(numbers, strict):
    """What is wrong with a compilation, as sentences; empty when it is good."""
    if numbers is None:
        return [f"the compiler wrote no {SUMMARY}: nothing was compiled for the NPU"]
    found = []
    if not numbers.get("Number of operators offloaded by VAIML"):
        found.append("no operator runs on the NPU")
    broken = [name for name in numbers if "compilation errors" in name and numbers[name]]
    if broken:
        found.append(f"{numbers[broken[0]]:.0f} subgraphs failed to compile and fall back to the CPU")
    share = numbers.get("GOPs offloaded by VAIML %")
    if strict and (share is None or share < 100):
        found.append(f"only {share}% of the work runs on the NPU")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="everything has to run on the NPU")
    parser.add_argument("--anew", action="store_true", help="delete the cache first")
    arguments = parser.parse_args()
    session = load_session()
    model = ROOT / session["model"]
    if not model.is_file():
        stop(5, f"{session['model']} is not there; run scripts/quantize.py first")
    key = session["provider_options"]["cache_key"]
    if key != model.stem:
        stop(5, f"cache_key {key!r} is not the model's stem {model.stem!r}: the board would try to compile again")
    version = provider_version()
    cache = Path(session["provider_options"]["cache_dir"])
    if arguments.anew and cache.exists():
        shutil.rmtree(cache)
    forget_stale_cache(cache, {"onnxruntime": version, "model": hashlib.sha256(model.read_bytes()).hexdigest()})

    import onnxruntime

    options = onnxruntime.SessionOptions()
    if arguments.strict:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    os.chdir(ROOT)
    try:
        onnxruntime.InferenceSession(
            str(model), options, providers=session["providers"], provider_options=[session["provider_options"]]
        )
    except Exception as error:
        stop(5, f"opening the model failed: {error}")
    numbers = read_summary(cache / key)
    wrong = judge(numbers, arguments.strict) if "config_file" in session["provider_options"] else []
    result = {"schema": 1, "model": session["model"], "summary": numbers, "problems": wrong}
    (ROOT / "logs").mkdir(exist_ok=True)
    (ROOT / "logs" / "compile.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, value in (numbers or {}).items():
        print(f"{name}: {value:g}")
    if wrong:
        stop(1, "; ".join(wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main())
