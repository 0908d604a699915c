"""Rules about request and model: one triggering and one clean case each, on tiny models made here."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from deploykit.backend.backend import Request, Situation
from deploykit.backend.targets import find_device
from deploykit.errors import UsageError
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model, wrap_proto
from deploykit_vitis_ai import backend
from deploykit_vitis_ai.draft import QuarkDraft, make_draft
from deploykit_vitis_ai.prepare import DRAFT_REGISTRIES
from deploykit_vitis_ai.tables import releases
from deploykit_vitis_ai.targets import RULES as TARGET_RULES
from deploykit_vitis_ai.targets import PickedRelease, resolve
from rule_cases import check_pairs
from text_models import text_model

DATA = Path(__file__).parents[1] / "data" / "quark"
POST = "/post/Slice,/post/Slice_1,/post/Sigmoid:/post/Concat_1"


def chain(
    *ops: str, opset: int = 17, shape: Iterable[Any] = (1, 3, 8, 8), dtype: str = "float", named: bool = True
) -> ModelProto:
    """One operator after the other, ended by a Conv so that the model has weights."""
    body, last = "", "x"
    for index, op in enumerate(ops):
        body += f"t{index} = {op} ({last}{', w' if op == 'PRelu' else ''}) "
        last = f"t{index}"
    weight = np.ones((4, 3, 1, 1), np.float16 if dtype == "float16" else np.float32)
    sizes = ",".join(map(str, shape))
    model = text_model(f"{dtype}[{sizes}] x", f"{body}y = Conv ({last}, w)", opset=opset, w=weight)
    for index, node in enumerate(model.graph.node):
        node.name = ("conv" if node.op_type == "Conv" else f"n{index}") if named else ""
    return model


def draft(
    model: ModelProto | str = "",
    target: str = "vek385",
    sdk: str | None = None,
    options: tuple[tuple[str, str], ...] = (),
    encodings: Path | None = None,
    calibration: Path | None = Path("data"),
    precision: str | None = "vint8",
    **adapter_options: Any,
) -> QuarkDraft:
    proto = chain("Relu") if model == "" else model
    read = load_model(DATA / proto) if isinstance(proto, str) else wrap_proto(proto, path=Path("model.onnx"))
    asked: Any = {"model": read.path, "target": target, "precision": precision, "options": options}
    request = Request(encodings=encodings, calibration=calibration, adapter_options=adapter_options, **asked)
    resolved = resolve(find_device(backend.devices(), target), sdk)
    facts = collect_facts(read)
    return make_draft(Situation(request=request, model=read, facts=facts, encodings=None, target=resolved))


DRAFT_RULES = {rule.code: rule for registry in DRAFT_REGISTRIES for rule in registry}
QDQ = "vint8.onnx"
AIMET = "../aimet/cnn/w8a8.qdq.onnx"
YOLO = "fp32.onnx"
HALF = chain("Relu", "Sigmoid", dtype="float16")
NEWEST, UNKNOWN = (next(r for r in releases() if r.version == version) for version in ("6.3", "6.1"))
CASES: dict[str, tuple[Any, Any]] = {
    "VAI001": (PickedRelease(requested="6.9", release=NEWEST), PickedRelease(requested=NEWEST.version, release=NEWEST)),
    "VAI002": (PickedRelease(requested="", release=UNKNOWN), PickedRelease(requested="", release=NEWEST)),
    "VAI101": (draft(target="vek280"), draft()),
    "VAI102": (draft(target="phoenix", precision="bf16"), draft(precision="bf16")),
    "VAI103": (draft(target="strix", precision="vint8"), draft(target="strix", precision="a8w8")),
    "VAI104": (draft(target="phoenix", precision=None), draft(precision=None)),
    "VAI105": (draft(calibration=None), draft(calibration=None, random_data=True)),
    "VAI106": (draft(encodings=Path("x.encodings")), draft()),
    "VAI107": (draft(exclude_node=("Conv_9",)), draft(exclude_node=("conv",))),
    "VAI108": (
        draft(YOLO, exclude_subgraph=("/post/Slice,/post/Slice_1:/post/Concat_1",)),
        draft(YOLO, exclude_subgraph=(POST,)),
    ),
    "VAI109": (draft(precision="mixed"), draft(precision="mixed", exclude_node=("conv",))),
    "VAI282": (draft(YOLO, precision="mixed"), draft(YOLO, precision="mixed", exclude_subgraph=(POST,))),
    "VAI110": (draft(precision="bf16", exclude_node=("conv",)), draft(exclude_node=("conv",))),
    "VAI111": (draft(options=(("fe_experiment", "a=1"),)), draft(options=(("fe_args", "a=1"),))),
    "VAI112": (draft(options=(("optimize_level", "4"),)), draft(options=(("optimize_level", "3"),))),
    "VAI113": (draft(HALF), draft()),
    "VAI284": (draft(HALF, sdk="6.2"), draft(HALF, sdk="6.3")),
    "VAI285": (draft(HALF, keep_float16=True), draft(HALF, keep_float16=True, exclude_node=("n0",))),
    "VAI114": (draft(QDQ, precision="bf16"), draft(QDQ, precision=None)),
    "VAI115": (draft(sdk="6.1"), draft(sdk="6.2")),
    "VAI116": (
        draft(target="phoenix", precision="xint8", sdk="1.8"),
        draft(target="phoenix", precision="xint8", sdk="1.7"),
    ),
    "VAI117": (
        draft(target="strix", precision="xint8", sdk="1.7", options=(("xclbin", "a.xclbin"),)),
        draft(target="strix", precision="xint8", sdk="1.5", options=(("xclbin", "a.xclbin"),)),
    ),
    "VAI118": (
        draft(target="strix", precision="xint8", sdk="1.5"),
        draft(target="strix", precision="xint8", sdk="1.6"),
    ),
    "VAI119": (draft(target="strix", precision="bf16", sdk="1.7"), draft(target="strix", precision="bf16", sdk="1.8")),
    "VAI120": (draft(AIMET, precision=None), draft(QDQ, precision=None)),
    "VAI121": (draft(chain("Relu", shape=("n", 3, 8, 8))), draft()),
    "VAI122": (draft(chain("Relu", opset=23)), draft(chain("Relu", opset=20))),
    "VAI123": (draft(chain("NonZero")), draft(chain("NonZero"), target="strix", precision="bf16")),
    "VAI124": (draft(chain("Selu")), draft(chain("Selu"), exclude_node=("n0",))),
    "VAI125": (
        draft(chain("Relu", shape=(2, 3, 8, 8)), target="phoenix", precision="xint8"),
        draft(target="phoenix", precision="xint8"),
    ),
    "VAI126": (
        draft(chain("PRelu"), target="strix", precision="bf16"),
        draft(chain("Relu"), target="strix", precision="bf16"),
    ),
    "VAI128": (draft(YOLO), draft(YOLO, exclude_subgraph=(POST,))),
}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, TARGET_RULES, DRAFT_RULES.values())


def test_names_with_colons_are_understood() -> None:
    model = chain("Relu")
    model.graph.node[0].name, model.graph.node[1].name = "a:0", "b:0"
    assert draft(model, exclude_subgraph=("a:0:b:0",)).exclusions.names(draft(model).facts) == ("a:0", "b:0")
    assert draft(model, exclude_subgraph=('[["a:0"], ["b:0"]]',)).exclusions.regions[0].nodes == {0, 1}
    for bad in ("a", ":", "[1]", '[["a"]]', '["ab", "c"]'):
        with pytest.raises(UsageError):
            draft(model, exclude_subgraph=(bad,))
