"""The bill of materials says what the manifest says, validates, and holds no time of day."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import deploykit
from deploykit.packages.manifests import read_manifest

CNN = Path(__file__).parents[1] / "data" / "aimet" / "cnn"


def test_a_package_with_a_bill_of_materials(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx", reason="the extra sbom is not installed")
    texts = []
    for name in ("one", "two"):
        made = deploykit.package(
            CNN / "model.onnx",
            target="sm8650",
            sdk="2.33",
            encodings=CNN / "w8a8.v0.6.1.encodings",
            compile=False,
            out=tmp_path / name,
            sbom=True,
        )
        assert made.package is not None
        texts.append((tmp_path / name / "sbom.cdx.json").read_text("utf-8"))
    assert texts[0] == texts[1]
    document = json.loads(texts[0])
    assert document["bomFormat"] == "CycloneDX"
    rows = {row["name"]: row for row in document["components"]}
    inputs = {row["name"]: row["sha256"] for row in read_manifest(tmp_path / "one")["inputs"]}
    assert {name: rows[name]["hashes"][0]["content"] for name in inputs} == inputs
    assert rows["onnx"]["purl"].startswith("pkg:pypi/onnx@")
    assert any(row["bom-ref"].startswith("sdk:") for row in document["components"])
