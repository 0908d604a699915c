"""What is said of every model of the zoo, kept or held against what was kept: nothing may be won by doing less.

    python tests/lab/benchmarks/verdicts.py RECORD [--models FOLDER] [--packages N] [--code CHECKOUT]

asks ``check --json`` on both backends, packages the first N models, and keeps answers and digests in RECORD;
``--against RECORD`` compares.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from spending import spend

__all__ = ["main"]

ROOT = Path(__file__).parents[3]
ZOO = ROOT / "tests" / "data" / "zoo"
BACKENDS = {"qnn-htp": ("--sdk", "2.37"), "ort-qnn": ()}
TARGET = ("--target", "sm8650")


def main() -> None:
    """Ask and keep, or compare; a difference ends with status 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("--against", type=Path, help="compare with this record; nothing is asked")
    parser.add_argument("--models", type=Path, help="a folder of unpacked models to ask about as well")
    parser.add_argument("--packages", type=int, default=0, metavar="N", help="package so many of them as well")
    parser.add_argument("--code", type=Path, default=ROOT, help="the checkout that answers")
    given = parser.parse_args()
    if given.against is not None:
        sys.exit(_compare(_read(given.against), _read(given.record)))
    # One place for both records, since answers name files.
    models = Path(tempfile.gettempdir()) / "deploykit-verdicts"
    found = _read(given.record) if given.record.is_file() else {}
    for key, argv in _questions(_unpacked(models), given.models, given.packages):
        if key not in found:
            found[key] = _answer(key, argv, given.code, models / "out")
            given.record.write_text(json.dumps(found, indent=1), "utf-8")


def _unpacked(models: Path) -> list[Path]:
    """Every model of the test data in a folder of its own."""
    for archive in sorted(ZOO.glob("*.zip")):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(models / archive.stem)
    return sorted(path.parent for path in models.glob("*/model.onnx"))


def _questions(models: list[Path], others: Path | None, packages: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each question by a name that does not depend on where the models lie; what takes longest comes last."""
    more = [] if others is None else sorted(path.parent for path in others.glob("*/model.onnx"))
    for words, folders in ((("--json", "check"), [*models, *more]), (("package",), models[:packages])):
        for folder in folders:
            given: tuple[str, ...] = (str(folder / "model.onnx"), *TARGET)
            given += ("--encodings", str(folder / "w8a16.v1.0.0.encodings"))
            samples = folder / "calibration.npz"
            given += ("--calibration", str(samples)) if samples.is_file() else ()
            for backend, options in BACKENDS.items():
                where = f"{folder.parent.name}/{folder.name}"
                yield f"{words[-1]} {where} {backend}", (*words, *given, "--backend", backend, *options)


def _answer(key: str, argv: tuple[str, ...], code: Path, out: Path) -> Any:
    """The answer as data; of a package every file by its digest."""
    package = key.startswith("package ")
    more = ("-o", str(out), "--force") if package else ()
    shutil.rmtree(out, ignore_errors=True)
    roots = os.pathsep.join(str(code / room) for room in ("", "backends", "templates"))
    # Python would look in the folder that this was started in first, which is a checkout as well.
    environment = {**os.environ, "PYTHONPATH": roots, "PYTHONSAFEPATH": "1", "DEPLOYKIT_NO_CACHE": "1"}
    said = spend((sys.executable, "-m", "deploykit", *argv, *more), environment=environment).text
    if not package:
        return json.loads(said)
    return _contents(out) if out.is_dir() else said


def _contents(package: Path) -> dict[str, Any]:
    """Every file of a package by its digest, and the manifest as data.

    The vendor's compiler writes another binary each time. It is left out, and so is its digest where files state it.
    """
    files = {path.relative_to(package).as_posix(): path.read_bytes() for path in package.rglob("*") if path.is_file()}
    binaries = [name for name in files if name.endswith("_qnn.bin")]
    stated = [sha256(files.pop(name)).hexdigest().encode() for name in binaries]
    manifest = json.loads(files.pop("manifest.json"))
    found: dict[str, Any] = {"manifest": {name: manifest[name] for name in manifest.keys() - {"files", "digest"}}}
    for name, data in sorted(files.items()):
        for digest in stated:
            data = data.replace(digest, b"")
        found[name] = sha256(data).hexdigest()
    return found


def _compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    keys = sorted(before.keys() & after.keys())
    different = [key for key in keys if before[key] != after[key]]
    for key in different:
        print(f"different: {key}: {', '.join(_where(before[key], after[key]))}")
    print(f"{len(keys)} answers compared, {len(keys) - len(different)} equal, {len(different)} different")
    for name, only in (("first", before.keys() - after.keys()), ("second", after.keys() - before.keys())):
        if only:
            print(f"only in the {name} record: {len(only)}")
    return 1 if different or not keys else 0


def _where(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """The places at which two answers differ, at most five of each level."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
        for key in sorted(keys)[:5]:
            yield from _where(before.get(key), after.get(key), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i in [i for i in range(len(before)) if before[i] != after[i]][:5]:
            yield from _where(before[i], after[i], f"{path}[{i}]")
    else:
        yield path or "the whole"


def _read(record: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.read_text("utf-8"))
    return found


if __name__ == "__main__":
    main()
