"""What is advised about packages and by qnn-htp helps where it is followed."""

import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.findings import Confidence, Finding
from deploykit.flow.pipeline import make_plan
from deploykit.tables.devices import Fact
from sample_models.detectors import decoder_detector
from sample_models.networks import attention_net, huge_constant_net, linear3d_net
from seeds import share_of

DATA = Path(__file__).parents[1] / "data"
RELEASES = (("qnn-htp", "2.33"), ("qnn-htp", "2.44"), ("ort-qnn", None))
MADE: dict[str, Callable[[], onnx.ModelProto]] = {
    "attention": attention_net,
    "linear3d": linear3d_net,
    "detector": decoder_detector,
}
LIGHT = ("linear3d", "superres", "gru_lstm", "vit", "distilbert", "boxes")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
FOLDERS = {"vit": DATA / "aimet/vit", "boxes": DATA / "aimet/detr"} | {
    name: DATA / "zoo" / name for name in ("detr", "segformer", "distilbert", "superres", "gru_lstm")
}
PACKED = [path for path in sorted((DATA / "zoo").glob("*.zip")) if path.stem not in FOLDERS]


def runs() -> Iterable[Any]:
    """Each model, float and with AIMET's W8A16 encodings where there are some; what takes long is heavy."""
    for name in (*MADE, *FOLDERS, *(path.stem for path in share_of(PACKED))):
        for encoded in (False, True)[: 1 if name in MADE else 2]:
            for backend, sdk in RELEASES:
                light = name in LIGHT and sdk == "2.33"
                marks = [] if light else [pytest.mark.heavy]
                label = f"{name}-{'w8a16' if encoded else 'float'}-{backend}-{sdk or 'newest'}"
                yield pytest.param(name, encoded, {"backend": backend, "sdk": sdk}, id=label, marks=marks)


def files(bench: Any, name: str, encoded: bool) -> tuple[Path, dict[str, Any]]:
    if name in MADE:
        return bench.saved(MADE[name]()), {}
    folder = FOLDERS.get(name, bench.folder / name)
    if name not in FOLDERS:
        with zipfile.ZipFile(DATA / "zoo" / f"{name}.zip") as packed:
            packed.extractall(folder)
    (model,) = folder.rglob("model.onnx")
    return model, {"encodings": model.with_name("w8a16.v1.0.0.encodings")} if encoded else {}


def data_for(bench: Any, model: Path) -> Path:
    """Samples for every input, small enough for any domain that a graph states."""
    rng, samples = np.random.default_rng(0), {}
    for value in onnx.load(model).graph.input:
        kind = value.type.tensor_type
        shape = (4, *(dim.dim_value for dim in kind.shape.dim))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        is_float = np.issubdtype(dtype, np.floating)
        samples[value.name] = rng.random(shape).astype(dtype) if is_float else np.ones(shape, dtype)
    path: Path = bench.folder / "samples.npz"
    given: dict[str, Any] = samples
    np.savez(path, **given)
    return path


def names_file(bench: Any, names: Iterable[str]) -> Path:
    path: Path = bench.folder / "float.txt"
    path.write_text("\n".join(names), "utf-8")
    return path


def requests_of(bench: Any, finding: Finding, model: Path) -> list[dict[str, Any]]:
    """The requests that an advice amounts to: one for each of the options between which it leaves the choice."""
    hint = finding.hint
    rewrites = re.findall(r"(?<!no)-rewrite ([a-z-]+)(?: or ([a-z-]+))?", hint)
    asked: list[dict[str, Any]] = [{"rewrite": (name,)} for pair in rewrites for name in pair if name]
    left_out = tuple(re.findall(r"--no-rewrite ([a-z-]+)", hint))
    asked += [{"no_rewrite": left_out}] if left_out else []
    asked += [{"precision": "fp16", "encodings": None}] if "--precision fp16" in hint else []
    asked += [{"calibration": data_for(bench, model)}] if "--calibration" in hint else []
    asked += [{"inputs": (f"{name}=1",)} for name in re.findall(r"--input ([\w.]+)=VALUE", hint)]
    asked += [{"float_tensors": names_file(bench, finding.evidence["tensors"])}] if "--float-tensors" in hint else []
    return asked


def is_followed(finding: Finding, request: dict[str, Any], after: Iterable[Finding]) -> bool:
    """True where the finding is gone or handled, or what is found then is about what was asked for."""
    known = [again for again in after if again.code == finding.code and again.subject == finding.subject]
    same = [again for again in known if again.handled is None and again.message == finding.message]
    if "rewrite" in request:
        same = [again for again in after if again.code == finding.code and again.handled is None]
    if "no_rewrite" in request:
        same = [again for again in known if again.evidence == finding.evidence]
    refused = [again.message for again in after if again.code == "DK208"]
    asked = request.get("rewrite", ())
    return not same or any(f"--rewrite {name}: " in message for name in asked for message in refused)


@pytest.mark.parametrize(("name", "encoded", "release"), tuple(runs()))
def test_what_a_whole_run_advises_has_an_effect(name: str, encoded: bool, release: dict[str, Any], bench: Any) -> None:
    model, given = files(bench, name, encoded)
    given |= release
    before: tuple[Finding, ...] = bench.ask(model, **given)
    tried: dict[str, tuple[Finding, ...]] = {}
    for finding in before:
        if finding.handled is not None or not OPTION.search(finding.hint):
            continue
        requests = requests_of(bench, finding, model)
        assert requests, f"{finding.code}: nobody knows how to follow {finding.hint!r}"
        for request in requests:
            key = str(request)
            tried[key] = tried.get(key) or bench.ask(model, **given | request)
            assert is_followed(finding, request, tried[key]), f"{finding.code} after {request}: {finding.message}"


ROUTES, TARGETS = "qnn_htp/test_rules.py", "qualcomm/test_resolving.py"
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
