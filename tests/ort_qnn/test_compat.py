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
from deploykit_ort_qnn.provider_keys import choose_options, load_options
from deploykit_qualcomm.devices import qualcomm_device
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def test_what_the_newest_wheels_brought() -> None:
    """Options that exclude each other, and one that a merged pull request has and no wheel."""
    both = [("enable_htp_prepare_and_load", "1"), ("enable_htp_prepare_only", "1")]
    with pytest.raises(UsageError, match="exclude each other"):
        choose_options(both, "2.7.0")
    assert choose_options([both[0], ("enable_htp_prepare_only", "0")], "2.7.0").compile
    with pytest.raises(UsageError, match=r"not in onnxruntime-qnn 2\.6\.0"):
        choose_options(both[:1], "2.6.0")
    with pytest.raises(UsageError, match=r"no released wheel up to 2\.7\.0"):
        choose_options([("enable_htp_matmul_lut", "0")], "2.7.0")
    names = {option.name for option in load_options().option}
    assert all(other in names for option in load_options().option for other in option.excludes)


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


def request(model: str = "mlp/w8a8.qdq.onnx", **more: Any) -> Request:
    return Request(model=AIMET / model, target="sm8550", backend="ort-qnn", **more)


def test_a_wrong_option_name_is_refused_with_the_right_one() -> None:
    with pytest.raises(UsageError, match="no such option") as caught:
        make_plan(request(options=(("vtcm_mbs", "8"),)))
    assert "vtcm_mb" in caught.value.next and caught.value.exit_status == 2
    with pytest.raises(UsageError, match="no released wheel") as caught:
        make_plan(request(options=(("convert_bq_to_lpbq", "1"),)))
    assert "enable_block_quant_weight_optimization" in caught.value.next


@each_row(
    ("pair", "message"),
    (("htp_performance_mode", "fastest"), "not one of"),
    (("vtcm_mb", "x"), "expected"),
    (("enable_htp_prepare_only", "maybe"), "1 or 0"),
    (("soc_model", "69"), "sets this one itself"),
    (("ep.context_enabled", "1"), "no such session entry"),
    (("session.disable_cpu_ep_fallback", "yes"), "not one of"),
    (("ep.context_enable", "0"), "sets this one itself"),
)
def test_wrong_values_are_refused(pair: tuple[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_plan(request(options=(pair,)))


def test_encodings_beside_a_qdq_model_are_refused() -> None:
    with pytest.raises(UsageError, match="quantized already"):
        make_plan(request("cnn/w8a8.qdq.onnx", encodings=AIMET / "cnn/w8a8.v1.0.0.encodings"))


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
