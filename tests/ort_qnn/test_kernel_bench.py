"""Kernels that are run on a bench: among neighbours the float model judges what grew in the file as well."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx

from deploykit.accuracy.simulate.sessions import Session
from deploykit_ort_qnn.bench.ask import Bench, Memory
from deploykit_ort_qnn.bench.audit import audit_model
from deploykit_ort_qnn.bench.together import Ran
from deploykit_ort_qnn.rules.audit import RULES


class Notes(Memory):
    """A memory that is not on disk."""

    def __init__(self) -> None:
        self.kept: dict[tuple[bytes, str], dict[str, Any]] = {}

    def get(self, content: bytes, want: str) -> dict[str, Any] | None:
        return self.kept.get((content, want))

    def put(self, content: bytes, want: str, answer: Mapping[str, Any]) -> None:
        self.kept[content, want] = json.loads(json.dumps(answer))


def normalized() -> onnx.ModelProto:
    """A result of few steps by its own length: one step of rounding is much of it."""
    grids = "float s = {0.1}, uint8 z = {128}, float t = {0.0079}"
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[4,6] x) => (float[4,6] y) <{grids}> {{
        q = QuantizeLinear (x, s, z)  a = DequantizeLinear (q, s, z)  [first] n = Neg (a)
        r = QuantizeLinear (n, s, z)  b = DequantizeLinear (r, s, z)  [second] m = LpNormalization <axis: int = 1> (b)
        u = QuantizeLinear (m, t, z)  y = DequantizeLinear (u, t, z)
    }}"""
    return onnx.parser.parse_model(text)


def test_what_grew_among_neighbours_is_told_with_how_far_the_file_is_off_float() -> None:
    def run(probes: Sequence[Any]) -> Iterator[Ran]:
        for probe in probes:
            made = Session(probe.model).runs(probe.samples)
            wanted = {name: [one[name] for one in made] for name in made[0]}
            off = {name: [one + 0.4 * (one > 0.7) for one in values] for name, values in wanted.items()}
            yield Ran(probe=probe, answer="taken", wanted=wanted, got=off if probe.place == "inside" else wanted)

    bench = Bench(run=run, memory=Notes())
    audit = audit_model(normalized(), level="full", bench=bench, by="it", suspects=frozenset())
    assert {one.place: one.verdict for one in audit.kernels} == {"alone": "right", "inside": "right"}
    (found, *_) = RULES["QNN326"].run(audit)
    assert found.evidence["from_float"] > found.evidence["file_from_float"] > 0
    assert "steps off the file" in found.message and "steps off the float model" in found.message
    again = audit_model(normalized(), level="full", bench=replace(bench, seen={}), by="it", suspects=frozenset())
    assert again.kernels == audit.kernels and again.known == len(again.kernels)
