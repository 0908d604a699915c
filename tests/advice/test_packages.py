"""What is advised about packages and by qnn-htp helps where it is followed."""

import re
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.findings import Finding
from sample_models.detectors import decoder_detector
from sample_models.networks import attention_net, linear3d_net
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
