"""What encodings leave out is completed, or a rule says what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from deploykit.encodings.complete import complete
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.place import place
from deploykit.encodings.rules import RULES as ENCODING_RULES
from deploykit.encodings.rules import EncodingsOnGraph
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Value
from deploykit.model.collect import collect_facts, constant_value
from deploykit.model.facts import GraphFacts
from deploykit.model.load import Model, load_model, wrap_proto
from rule_cases import check_pairs
from sample_models.finished_detectors import yolo_like
from tables import each_row
from text_models import text_model

DATA = Path(__file__).parents[1] / "data"
EXPORTS = [
    *(
        (f"aimet/{path.parts[-2] if 'aimet-2' not in path.parts[-2] else path.parts[-3]}/model.onnx", path)
        for path in sorted((DATA / "aimet").rglob("*.v1.0.0.encodings"))
        if "int32bias" not in path.name
    ),
    *(
        (f"aimet_derived/{path.name.split('.')[0].split('-')[0]}.onnx", path)
        for path in sorted((DATA / "aimet_derived").glob("*.v1.0.0.encodings"))
    ),
    *(
        (f"zoo/{path.parts[-2]}/model.onnx", path)
        for path in sorted((DATA / "zoo").rglob("*.v1.0.0.encodings"))
        if path.with_name(path.name.replace("1.0.0", "2.0.0")).exists()
    ),
]


def values_of(model: Model) -> Callable[[str], Array | None]:
    return lambda name: constant_value(model, name, limit=1 << 20)


def without_floats(encodings: EncodingSet) -> EncodingSet:
    entries = {name: e for name, e in encodings.entries.items() if not isinstance(e.value, Float)}
    return replace(encodings, entries=entries)


@each_row(("model_path", "path"), *EXPORTS)
def test_completed_100_is_aimets_200(model_path: str, path: Path) -> None:
    model = load_model(DATA / model_path)
    facts = collect_facts(model)
    theirs = place(read_encodings(path.with_name(path.name.replace("1.0.0", "2.0.0"))), facts)
    ours, _ = complete(place(read_encodings(path), facts), facts, read_values=values_of(model))
    # The older release multiplies the scales of LPBQ in float32 throughout.
    tolerance = 2e-7 if "lpbq" in path.name and "2.31" in str(path) else 0.0
    assert not diff(without_floats(ours), theirs, grid_only=True, tolerance=tolerance)
    added = ours.entries.keys() - read_encodings(path).entries.keys()
    assert added == theirs.entries.keys() - read_encodings(path).entries.keys()
    assert all(ours.entries[name].is_param == theirs.entries[name].is_param for name in added)


def graph() -> GraphFacts:
    stored: Any = {"w": np.ones((4, 6), np.float32), "b": [1.0] * 6, "shape": [3, 4], "c": [1.0] * 4}
    body = "g = Gemm (x, w, b)  r = Reshape (g, shape)  y = Add (r, c)"
    proto = text_model("float[2,4] x", body, "float[3,4] y", **stored)
    for node in proto.graph.node:
        node.name = node.op_type.lower()
    return collect_facts(wrap_proto(proto, path=Path("m.onnx")))


def flat(scale: float = 0.5, zero_point: float = 0, *, bits: int = 8, signed: bool = False) -> Affine:
    values: dict[str, Any] = {"scale": np.asarray(float(scale)), "zero_point": np.asarray(float(zero_point))}
    return Affine(bits=bits, signed=signed, symmetric=signed, **values)


def on_graph(version: str = "1.0.0", floats: tuple[str, ...] = (), **values: Value) -> EncodingsOnGraph:
    entries = {name: Encoding(name=name, value=value) for name, value in values.items()}
    encodings = EncodingSet(version=version, entries=entries, float_tensors=frozenset(floats), source="w.encodings")
    return EncodingsOnGraph(encodings=encodings, facts=graph())


def joined(output: Affine) -> EncodingsOnGraph:
    """A detector whose output joins boxes in pixels and scores."""
    values = {"pixels": flat(1.0), "scores": flat(1 / 255), "output0": output}
    entries = {name: Encoding(name=name, value=value) for name, value in values.items()}
    facts = collect_facts(wrap_proto(yolo_like(), path=Path("m.onnx")))
    return EncodingsOnGraph(encodings=EncodingSet(version="1.0.0", entries=entries), facts=facts)


def with_input(body: str, result: str, value: Affine) -> EncodingsOnGraph:
    model = text_model("float[1,2] x", body, result)
    entries = {"x": Encoding(name="x", value=value)}
    facts = collect_facts(wrap_proto(model, path=Path("m.onnx")))
    return EncodingsOnGraph(encodings=EncodingSet(version="1.0.0", entries=entries), facts=facts)


def decided(zero_point: float) -> EncodingsOnGraph:
    """A score, turned, whose logits reach as far up as the zero point lets them."""
    return with_input("s = Sigmoid (x)  y = Transpose (s)", "float[2,1] y", flat(0.1, zero_point))


INDEXED = "y = Cast <to = 6> (x)", "int32[1,2] y"
LISTED = Affine(bits=8, signed=True, scale=np.ones(12), zero_point=np.zeros(12), symmetric=True, placed=False)
CASES: dict[str, tuple[EncodingsOnGraph, EncodingsOnGraph]] = {
    "DK101": (on_graph(x=flat(), gg=flat()), on_graph(x=flat(), g=flat())),
    "DK102": (on_graph(a=flat(), b_=flat()), on_graph(x=flat(), gg=flat())),
    "DK103": (on_graph("2.0.0", x=flat()), on_graph("2.0.0", floats=("g",), x=flat())),
    "DK104": (on_graph(x=flat(1e27)), on_graph(x=flat(65504))),
    "DK105": (on_graph("0.6.1", w=LISTED), on_graph("0.6.1", w=flat(signed=True))),
    "DK106": (on_graph(w=flat(zero_point=3)), on_graph(w=flat(zero_point=128), c=flat(zero_point=3))),
    "DK107": (on_graph(b=flat(signed=True)), on_graph(b=flat(bits=32, signed=True), c=flat())),
    "DK108": (on_graph(g=flat(0.5), r=flat(0.25)), on_graph(g=flat(0.5, 128), r=flat(0.5, signed=True))),
    "DK109": (on_graph(shape=flat()), on_graph(x=flat())),
    "DK110": (on_graph(g=flat(zero_point=5, signed=True)), on_graph(g=flat(zero_point=-128, signed=True), x=flat())),
    "DK250": (joined(flat(1.0)), joined(flat(1 / 256, bits=16))),
    "DK112": (decided(255), decided(254)),
    "DK113": (with_input(*INDEXED, flat(0.4)), with_input(*INDEXED, flat(0.2))),
    "DK111": (on_graph(r=flat(bits=16), c=flat()), on_graph(r=flat(), c=flat())),
}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, ENCODING_RULES)
