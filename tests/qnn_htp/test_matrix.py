"""Every AIMET fixture for QAIRT 2.33 on two architectures that gets a no, and one package per model."""

from __future__ import annotations

import json
from pathlib import Path

import deploykit
from deploykit.findings import Finding
from tables import each_row

DATA = Path(__file__).parents[1] / "data" / "aimet"
DEVICES = {"v68": "sm8350", "v75": "sm8650"}
FILES = sorted(path.relative_to(DATA) for path in DATA.rglob("*.encodings"))

NO_FLOAT = {"QNN122"}
"""Float16 left on v68."""


def model_of(encodings: Path) -> Path:
    folder = encodings.parent
    return DATA / (folder.parent if folder.name.startswith("aimet-") else folder) / "model.onnx"


def expected_no(encodings: Path, arch: str) -> set[str]:
    """Codes of which at least one must explain a no; an empty set means that a package must come out."""
    name = encodings.name
    codes: set[str] = set()
    if "fp16" in name and arch == "v68":
        codes |= NO_FLOAT
    if name.startswith("fp16.v2"):
        codes |= {"QNN129"}  # an empty file says nothing
    if encodings.parts[0] == "vit" and "w8a16" in name and arch == "v68":
        codes |= {"QNN123"}
    if "w2a16" in name:
        codes |= {"QNN124", "QNN126"}
    if name.startswith("bq-"):
        codes |= {"QNN124"}
    if name.startswith("wfp8"):
        codes |= {"QNN125"}
    if name.startswith("lpbq") and arch == "v68":
        codes |= {"QNN124"}
    return codes


GOOD = {model_of(path): path for path in FILES if not expected_no(path, "v75")}
"""One file per model that becomes a package."""
DEFAULT = [
    (encodings, arch)
    for encodings in FILES
    for arch in ("v68", "v75")
    if expected_no(encodings, arch) or (arch == "v75" and encodings in GOOD.values())
]


@each_row(("encodings", "arch"), DEFAULT)
def test_every_no_and_a_package_per_model(encodings: Path, arch: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = deploykit.package(
        model_of(encodings), target=DEVICES[arch], sdk="2.33", encodings=DATA / encodings, out=out, mixed="fallback"
    )
    blocking = [finding for finding in made.findings if finding.blocks]
    wanted = expected_no(encodings, arch)
    if made.package is None:
        assert made.exit_status == 1
        assert not out.exists()
        assert wanted, [(f.code, f.message) for f in blocking]
        assert wanted & {finding.code for finding in blocking}, [(f.code, f.message) for f in blocking]
        return
    assert not wanted, f"packaged although {wanted} was expected"
    report = deploykit.verify(out)
    assert report.ok, [check for check in report.checks if not check.ok]
    assert_precise(out, made.findings)


def assert_precise(out: Path, findings: tuple[Finding, ...]) -> None:
    """A type that is expected to differ from the intended one is always a finding."""
    precision = json.loads((out / "manifest.json").read_text())["precision"]
    differing = {name for name, kind in precision["expected"].items() if precision["intended"].get(name, kind) != kind}
    said = {name for finding in findings for name in finding.evidence.get("tensors", ())}
    assert differing <= said
