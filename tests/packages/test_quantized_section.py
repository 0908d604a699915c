"""The account of a quantization on a page: what is told, in words, and what is left out."""

from __future__ import annotations

from typing import Any

from deploykit.report.pages import quantized_section

ACCOUNT: dict[str, Any] = {
    "quantizer": "aimet",
    "toolchain": "aimet==2.42.0",
    "versions": {"torch": "2.13", "aimet-onnx": "2.42.0"},
    "precision": "w8a8",
    "options": {"scheme": "min_max", "cle": True, "lpbq": False, "configuration": None, "candidates": 0},
    "notes": ["4 BatchNormalizations folded"],
    "seconds": {"start": 1.25, "calibrate": 9.0},
    "calibration": {"seen": 8},
    "numbers": {
        "sqnr_db": 35.04,
        "quantizers_own": {"sqnr_db": 35.04, "agreement_db": None, "exact": True},
        "samples": {"count": 2, "held_out": True},
        "outputs": [{"name": "y", "sqnr_db": None, "cosine": 1.0, "max_error": 0.0}],
    },
}


def shown(**changes: Any) -> dict[str, str]:
    return dict(quantized_section({**ACCOUNT, **changes}).facts)


def test_the_account_is_told_in_words() -> None:
    told = shown()
    assert told["made by"] == "aimet==2.42.0 (aimet-onnx 2.42.0, torch 2.13)"
    assert told["options"] == "scheme min_max, cle, candidates 0"
    assert told["samples"] == "8 to calibrate, 2 held out to judge"
    assert told["took"] == "10 s"
    assert told["in the quantizer's own simulation"] == "35.0 dB, the same to the bit"
    section = quantized_section(ACCOUNT)
    assert section.notes == ("4 BatchNormalizations folded",)
    assert section.outputs == (("y", "no difference", "1", "0"),)


def test_a_quantizer_without_a_simulation_and_samples_that_were_seen_are_said() -> None:
    numbers = {
        **ACCOUNT["numbers"],
        "quantizers_own": {"sqnr_db": None, "agreement_db": None, "exact": False},
        "samples": {"count": 3, "held_out": False},
    }
    told = shown(numbers=numbers, toolchain="", quantizer="ort", versions={}, options={})
    assert told["made by"] == "ort"
    assert told["options"] == "none"
    assert shown(seconds={"calibrate": 0.21})["took"] == "0.2 s"
    assert told["samples"] == "8 to calibrate, 3 of the same to judge"
    assert told["in the quantizer's own simulation"] == "it has none"


def test_two_simulations_that_differ_are_told_apart() -> None:
    own = {"sqnr_db": 30.0, "agreement_db": 22.7, "exact": False}
    told = shown(numbers={**ACCOUNT["numbers"], "quantizers_own": own})
    assert told["in the quantizer's own simulation"] == "30.0 dB; the two agree to 22.7 dB"
