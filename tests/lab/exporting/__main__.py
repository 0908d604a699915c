"""``python -m exporting FOLDER [NAME …]``: exports and quantizes the zoo; ``--record FILES`` packs what is there."""

from __future__ import annotations

import json
import sys
import traceback
import zipfile
from pathlib import Path
from zlib import crc32

import numpy as np

from .architectures import ARCHITECTURES
from .exporting import built, export
from .quantizing import CONFIGURATION, quantize

SEEN, KEPT, HELD_OUT = 24, 6, 4
"""Samples that AIMET calibrates on, how many of them are kept beside the model, and those that it never sees."""

RECORDED = ("info.json", "model.onnx", "w8a16.v1.0.0.encodings", "calibration.npz", "held_out.npz", "aimet.npz")


def make(name: str, folder: Path) -> None:
    """One model with everything beside it."""
    architecture = next(row for row in ARCHITECTURES if row.name == name)
    subject = built(architecture)
    rng = np.random.default_rng(crc32(name.encode()))
    feeds = [subject.feed(rng) for _ in range(SEEN + HELD_OUT)]
    folder.mkdir(parents=True, exist_ok=True)
    info = export(architecture, subject, feeds, folder / "model.onnx")
    with np.errstate(all="ignore"):
        simulated = quantize(folder, feeds[:SEEN], feeds[SEEN:])
    for kind, rows in (("calibration", feeds[:KEPT]), ("held_out", feeds[SEEN:]), ("aimet", simulated)):
        np.savez(folder / f"{kind}.npz", **{key: np.stack([row[key] for row in rows]) for key in rows[0]})
    info = {"name": name, "group": architecture.group, **info, "configuration": CONFIGURATION}
    (folder / "info.json").write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")


def record(folder: Path, archive: Path) -> None:
    """What the tests need of one model, the same bytes for the same files."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_LZMA) as packed:
        for name in RECORDED:
            packed.writestr(zipfile.ZipInfo(name), (folder / name).read_bytes(), zipfile.ZIP_LZMA)


def main(target: Path, names: list[str]) -> int:
    """All that are asked for; one that fails stops no other."""
    failed = []
    for name in names or [row.name for row in ARCHITECTURES]:
        try:
            make(name, target / name)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(name, "FAILED" if name in failed else "ok", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    made, rest = Path(sys.argv[1]), sys.argv[2:]
    if rest[:1] == ["--record"]:
        for path in sorted(made.glob("*/info.json")):
            record(path.parent, Path(rest[1]) / f"{path.parent.name}.zip")
        sys.exit(0)
    sys.exit(main(made, rest))
