"""The three failing strategies of qualcomm/aimet#4102, each with the finding and the way out the package takes."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import deploykit
from deploykit.findings import Finding
from deploykit.flow.pipeline import Packaged

TARGET, SDK = "sm8650", "2.33"


def package(aimet: Path, tmp_path: Path, encodings: str, **more: Any) -> Packaged:
    asked: Any = {"target": TARGET, "sdk": SDK, "encodings": aimet / "detr" / encodings, "out": tmp_path / "out"}
    return deploykit.package(aimet / "detr/model.onnx", mixed="fallback", **more, **asked)


def finding(packaged: Packaged, code: str) -> Finding:
    found = [finding for finding in packaged.findings if finding.code == code]
    assert found, [finding.code for finding in packaged.findings]
    return found[0]


def convert_argv(packaged: Packaged) -> tuple[str, ...]:
    return next(step.argv for step in packaged.plan.steps if step.id == "convert")


def written(packaged: Packaged) -> dict[str, Any]:
    assert packaged.package is not None
    (path,) = [p for p in (packaged.package / "encodings").glob("*.json") if p.name != "float_tensors.json"]
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def samples(tmp_path: Path) -> Path:
    folder, rng = tmp_path / "calibration", np.random.default_rng(5)
    folder.mkdir()
    for index in range(3):
        images, sizes = rng.uniform(0, 1, (1, 3, 32, 32)), np.array([[640, 480]])
        np.savez(folder / f"{index}.npz", images=np.float32(images), orig_target_sizes=np.float32(sizes))
    return folder


def test_strategy_1_silent_8_bit_downgrade(aimet: Path, tmp_path: Path) -> None:
    """Float tensors left out, and a calibration list: they would become UFIXED_POINT_8."""
    made = package(aimet, tmp_path, "w8a16-fp16mix-omit.v0.6.1.encodings", calibration=samples(tmp_path))
    found = finding(made, "QNN101")
    assert found.severity == "error" and "UFIXED_POINT_8" in found.message
    five = {"/decoder/Add_2_output_0", "/decoder/Div_output_0", "/decoder/Log_output_0", "/decoder/Add_4_output_0"}
    assert five | {"onnx::Add_4934"} <= set(found.evidence["tensors"]) and found.handled is not None
    argv = convert_argv(made)
    assert "--input_list" not in argv and "--float_fallback" in argv
    assert argv[argv.index("--float_bitwidth") + 1] == "16"


def test_strategy_2_explicit_float_entries(aimet: Path, tmp_path: Path) -> None:
    """Explicit float entries crash quantizer V1 of 2.33; the package says the same thing by leaving them out."""
    made = package(aimet, tmp_path, "w8a16-fp16mix-explicit.v0.6.1.encodings")
    found = finding(made, "QNN102")
    assert found.severity == "error" and found.handled is not None and "omit" in found.handled
    entries = written(made)["activation_encodings"]
    assert all(item["dtype"] == "int" for items in entries.values() for item in items)
    assert "/decoder/Div_output_0" not in entries
    precision = made.plan.precision
    assert precision.expected["/decoder/Div_output_0"] == "float16"
    differing = {name for name, kind in precision.expected.items() if precision.intended.get(name, kind) != kind}
    assert differing <= {name for finding in made.findings for name in finding.evidence.get("tensors", ())}


def test_strategy_3_encodings_2_0_0(aimet: Path, tmp_path: Path) -> None:
    """A 2.0.0 file is a KeyError on 2.33; the package holds it converted down, with what that lost."""
    made = package(aimet, tmp_path, "w8a16.v2.0.0.encodings")
    found = finding(made, "QNN103")
    assert found.severity == "error"
    assert "param_encodings" in found.message or "2.0.0" in found.message
    assert found.handled is not None and "0.6.1" in found.handled
    assert written(made)["version"] == "0.6.1" and "--use_quantize_v2" not in convert_argv(made)
