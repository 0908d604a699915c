"""Advice about Qualcomm devices, releases and the routes through the converters, followed on the triggering cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from deploykit.findings import Confidence
from deploykit.flow.pipeline import make_plan
from deploykit.tables.devices import Fact
from sample_models.networks import huge_constant_net

ROUTES, TARGETS = "qnn_htp/test_rules.py", "qualcomm/test_target_rules.py"
Way = Callable[[Any], Any]


def with_fact(code: str, name: str, value: Any) -> Way:
    """The triggering device with one more line in its file."""

    def add(bench: Any) -> Any:
        target = bench.trigger(code)
        fact = Fact(value=value, source=("a list of supported devices",), confidence=Confidence.DOCUMENTED)
        device = replace(target.device, facts={**target.device.facts, name: fact})
        return replace(target, device=device)

    return add


def other_number(bench: Any) -> None:
    """The number goes into the configuration of the package; that sources disagree stays true."""
    cnn = bench.aimet / "cnn"
    given = {"encodings": cnn / "w8a8.v1.0.0.encodings", "sdk": "2.33"}
    (told,) = (f for f in bench.ask(cnn / "model.onnx", "qcs6490", **given) if f.code == "QNN012")
    assert "--option soc_model=93" in told.hint
    asked = bench.request(cnn / "model.onnx", "qcs6490", options=(("soc_model", "93"),), **given)
    for request, number in ((bench.request(cnn / "model.onnx", "qcs6490", **given), "35"), (asked, "93")):
        assert f"'soc_model': {number}" in str(make_plan(request).to_json()["configs"])
    (plain,) = (f for f in bench.ask(cnn / "model.onnx", "qcs6490", backend="ort-qnn") if f.code == "QNN012")
    assert "--option" not in plain.hint


def detr(bench: Any, name: str, **more: Any) -> Any:
    folder = bench.aimet / "detr"
    return bench.ask(folder / "model.onnx", encodings=folder / f"{name}.encodings", **{"sdk": "2.33", **more})


def mlp(bench: Any, name: str, target: str = "sm8650", **more: Any) -> Any:
    folder = bench.aimet / "mlp"
    return bench.ask(folder / "model.onnx", target, encodings=folder / f"{name}.encodings", **{"sdk": "2.33", **more})


def converted(bench: Any) -> Any:
    """deploykit writes the version that the release reads, whichever it was given."""
    cnn = bench.aimet / "cnn"
    request = bench.request(cnn / "model.onnx", sdk="2.33", encodings=cnn / "w8a8.v2.0.0.encodings")
    plan = make_plan(request)
    assert plan.feasible
    return plan.findings


def gaps_calibrated(bench: Any) -> Any:
    """A file with gaps, on the route on which they are one; with calibration data it can be used."""
    given: dict[str, Any] = {"adapter_options": {"route": "legacy-calibrated"}}
    before = mlp(bench, "bq-w4a16.v0.6.1", **given)
    assert "QNN105" in {finding.code for finding in before}
    path = bench.folder / "x.npz"
    np.savez(path, input=np.random.default_rng(0).normal(size=(8, 4, 48)).astype(np.float32))
    return mlp(bench, "bq-w4a16.v0.6.1", calibration=path, **given)


def clamped(bench: Any) -> Any:
    """The constant of a float model at a value that float16 has."""
    from onnx import numpy_helper

    model = huge_constant_net()
    assert "QNN127" in {finding.code for finding in bench.ask(model)}
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(values.clip(-6e4, 6e4), tensor.name))
    return bench.ask(model)


def fixed_width(bench: Any) -> Any:
    """The operand that was float gets a grid."""
    made = bench.module(ROUTES)
    return made.route("legacy-float-fallback", made.draft("vit", "w8a8.v0.6.1"))


WAYS: dict[str, Way] = {
    "QNN004 known tools": lambda bench: bench.module(TARGETS).chosen("2.47", "2.47.0", "series"),
    "QNN010 device file": with_fact("QNN010", "arch", "v68"),
    "QNN012 --option soc_model": other_number,
    "QNN015 device file": with_fact("QNN015", "vtcm_mb", 8),
    "QNN018 device file": with_fact("QNN018", "soc_model", 57),
    "QNN102 omit form": lambda bench: bench.module(ROUTES).route(
        "legacy-float-fallback", bench.module(ROUTES).mixed("omit")
    ),
    "QNN103 converted": converted,
    "QNN105 --calibration": gaps_calibrated,
    "QNN106 another route": lambda bench: detr(bench, "w8a16-fp16mix-omit.v0.6.1", mixed="fallback"),
    "QNN109 one kind": fixed_width,
    "QNN112 --encodings": lambda bench: bench.ask(
        bench.aimet / "cnn/model.onnx", sdk="2.33", encodings=bench.aimet / "cnn/w8a8.v0.6.1.encodings"
    ),
    "QNN122 with float16": lambda bench: bench.module(ROUTES).mixed(device="sm8650"),
    "QNN122 quantized": lambda bench: bench.module(ROUTES).integer(device="sm8350"),
    "QNN123 8 bits": lambda bench: bench.module(ROUTES).draft("vit", "w8a8.v0.6.1", device="sm8450"),
    "QNN124 per channel": lambda bench: bench.module(ROUTES).draft("mlp", "w8a8.v1.0.0", device="sm8350"),
    "QNN127 clamped": clamped,
    "QNN129 --precision fp16": lambda bench: bench.ask(bench.aimet / "detr/model.onnx", sdk="2.33", precision="fp16"),
    "QNN295 another route": lambda bench: detr(bench, "w8a16-fp16mix-omit.v0.6.1"),
}


def test_what_is_advised_helps(advice: Any, bench: Any) -> None:
    bench.follow(advice, WAYS)
