"""Takes a decoder through everything: ``python tests/lab/benchmarks/language_model.py FOLDER [--tiny] [--write]``.

1.39 billion parameters (or the tests' tiny twin) are generated in both forms, and every step is one command whose CPU
seconds, peak memory and bytes are recorded; ``--write`` keeps the record beside the test data. A step that was done
before is not done again, and what only one step needs is deleted behind it. At most 15 GB of disk are used at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spending import spend

ROOT = Path(__file__).parents[3]
RECORD = Path(__file__).parents[1] / "evidence" / "language_model.json"
GRAPHS = ("prefill", "decode")
HTP = ("--target", "sm8750", "--backend", "qnn-htp", "--sdk", "2.44")
PARTS = 4
"""Of the package."""
FINE_PARTS = 30
"""For the emulator: about one layer each."""

GENERATE = """
import sys
from pathlib import Path
from decoders import LARGE, TINY, write_decoder
write_decoder(TINY if sys.argv[3] == "tiny" else LARGE, Path(sys.argv[1]), sys.argv[2])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command, what is to be there afterwards, and what nobody needs any more then."""

    id: str
    argv: tuple[str, ...]
    makes: Path | None = None
    spare: tuple[Path, ...] = ()


def steps(folder: Path, size: str) -> Iterator[Step]:
    """Everything in order: first with encodings for QAIRT, then with stored integers for the provider."""
    floats, blocks, out = folder / "float", folder / "blocks", folder / "out"
    prefill, decode = (floats / f"{name}.onnx" for name in GRAPHS)
    entries = floats / "lpbq.encodings"
    both = (*HTP, "--also", str(decode), "--parts", str(PARTS if size == "large" else 2))
    yield _generate("generate-float", floats, "float", size)
    convert = ("encodings", "convert", str(floats / "decoder.encodings"), "--to", "1.0.0", "--lpbq")
    yield _deploykit("encodings-lpbq", *convert, "--model", str(prefill), "-o", str(entries), makes=entries)
    given = (str(prefill), *both, "--encodings", str(entries))
    yield _deploykit("check", "check", *given)
    yield _deploykit("plan", "plan", *given)
    yield _deploykit("package", "package", *given, "-o", str(out), makes=out)
    yield _deploykit("verify", "verify", str(out), makes=out, spare=(out, floats))
    yield _generate("generate-blocks", blocks, "blocks", size)
    split = ("split", *(str(blocks / f"{name}.onnx") for name in GRAPHS), "--parts")
    fine = folder / "parts"
    count = FINE_PARTS if size == "large" else 2
    lpbq = blocks / "lpbq.onnx"
    yield _deploykit("lpbq", "lpbq", str(blocks / "decode.onnx"), "--refine", "-o", str(lpbq), makes=lpbq)
    yield _deploykit("split", *split, str(count), "-o", str(fine), makes=fine, spare=(blocks,))
    part = ("package", str(fine / "decode_2.onnx"), "--lpbq", "--backend", "ort-qnn", "--target", "sm8750")
    yield _deploykit("ort-qnn-part", *part, "-o", str(folder / "provider"), makes=folder / "provider")


def _generate(name: str, folder: Path, form: str, size: str) -> Step:
    return Step(id=name, argv=(sys.executable, "-c", GENERATE, str(folder), form, size), makes=folder)


def _deploykit(name: str, *words: str, makes: Path | None = None, spare: tuple[Path, ...] = ()) -> Step:
    return Step(id=name, argv=(sys.executable, "-m", "deploykit", *words), makes=makes, spare=spare)


def run(step: Step, folder: Path) -> dict[str, Any]:
    """What a step cost, read where it was done before; the end of what it said."""
    said = folder / f"{step.id}.json"
    if not said.is_file():
        if step.makes is not None and step.id != "verify":
            _clear(step.makes)
        began = time.monotonic()
        spent = spend(step.argv, environment=_environment(folder))
        row = {
            "step": step.id,
            "cpu_seconds": round(spent.cpu, 1),
            "wall_seconds": round(time.monotonic() - began, 1),
            "peak_mb": round(spent.peak),
            "bytes": None if step.makes is None else _size(step.makes),
            "ends": spent.text.splitlines()[-12:],
        }
        said.write_text(json.dumps(row, indent=1), "utf-8")
    for path in step.spare:
        _clear(path)
    found: dict[str, Any] = json.loads(said.read_text("utf-8"))
    return found


def _clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _environment(folder: Path) -> dict[str, str]:
    paths = [ROOT, ROOT / "backends", ROOT / "templates", ROOT / "tests/support", Path(__file__).parent]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "DEPLOYKIT_CACHE": str(folder / "cache")}


def main() -> None:
    """Run what is not done yet and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true", help="the tests' decoder, to try this program")
    parser.add_argument("--write", action="store_true", help=f"record it in {RECORD.name}")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for step in steps(folder, "tiny" if given.tiny else "large"):
        rows.append(run(step, folder))
        print(json.dumps({key: value for key, value in rows[-1].items() if key != "ends"}), flush=True)
    if given.write:
        _record(rows)


def _record(rows: list[dict[str, Any]]) -> None:
    tools = ("deploykit", "onnx", "onnxruntime", "onnxruntime-qnn", "numpy")
    provenance = {
        "command": "python tests/lab/benchmarks/language_model.py FOLDER --write",
        "date": date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, shared with other work",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in tools},
    }
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps({"schema": 1, "provenance": provenance, "steps": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
