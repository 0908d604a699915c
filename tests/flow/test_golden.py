"""Packages as they were once read by a person: any change of what is generated shows up as a difference.

After a change that is wanted: ``DEPLOYKIT_WRITE_GOLDEN=1 pytest tests/flow/test_golden.py``, then read the difference.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from deploykit.backend.backend import Request
from deploykit.flow.pipeline import make_package
from tables import each_row

DATA = Path(__file__).parents[1] / "data"
GOLDEN = DATA / "golden"
AIMET = DATA / "aimet"
MIXED: Any = {"model": AIMET / "detr/model.onnx", "backend": "qnn-htp"}
MIXED["encodings"] = AIMET / "detr/w8a16-fp16mix-explicit.v0.6.1.encodings"
PACKAGES = {
    "qnn-htp-integer-2.33": Request(
        model=AIMET / "cnn_bnfold/model.onnx",
        target="sm8650",
        sdk="2.33",
        backend="qnn-htp",
        encodings=AIMET / "cnn_bnfold/w8a8.v1.0.0.encodings",
    ),
    "qnn-htp-mixed-2.33": Request(target="qcs8625", sdk="2.33.0.250327", mixed="fallback", **MIXED),
    "ort-qnn-integer": Request(
        model=AIMET / "cnn_bnfold/model.onnx",
        target="sm8550",
        backend="ort-qnn",
        encodings=AIMET / "cnn_bnfold/w8a8.v1.0.0.encodings",
        compile=False,
    ),
    "qnn-htp-provider-context-2.33": Request(
        **{"target": "sm8650", "sdk": "2.33", "compile": False, **MIXED},
        adapter_options={"route": "provider-context", "emit": "github-actions"},
    ),
    "vitis-ai-bf16": Request(
        model=DATA / "quark/fp32.onnx", target="vek385", sdk="6.3", backend="vitis-ai", precision="bf16", compile=False
    ),
}


def texts(folder: Path) -> dict[str, str]:
    """Everything that deploykit itself wrote as text; models and the long page are left out, their hashes are not."""
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".onnx", ".html") and path.name != "manifest.json"
    }


@each_row("name", *PACKAGES)
def test_a_package_is_the_golden_one(name: str, tmp_path: Path) -> None:
    made = make_package(PACKAGES[name], tmp_path / "out")
    assert made.package is not None, [finding.message for finding in made.findings if finding.blocks]
    found = texts(made.package)
    if os.environ.get("DEPLOYKIT_WRITE_GOLDEN"):
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        for path, text in found.items():
            (GOLDEN / name / path).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / name / path).write_text(text, "utf-8")
    wanted = texts(GOLDEN / name)
    assert sorted(found) == sorted(wanted)
    for path, text in wanted.items():
        assert found[path] == text, path
