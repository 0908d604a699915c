"""What encodings leave out is completed, or a rule says what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deploykit.encodings.complete import complete, copy_over_movement, derive_biases, effective_entry
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.place import place
from deploykit.encodings.rules import RULES as ENCODING_RULES
from deploykit.encodings.rules import EncodingsOnGraph
from deploykit.encodings.values import Affine, Array, Encoding, EncodingSet, Float, Value
from deploykit.findings import Finding, Severity
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
    ours = complete(place(read_encodings(path), facts), facts, read_values=values_of(model))
    # The older release multiplies the scales of LPBQ in float32 throughout.
    tolerance = 2e-7 if "lpbq" in path.name and "2.31" in str(path) else 0.0
    assert not diff(without_floats(ours.encodings), theirs, grid_only=True, tolerance=tolerance)
    added = set(ours.biases) | set(ours.copies)
    assert added == theirs.entries.keys() - read_encodings(path).entries.keys()
    assert all(ours.encodings.entries[name].is_param == theirs.entries[name].is_param for name in added)


@each_row(
    ("axis", "softmax", "far", "masked"),
    (-1, -1, -20.0, True),
    (3, 3, -20.0, True),
    (3, -1, -1e9, True),
    (2, -1, -20.0, False),
    (-1, 2, -20.0, False),
    (-1, -1, -19.9, False),
)
def test_a_masked_minimum_is_on_the_last_axis_and_far_below(axis: int, softmax: int, far: float, masked: bool) -> None:
    """Whether the axis is an input or, in older operator sets, an attribute."""
    for opset, least in ((17, f"ReduceMin <axes = [{axis}]> (x)"), (18, "ReduceMin (x, axis)")):
        model, facts = read(
            f"lowest = {least}  t = Add (lowest, far)  w = Where (mask, x, t)  y = Softmax <axis = {softmax}> (w)",
            given="float[2,3,4,4] x, bool[2,3,4,4] mask",
            opset=opset,
            far=far,
            axis=[axis],
        )
        given = encoding_set(x=grid(0.5))
        copied = {entry.name for entry in copy_over_movement(given, facts, read_values=values_of(model))}
        assert ("lowest" not in copied) is masked
        assert "lowest" in {entry.name for entry in copy_over_movement(given, facts)}, "only values tell a mask"
    body = "lowest = ReduceMin <axes = [-1]> (x)  t = Add (lowest, far)  w = Where (mask, x, t)  y = Softmax (w)"
    model, facts = read(f"{body}  z = Neg (w)", "y, z", "float[2,3,4,4] x, bool[2,3,4,4] mask", far=-20.0)
    more = copy_over_movement(encoding_set(x=grid(0.5)), facts, read_values=values_of(model))
    assert "lowest" in {entry.name for entry in more}, "something else reads what is masked"


def grid(scale: float, *, bits: int = 8, signed: bool = False) -> Affine:
    return Affine(bits=bits, signed=signed, scale=np.asarray(scale), zero_point=np.asarray(0.0))


def encoding_set(**values: Affine | Float) -> EncodingSet:
    return EncodingSet(version="1.0.0", entries={n: Encoding(name=n, value=v) for n, v in values.items()})


def read(
    body: str, made: str = "y", given: str = "float[2,4] x, float[2,4] z", **more: Any
) -> tuple[Model, GraphFacts]:
    model = wrap_proto(text_model(given, body, made, **more), path=Path("m.onnx"))
    return model, collect_facts(model)


def copied(body: str, given: EncodingSet) -> list[str]:
    return [entry.name for entry in copy_over_movement(given, read(body, "b")[1])]


def test_what_neither_gives_nor_takes_a_grid() -> None:
    body, lends = "a = Relu (x)  b = Transpose (a)", encoding_set(b=grid(0.5))
    assert copied(body, lends) == ["a"]
    assert not copied(body, encoding_set(a=Float(dtype="float16"), b=grid(0.5)))
    assert not copied(body, replace(lends, float_tensors=frozenset({"a"})))
    assert not copied(body, replace(encoding_set(a=grid(0.5)), float_tensors=frozenset({"b"})))
    channels = Affine(bits=8, signed=True, scale=np.ones(4), zero_point=np.zeros(4), axis=1)
    assert not copied("b = Transpose (x)", encoding_set(x=channels)), "axes move too"
    assert copied("b = Identity (x)", encoding_set(x=grid(0.5))) == ["b"]
    assert not copied("b = own.Identity (x)", encoding_set(x=grid(0.5)))


def bias_model(bias: tuple[float, float] = (1.0, -3.0), *, shared: bool = False) -> tuple[Model, GraphFacts]:
    stored: dict[str, Any] = {"w": np.ones((2, 2), "f4"), "w2": np.ones((4, 2), "f4"), "b": list(bias), "lb": [*bias]}
    body = "xt = Transpose (x)  g = Gemm (xt, w, b)  " + ("g2 = Gemm (z, w2, b)  " if shared else "")
    model = text_model(
        "float[2,2] x, float[2,4] z", f"{body}n = LayerNormalization (g, lw, lb)", "n", **stored, lw=[1.0, 1]
    )
    for node in model.graph.node:
        node.name = {"g": "gemm", "g2": "second", "n": "norm"}.get(node.output[0], "")
    read = wrap_proto(model, path=Path("m.onnx"))
    return read, collect_facts(read)


def skipped(encodings: EncodingSet, bias: tuple[float, float] = (1.0, -3.0), *, shared: bool = False) -> dict[str, str]:
    model, facts = bias_model(bias, shared=shared)
    return dict(derive_biases(encodings, facts, read_values=values_of(model)).skipped)


FULL: dict[str, Affine | Float] = {"x": grid(0.5), "w": grid(0.25, signed=True), "g": grid(0.1)}
FULL["lw"] = grid(0.01, signed=True)
ROWS = Affine(bits=8, signed=True, scale=np.ones(2), zero_point=np.zeros(2), axis=0)


def test_the_input_is_found_over_data_movement_and_entries_that_exist_stay() -> None:
    model, facts = bias_model()
    found = effective_entry(encoding_set(**FULL), facts, "xt")
    assert found is not None and found.name == "x"
    assert effective_entry(encoding_set(x=grid(0.5)), facts, "n") is None
    stated = replace(encoding_set(**FULL), float_tensors=frozenset({"xt"}))
    assert effective_entry(stated, facts, "xt") is None, "what is stated to be float has no grid from before it"
    _, cast = read("c = Cast <to = 1> (i)  y = Sigmoid (c)", given="int64[2] i")
    assert effective_entry(encoding_set(i=grid(0.5)), cast, "c") is None, "integers have no grid to hand on"
    explicit = encoding_set(**FULL, b=grid(0.75), lb=Float(dtype="float16"))
    assert not derive_biases(explicit, facts, read_values=values_of(model)).entries


def test_biases_without_an_entry_say_why() -> None:
    without = {gone: encoding_set(**{k: v for k, v in FULL.items() if k != gone}) for gone in ("x", "w")}
    assert skipped(without["x"]) == {"b": "the input of gemm is not quantized"}
    assert skipped(without["w"]) == {"b": "the weight of gemm is not quantized"}
    assert skipped(encoding_set(**FULL | {"x": Float(dtype="float16")})) == {"b": "the input of gemm is float16"}
    listed = replace(without["x"], float_tensors=frozenset({"x"}))
    assert skipped(listed) == {"b": "the input of gemm is not quantized"}
    assert "several ops add it" in skipped(encoding_set(**FULL, z=grid(0.5), w2=grid(0.5)), shared=True)["b"]
    unread = derive_biases(encoding_set(**FULL), bias_model()[1], read_values=lambda name: None)
    assert "cannot be read" in unread.skipped["lb"]
    assert "not placed" in skipped(encoding_set(**FULL | {"w": replace(ROWS, axis=None, placed=False)}))["b"]
    assert "not finite" in skipped(encoding_set(**FULL), (float("inf"), 0.0))["lb"]
    for scale in (1e-200, 1e200):
        odd = encoding_set(**FULL | {"x": grid(scale), "w": grid(scale, signed=True)})
        assert "no usable scale" in skipped(odd)["b"]


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


def decided(zero_point: float) -> EncodingsOnGraph:
    """A score, turned, whose logits reach as far up as the zero point lets them."""
    model = text_model("float[1,2] x", "s = Sigmoid (x)  y = Transpose (s)", "float[2,1] y")
    entries = {"x": Encoding(name="x", value=flat(0.1, zero_point))}
    facts = collect_facts(wrap_proto(model, path=Path("m.onnx")))
    return EncodingsOnGraph(encodings=EncodingSet(version="1.0.0", entries=entries), facts=facts)


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
    "DK111": (on_graph(r=flat(bits=16), c=flat()), on_graph(r=flat(), c=flat())),
}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, ENCODING_RULES)


def only(code: str, context: EncodingsOnGraph) -> Finding:
    (finding,) = ENCODING_RULES[code].run(context)
    return finding


def test_how_grave_it_is_depends_on_what_is_known() -> None:
    integers = CASES["DK109"][0]
    unknown = {name: replace(fact, dtype="") for name, fact in integers.facts.tensors.items()}
    assert not list(ENCODING_RULES["DK109"].run(replace(integers, facts=replace(integers.facts, tensors=unknown))))
    context = CASES["DK105"][0]
    shapeless = {name: replace(fact, shape=None) for name, fact in context.facts.tensors.items()}
    unranked = EncodingsOnGraph(encodings=context.encodings, facts=replace(context.facts, tensors=shapeless))
    assert only("DK105", unranked).severity is Severity.WARNING
