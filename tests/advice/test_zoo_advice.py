"""What is advised about real architectures: what can be done by an option has effect."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deploykit.findings import Finding
from deploykit.rewrites.contract import transform_names
from seeds import share_of

ZOO = sorted((Path(__file__).parents[1] / "data" / "zoo").glob("*.zip"))
NAMED = re.compile(r"--(no-)?rewrite ([a-z0-9-]+)")
SETTINGS = {
    "qnn-htp 2.33 W8A16": {"backend": "qnn-htp", "sdk": "2.33"},
    "qnn-htp 2.44 fp16": {"backend": "qnn-htp", "sdk": "2.44"},
    "ort-qnn W8A16": {"backend": "ort-qnn"},
    "ort-qnn fp16": {"backend": "ort-qnn"},
}


def unpacked(archive: Path, folder: Path) -> Path:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    (model,) = folder.rglob("model.onnx")
    return model


def asked(bench: Any, model: Path, setting: str, **more: Any) -> Sequence[Finding]:
    given = dict(SETTINGS[setting])
    if setting.endswith("W8A16"):
        given["encodings"] = str(model.with_name("w8a16.v1.0.0.encodings"))
    encodings = Path(given.pop("encodings")) if "encodings" in given else None
    found: Sequence[Finding] = bench.ask(model, encodings=encodings, second_opinion=False, **given, **more)
    return [finding for finding in found if finding.handled is None]


def subjects(findings: Sequence[Finding], code: str) -> set[str]:
    return {finding.subject.name for finding in findings if finding.code == code}


@pytest.mark.heavy
@pytest.mark.parametrize("archive", share_of(ZOO), ids=lambda path: path.stem)
def test_advice_about_an_architecture_does_what_it_says(archive: Path, bench: Any, tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    model = unpacked(archive, tmp_path / "zoo")
    for setting in SETTINGS:
        _follow(model, setting, bench)


def _follow(model: Path, setting: str, bench: Any) -> None:
    """All that is advised in one setting."""
    before = asked(bench, model, setting)
    if said := {f.code for f in before if "give --calibration" in f.hint}:
        after = asked(bench, model, setting, calibration=model.with_name("calibration.npz"))
        assert not said & {f.code for f in after}, "with calibration data it is said again"
    named = {(f.code, *match) for f in before for match in NAMED.findall(f.hint) if match[1] in transform_names()}
    for code, no, name in sorted(named):
        option = {"no_rewrite": (name,)} if no else {"rewrite": (name,)}
        after = asked(bench, model, setting, **option)
        assert name not in "".join(f.message for f in after if f.code == "DK208"), f"{code}: {name} finds no site"
        if no:
            # What says that something was rewritten is silent about it once it is not.
            assert not [f for f in after if f.code == code and f"--no-rewrite {name}" in f.hint], (code, name)
        else:
            assert subjects(after, code) != subjects(before, code), f"{code}: --rewrite {name} changes nothing"
