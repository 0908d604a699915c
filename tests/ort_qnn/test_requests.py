"""Requests that make no sense are refused before anything is compiled, with the right name beside the wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploykit.backend.backend import Request
from deploykit.errors import UnknownTargetError, UsageError
from deploykit.flow.pipeline import make_plan
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"


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
    [
        (("htp_performance_mode", "fastest"), "not one of"),
        (("vtcm_mb", "x"), "expected"),
        (("enable_htp_prepare_only", "maybe"), "1 or 0"),
        (("soc_model", "69"), "sets this one itself"),
        (("ep.context_enabled", "1"), "no such session entry"),
        (("session.disable_cpu_ep_fallback", "yes"), "not one of"),
        (("ep.context_enable", "0"), "sets this one itself"),
    ],
)
def test_wrong_values_are_refused(pair: tuple[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_plan(request(options=(pair,)))


def test_an_option_newer_than_the_wheel_is_refused() -> None:
    option = (("enable_block_quant_weight_optimization", "1"),)
    with pytest.raises(UsageError, match=r"not in onnxruntime-qnn 2\.4\.0"):
        make_plan(request(sdk="2.4.0", options=option))


def test_an_unknown_wheel_is_refused() -> None:
    with pytest.raises(UnknownTargetError, match="no onnxruntime-qnn wheel"):
        make_plan(request(sdk="1.2.3"))


def test_encodings_beside_a_qdq_model_are_refused() -> None:
    with pytest.raises(UsageError, match="quantized already"):
        make_plan(request("cnn/w8a8.qdq.onnx", encodings=AIMET / "cnn/w8a8.v1.0.0.encodings"))


def test_an_integer_precision_needs_encodings() -> None:
    plan = make_plan(request("mlp/model.onnx", precision="w8a8"))
    assert plan.route is None and "ORT002" in plan.rejected[0].because
