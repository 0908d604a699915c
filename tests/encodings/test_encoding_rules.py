"""Every rule about encodings with a case that triggers it and one that does not, and the fixtures under all rules."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deploykit.encodings.rules import RULES as ENCODING_RULES
from deploykit.encodings.rules import EncodingsOnGraph
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Value
from deploykit.findings import Finding, Severity
from deploykit.model import wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from sample_models.finished_detectors import yolo_like
from tables import each_row
from text_models import text_model


def graph() -> GraphFacts:
    proto = text_model(
        "float[2,4] x",
        "g = Gemm (x, w, b)  r = Reshape (g, shape)  y = Add (r, c)",
        "float[3,4] y",
        w=np.ones((4, 6), np.float32),
        b=[1.0] * 6,
        shape=[3, 4],
        c=[1.0] * 4,
    )
    for node in proto.graph.node:
        node.name = node.op_type.lower()
    return collect_facts(wrap_proto(proto, path=Path("m.onnx")))


def grid(scale: float = 0.5, zero_point: float = 0, *, bits: int = 8, signed: bool = False) -> Affine:
    values: dict[str, Any] = {"scale": np.asarray(float(scale)), "zero_point": np.asarray(float(zero_point))}
    return Affine(bits=bits, signed=signed, symmetric=signed, **values)


def on_graph(version: str = "1.0.0", floats: tuple[str, ...] = (), **values: Value) -> EncodingsOnGraph:
    entries = {name: Encoding(name=name, value=value) for name, value in values.items()}
    encodings = EncodingSet(version=version, entries=entries, float_tensors=frozenset(floats), source="w.encodings")
    return EncodingsOnGraph(encodings=encodings, facts=graph())


def joined(output: Affine) -> EncodingsOnGraph:
    """A detector whose output joins boxes in pixels and scores."""
    values = {"pixels": grid(1.0), "scores": grid(1 / 255), "output0": output}
    entries = {name: Encoding(name=name, value=value) for name, value in values.items()}
    facts = collect_facts(wrap_proto(yolo_like(), path=Path("m.onnx")))
    return EncodingsOnGraph(encodings=EncodingSet(version="1.0.0", entries=entries), facts=facts)


COMPLETE: dict[str, Any] = {"x": grid(), "w": grid(signed=True), "g": grid(), "c": grid(), "y": grid()}
LISTED = Affine(bits=8, signed=True, scale=np.ones(12), zero_point=np.zeros(12), symmetric=True, placed=False)

CASES: dict[str, tuple[EncodingsOnGraph, EncodingsOnGraph]] = {
    "DK101": (on_graph(x=grid(), gg=grid()), on_graph(x=grid(), g=grid())),
    "DK102": (on_graph(a=grid(), b_=grid()), on_graph(x=grid(), gg=grid())),
    "DK103": (on_graph("2.0.0", x=grid()), on_graph("2.0.0", floats=("g",), x=grid())),
    "DK104": (on_graph(x=grid(1e27)), on_graph(x=grid(65504))),
    "DK105": (on_graph("0.6.1", w=LISTED), on_graph("0.6.1", w=grid(signed=True))),
    "DK106": (on_graph(w=grid(zero_point=3)), on_graph(w=grid(zero_point=128), c=grid(zero_point=3))),
    "DK107": (on_graph(b=grid(signed=True)), on_graph(b=grid(bits=32, signed=True), c=grid())),
    "DK108": (on_graph(g=grid(0.5), r=grid(0.25)), on_graph(g=grid(0.5, 128), r=grid(0.5, signed=True))),
    "DK109": (on_graph(shape=grid()), on_graph(x=grid())),
    "DK110": (on_graph(g=grid(zero_point=5, signed=True)), on_graph(g=grid(zero_point=-128, signed=True), x=grid())),
    "DK250": (joined(grid(1.0)), joined(grid(1 / 256, bits=16))),
    "DK111": (on_graph(r=grid(bits=16), c=grid()), on_graph(r=grid(), c=grid())),
}


@each_row("code", sorted(rule.code for rule in ENCODING_RULES))
def test_rules_trigger_and_keep_silent(code: str, as_expected: Callable[[str, Iterable[Finding]], None]) -> None:
    trigger, clean = CASES[code]
    rule = ENCODING_RULES[code]
    found = list(rule.run(trigger))
    as_expected(code, found)
    assert found[0].hint
    assert not list(rule.run(clean))


def only(code: str, context: EncodingsOnGraph) -> Finding:
    (finding,) = ENCODING_RULES[code].run(context)
    return finding


def test_unknown_names_are_listed_with_the_nearest() -> None:
    finding = only("DK101", on_graph(x=grid(), shape_=grid(), nowhere=grid()))
    assert "shape_ (nearest: shape)" in finding.message and "2 of 3 names" in finding.message
    assert finding.evidence["names"] == ["shape_", "nowhere"]
    assert only("DK101", on_graph(floats=("gone",), x=grid())).evidence["names"] == ["gone"]


def test_a_concat_of_unlike_widths_is_told() -> None:
    both = joined(grid(1.0))
    wide = {**both.encodings.entries, "scores": Encoding(name="scores", value=grid(1 / 65535, bits=16))}
    assert not list(ENCODING_RULES["DK111"].run(both))
    assert list(ENCODING_RULES["DK111"].run(replace(both, encodings=replace(both.encodings, entries=wide))))


def test_how_grave_it_is_depends_on_what_is_known() -> None:
    assert not ENCODING_RULES.run(on_graph(**COMPLETE))
    finding = only("DK103", on_graph("2.0.0", **COMPLETE))
    assert finding.severity is Severity.INFO and "no tensor lacks an entry" in finding.message
    gaps = only("DK103", on_graph("2.0.0", **{k: v for k, v in COMPLETE.items() if k != "y"}))
    assert gaps.severity is Severity.WARNING and gaps.evidence["missing"] == ["y"]
    integers = CASES["DK109"][0]
    unknown = {name: replace(fact, dtype="") for name, fact in integers.facts.tensors.items()}
    assert not list(ENCODING_RULES["DK109"].run(replace(integers, facts=replace(integers.facts, tensors=unknown))))
    context = CASES["DK105"][0]
    shapeless = {name: replace(fact, shape=None) for name, fact in context.facts.tensors.items()}
    unranked = EncodingsOnGraph(encodings=context.encodings, facts=replace(context.facts, tensors=shapeless))
    assert only("DK105", unranked).severity is Severity.WARNING
