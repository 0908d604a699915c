from __future__ import annotations

import json
from typing import Any

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: str, status: int = 0) -> str:
        assert run(cli, ["compat", *args]) == status
        return capsys.readouterr().out

    return call


def test_rows_as_json(call: Any) -> None:
    value = json.loads(call("encodings-2.0.0", "--sdk", "2.33", "--json"))
    assert value["schema"] == 1
    assert value["sdk"]["answered_by"]["qairt"] == "2.33.0"
    (row,) = [r for r in value["rows"] if (r["feature"], r["tool"]) == ("encodings-2.0.0", "qnn-onnx-converter")]
    assert row["status"] == "unsupported"
    assert row["backend"] == "qnn-htp"
    assert row["confidence"] == "reported"
    assert row["source"] == ["qualcomm/aimet#4102"]
    assert row["sdk"] == "2.33.0"


def test_text_shows_both_sides_and_the_sources_and_a_flag_may_be_written_as_it_is(call: Any) -> None:
    assert "flag --use_quantize_v2" in call("--use_quantize_v2")
    text = call("quantizer-v2")
    assert ">=2.35.0,<=2.36" in text
    assert "but: the argument list of 2.35.0 has use_quantize_v2" in text
    assert "source: " in text and "qualcomm/aimet#4102" in text
    assert "v81 (others say v75)" in call("sc8480xp")


def test_one_target_and_one_release(call: Any) -> None:
    value = json.loads(call("fp16", "--target", "sm8350", "--sdk", "2.33", "--json"))
    (row,) = [r for r in value["rows"] if r["feature"] == "fp16" and r["backend"] == "qnn-htp"]
    assert (row["arch"], row["status"]) == ("v68", "unsupported")
    assert {r["backend"] for r in value["rows"]} <= {"", "qnn-htp", "ort-qnn"}


def test_what_changes_between_two_releases(call: Any) -> None:
    value = json.loads(call("diff", "2.33", "2.37", "--target", "sm8650", "--json"))
    states = {(d["feature"], d["tool"]): (d["before"] or {}).get("status") for d in value["differences"]}
    assert states["quantizer-v2", "qnn-onnx-converter"] == "unsupported"
    assert {row["since"] for row in value["releases"]} >= {"2.34.0", "2.35.0", "2.36", "2.37.0"}
    text = call("diff", "2.33", "2.37", "--backend", "qnn-htp")
    assert "unsupported  supported" in text
    assert "2.36: " in text


def test_a_context_binary(call: Any) -> None:
    value = json.loads(
        call("binary", "--built-with", "2.51", "--built-for", "v73", "--sdk", "2.48", "--target", "sm8650", "--json")
    )
    assert {row["status"] for row in value["rows"] if "(" not in row["feature"]} == {"unsupported"}
    call("binary", "--built-with", "2.48", "--built-for", "v73", status=2)


def test_unknown_is_an_answer_and_what_does_not_exist_is_refused(call: Any) -> None:
    text = call("use_quantise_v2")
    assert text.startswith("unknown: ") and "use_quantize_v2" in text
    assert json.loads(call("use_quantise_v2", "--json"))["rows"] == []
    for args in (("fp16", "--sdk", "abc"), ("fp16", "--sdk", "0.1"), ("fp16", "--target", "nochip")):
        call(*args, status=4)
    call("--model", "m.onnx", status=2)


def test_without_a_word_the_features_are_listed_those_of_wheels_too(call: Any) -> None:
    lines = call().splitlines()
    assert "encodings-2.0.0" in lines and len(lines) < 400
    assert "onnxruntime 1.28.0" in call("onnxruntime-qnn 2.3.0")
    assert json.loads(call("quark", "--backend", "vitis-ai", "--json"))["rows"]


def test_documents_stand_beside_what_was_run_for_two_releases(call: Any) -> None:
    text = call("op", "LSTM", "--backend", "ort-qnn", "--sdk", "2.36.1", "--sdk", "2.47")
    before, after = text.split("\n\n")
    assert "in the documents" in before and "unknown" in before and "not finalized" in before
    assert "in the documents" in after and "documented" in after and "taken and right" in after
    value = json.loads(call("op", "LSTM", "--sdk", "2.36.1", "--sdk", "2.47", "--json"))
    assert [answer["sdk"]["requested"] for answer in value["answers"]] == ["2.36.1", "2.47"]


def test_a_release_that_was_not_run_names_the_one_that_was(call: Any) -> None:
    assert "2.33 is answered by kernels of QAIRT 2.36.1, by inference" in call("op", "MatMul", "--sdk", "2.33")
    assert call("op", "MatMul", "--sdk", "2.36.1").rstrip().endswith("2.36.1 is answered by kernels of QAIRT 2.36.1")
