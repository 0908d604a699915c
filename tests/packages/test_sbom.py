"""The bill of materials says what the manifest says, validates, and holds no time of day."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import deploykit
from deploykit.packages.manifests import read_manifest
from deploykit.packages.sbom import sbom_text
from tables import each_row

CNN = Path(__file__).parents[1] / "data" / "aimet" / "cnn"


def test_a_package_with_a_bill_of_materials(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx", reason="the extra sbom is not installed")
    texts = []
    for name in ("one", "two"):
        asked: Any = {"target": "sm8650", "sdk": "2.33", "encodings": CNN / "w8a8.v0.6.1.encodings", "compile": False}
        assert deploykit.package(CNN / "model.onnx", out=tmp_path / name, sbom=True, **asked).package is not None
        texts.append((tmp_path / name / "sbom.cdx.json").read_text("utf-8"))
    assert texts[0] == texts[1]
    document = json.loads(texts[0])
    assert document["bomFormat"] == "CycloneDX"
    rows = {row["name"]: row for row in document["components"]}
    inputs = {row["name"]: row["sha256"] for row in read_manifest(tmp_path / "one")["inputs"]}
    assert {name: rows[name]["hashes"][0]["content"] for name in inputs} == inputs
    assert rows["onnx"]["purl"].startswith("pkg:pypi/onnx@")
    assert any(row["bom-ref"].startswith("sdk:") for row in document["components"])


NAMES: tuple[str, ...] = ("\x1b[31m\x07.onnx", "\u202egnp.exe\u2066.onnx", "a" * 5000, "<b>&amp;.onnx", "a\nb\tc")
NAMES += ("{{ 7 * 7 }}", "pkg:x@1?y#z")


@each_row("name", *NAMES)
def test_names_that_are_weapons_stay_names(name: str) -> None:
    """Valid JSON of the standard without control characters, always the same, also where two inputs have one name."""
    validation = pytest.importorskip("cyclonedx.validation.json", reason="the extra sbom is not installed")
    from cyclonedx.schema import SchemaVersion

    row = {"role": "model", "name": name, "sha256": "0" * 64}
    manifest = {
        "deploykit": "0.1.0",
        "inputs": [row, {**row, "role": "encodings"}, *({**row, "sha256": digit * 64} for digit in "12")],
        "sdk": {"name": name, "version": "2.33"},
        "record": {name: {"wheel": "2.7.0"}},
        "files": {},
    }
    text = sbom_text(manifest)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f]", text)
    assert validation.JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    rows = json.loads(text)["components"]
    assert len({one["bom-ref"] for one in rows}) == len(rows)
    roles = [(one["description"], one["type"]) for one in rows if one["name"] == name and "description" in one]
    assert sorted(roles) == [("encodings", "data"), *[("model", "machine-learning-model")] * 3]
    others = {one["bom-ref"]: (one["name"], one["version"]) for one in rows if one["bom-ref"][:4] in ("sdk:", "run:")}
    assert sorted(others.values()) == sorted([(name, "2.33"), (f"{name} wheel", "2.7.0")])
    assert sbom_text(manifest) == text
