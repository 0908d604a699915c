"""AIMET's own files for QAIRT 2.33: a good package of each model, or a no with the code that explains it."""

from __future__ import annotations

import json
from pathlib import Path

import deploykit
from tables import each_row

DATA = Path(__file__).parents[1] / "data" / "aimet"
V68, V75 = "sm8350", "sm8650"


@each_row(
    ("model", "encodings", "device", "code"),
    [
        *((name, "w8a8.v2.0.0", V75, "") for name in ("cnn", "cnn_bnfold", "detr", "mlp", "vit")),
        ("detr", "w8a16-fp16mix-omit.v0.6.1", V68, "QNN122"),
        ("detr", "w8a16-fp16mix-explicit.v1.0.0", V68, "QNN122"),
        ("detr", "aimet-2.31.0/w8a8-litemp-fp16.v2.0.0", V68, "QNN122"),
        ("vit", "w8a16.v1.0.0", V68, "QNN123"),
        ("mlp", "lpbq-w4a16.v2.0.0", V68, "QNN124"),
        ("mlp", "bq-w4a16.v0.6.1", V75, "QNN124"),
        ("mlp", "bq-asym-w4a16.v1.0.0", V75, "QNN124"),
        ("mlp", "wfp8a8.v2.0.0", V75, "QNN125"),
        ("mlp", "bq-w2a16-zpshift.v2.0.0", V75, "QNN126"),
        ("detr", "fp16.v2.0.0", V75, "QNN129"),  # an empty file says nothing
    ],
)
def test_a_package_or_a_no(model: str, encodings: str, device: str, code: str, tmp_path: Path) -> None:
    """A type that is expected to differ from the intended one is always a finding."""
    out, given = tmp_path / "out", DATA / model / f"{encodings}.encodings"
    path = DATA / model / "model.onnx"
    made = deploykit.package(path, target=device, sdk="2.33", encodings=given, out=out, mixed="fallback")
    blocking = {finding.code: finding.message for finding in made.findings if finding.blocks}
    if code:
        assert made.package is None and made.exit_status == 1 and not out.exists() and code in blocking, blocking
        return
    assert made.package is not None, blocking
    report = deploykit.verify(out)
    assert report.ok, [check for check in report.checks if not check.ok]
    precision = json.loads((out / "manifest.json").read_text())["precision"]
    differing = {name for name, kind in precision["expected"].items() if precision["intended"].get(name, kind) != kind}
    assert differing <= {name for finding in made.findings for name in finding.evidence.get("tensors", ())}
