"""Capability rows, block weight paths, versions and the second opinion."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploykit.backend.backend import Request
from deploykit.errors import ToolError, UnknownTargetError, UsageError
from deploykit.findings import Confidence
from deploykit.flow.pipeline import make_plan
from deploykit.tables.capabilities import Status
from deploykit_ort_qnn import backend
from deploykit_ort_qnn.compat import KernelCell, operator_rows
from deploykit_ort_qnn.compiler import hosts, worker
from deploykit_ort_qnn.prepare import wheel_for
from deploykit_qualcomm.devices import qualcomm_device
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"


@each_row(
    ("typed", "wheel"),
    *((None, "2.7.0"), ("2.7.0", "2.7.0"), ("2.7", "2.7.0"), ("2.51", "2.7.0"), ("2.49.40", "2.5.0")),
    *(("2.36", "1.22.2"), ("2.36.1", "1.22.2"), ("1.22.2", "1.22.2"), ("2.33", "1.22.0"), ("2.22", "1.18.1")),
)
def test_a_version_names_a_wheel_or_the_qairt_inside(typed: str | None, wheel: str) -> None:
    assert wheel_for(typed).version == wheel


def test_a_version_without_a_wheel_is_refused() -> None:
    with pytest.raises(UnknownTargetError, match=r"no onnxruntime-qnn wheel for SDK '2\.34'"):
        wheel_for("2.34")


@each_row(
    ("op_type", "lpbq", "has_bias", "words"),
    ("MatMul", True, False, "integer activations"),
    ("Gemm", True, True, "bias dropped"),
    ("Conv", True, False, "refused as Conv"),
    ("MatMul", False, False, "FP16"),
    ("Gemm", False, True, "refused with a bias"),
)
def test_the_path_of_block_weights_is_told(op_type: str, lpbq: bool, has_bias: bool, words: str) -> None:
    assert words in backend.block_weight_path(op_type=op_type, lpbq=lpbq, has_bias=has_bias, sdk="2.7.0")


def test_the_time_of_one_run_is_that_of_its_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    model = (AIMET / "vit/w8a8.qdq.onnx").read_bytes()
    assert (backend.time_us(model, qualcomm_device("sm8650"), print) or 0) >= 0
    assert "compiling" in capsys.readouterr().out
    with pytest.raises(ToolError, match="no compiler runs here"):
        backend.time_us(model, replace(qualcomm_device("sm8650"), facts={}), print)


def test_float16_mixes_depend_on_the_chip() -> None:
    with_fp16 = backend.mixed_support(backend.resolve(qualcomm_device("sm8650"), None), {})
    assert with_fp16.kinds == {"integer", "fallback"} and with_fp16.safe and "segments" in with_fp16.without
    without = backend.mixed_support(backend.resolve(qualcomm_device("sm8350"), None), {})
    assert without.kinds == {"integer"} and "no float16" in without.without["fallback"]


def test_encodings_beside_a_qdq_model_are_refused() -> None:
    with pytest.raises(UsageError, match="quantized already"):
        make_plan(
            Request(
                model=AIMET / "cnn/w8a8.qdq.onnx",
                encodings=AIMET / "cnn/w8a8.v1.0.0.encodings",
                target="sm8550",
                backend="ort-qnn",
            )
        )


def test_a_worker_and_a_host_say_the_same_of_a_graph_of_which_nothing_is_taken() -> None:
    assert worker.NOTHING_TAKEN == hosts.NOTHING_TAKEN


def row(**more: Any) -> KernelCell:
    return KernelCell(**{"op": "Add", "form": "r 3", "type": "w8a16", "release": "2.36.1", "answer": "taken", **more})


def test_a_release_that_does_not_run_is_answered_by_the_nearest_one_that_does() -> None:
    cells = [row(answer="refused", why="Add"), row(release="2.47.0", decibels=90), row(release="2.51.0", decibels=9.0)]
    found = list(operator_rows(cells))
    rows = {one.since: one for one in found}
    assert len(rows) == len(found), "one row for each span"
    assert rows["2.36.1"].confidence is Confidence.OBSERVED and rows["2.36.1"].status is Status.UNSUPPORTED
    assert rows["2.33.0"].confidence is Confidence.INFERRED and "2.36.1: refused (observed, build 2.36.1.25" in (
        rows["2.33.0"].note
    )
    assert rows["2.42.0"].status is Status.SUPPORTED and rows["2.42.0"].confidence is Confidence.INFERRED
    assert rows["2.47.0"].until == "2.50.99" and rows["2.51.0"].status is Status.BROKEN
