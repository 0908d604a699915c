"""Every fixture wholly on the NPU, on two of six chips each, run on the emulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploykit.backend.backend import Request
from deploykit.flow.pipeline import Packaged, make_package, read_jobs
from deploykit.packages.verifying import verify_package as verify

AIMET = Path(__file__).parents[1] / "data" / "aimet"
CHIPS = {"sm8350": 30, "sm8450": 36, "sm8550": 43, "sm8650": 57, "sm8750": 69, "sm8850": 87}
MODELS = sorted(path.relative_to(AIMET).as_posix() for path in AIMET.glob("*/*.qdq.onnx") if "fp8" not in path.name)
# Without FP16 (HTP v68) float tensors and per-block weights are a precise no instead.
NEEDS_FP16 = ("fp16", "/bq-")
LEAST_DB = {"w8a8": 25.0, "w4a8": 25.0, "w8a16": 40.0, "amp": 40.0, "lpbq": 55.0, "bq": 55.0, "fp16": 40.0}


def least_db(model: str) -> float:
    variant = Path(model).name
    return next(limit for start, limit in LEAST_DB.items() if variant.startswith(start))


@pytest.mark.parametrize("model", MODELS)
def test_every_fixture_is_wholly_on_the_npu(tmp_path: Path, model: str) -> None:
    """On sm8650 and on one of the other chips in turn."""
    # Whole models are the question here: their kernels by themselves are run in test_audit.py.
    quick = {"kernels": "quick"}
    others = [chip for chip in CHIPS if chip != "sm8650"]
    chips = ["sm8650", others[MODELS.index(model) % len(others)]]
    requests = [
        Request(model=AIMET / model, target=target, backend="ort-qnn", adapter_options=quick) for target in chips
    ]
    outs = [tmp_path / target for target in chips]
    silent = [lambda _line: None] * len(chips)
    for target, out, job in zip(chips, outs, read_jobs(requests, outs, progress=silent), strict=True):
        assert_wholly(job.make(), out, model, target)


def assert_wholly(packaged: Packaged, out: Path, model: str, target: str) -> None:
    if target == "sm8350" and any(word in model for word in NEEDS_FP16):
        assert packaged.exit_status == 1
        assert {f.code for f in packaged.findings if f.blocks} <= {"ORT004", "ORT005", "ORT105", "ORT111"}
        return
    assert packaged.exit_status == 0, (target, [finding.message for finding in packaged.findings if finding.blocks])
    record = json.loads((out / "manifest.json").read_text())["record"]
    assert record["compile"]["nodes_on_cpu"] == 0 and record["compile"]["soc_model"] == CHIPS[target], target
    for decibels in record["numbers"]["outputs"].values():
        assert decibels is None or decibels >= least_db(model), target
    report = verify(out)
    assert report.ok and report.mismatches == (), target
    if not any(word in model for word in NEEDS_FP16):
        assert not {finding.code for finding in packaged.findings} & {"ORT101", "ORT103", "ORT104", "ORT105"}, target


@pytest.mark.parametrize("version", ["0.6.1", "1.0.0", "2.0.0"])
@pytest.mark.parametrize("name", ["cnn/w8a8", "vit/w8a16", "detr/w8a8", "mlp/w8a16"])
def test_encodings_of_every_version_reach_the_npu(tmp_path: Path, name: str, version: str) -> None:
    encodings, model = AIMET / f"{name}.v{version}.encodings", (AIMET / name).with_name("model.onnx")
    packaged = make_package(
        Request(model=model, encodings=encodings, target="sm8650", backend="ort-qnn"), tmp_path / "p"
    )
    assert packaged.exit_status == 0, [finding.message for finding in packaged.findings if finding.blocks]
    assert packaged.plan.route is not None and packaged.plan.route.id == "qdq-from-encodings"
    assert verify(tmp_path / "p").ok
