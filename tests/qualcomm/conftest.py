"""Builds situations for lint rules from a few words: a graph in ONNX's text form, encodings, options."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from deploykit.backend.backend import Request, Situation
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Lpbq, Value
from deploykit.findings import Finding
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts, TensorFact, TensorRole
from deploykit.model.load import wrap_proto
from deploykit_qualcomm.resolving import resolve_target
from deploykit_qualcomm.rules.registries import CONVERTERS, PROVIDER, run_lint


def value_of(spec: Mapping[str, Any]) -> Value:
    """``{"type": "uint8", "scale": 0.1, "zero": 3, …}``, ``{"type": "float16"}`` or ``{"type": "lpbq", …}``."""
    kind, scale = spec["type"], np.asarray(spec.get("scale", 0.1), np.float64)
    if kind in ("float16", "bfloat16"):
        return Float(dtype=kind)
    if kind == "lpbq":
        return Lpbq(
            bits=4,
            decompressed_bits=8,
            channel_scale=np.full((1, 4), 0.01),
            block_scale=np.asarray(spec["blocks"], np.float64),
            axis=1,
            block_axis=0,
            block_size=spec.get("block", 16),
        )
    bits = int(kind.removeprefix("u").removeprefix("int"))
    block = {"block_axis": 0, "block_size": spec["block"]} if "block" in spec else {}
    zero = np.broadcast_to(np.asarray(spec.get("zero", 0), np.float64), scale.shape)
    signed = not kind.startswith("u")
    return Affine(bits=bits, signed=signed, scale=scale, zero_point=zero, axis=spec.get("axis"), **block)


def describe(facts: GraphFacts, weights: Mapping[str, tuple[int, ...]]) -> GraphFacts:
    """The facts with float weights added that are too large to be made in a test."""
    added = {
        name: TensorFact(name=name, role=TensorRole.INITIALIZER, dtype="float", shape=shape)
        for name, shape in weights.items()
    }
    size = sum(4 * math.prod(shape) for shape in weights.values())
    return replace(facts, tensors={**facts.tensors, **added}, weight_bytes=facts.weight_bytes + size)


def build(case: Mapping[str, Any]) -> Situation:
    """The situation of one case."""
    opset = case.get("opset", 17)
    text = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> {case["graph"]}'
    proto = onnx.parser.parse_model(text)
    for number, node in enumerate(proto.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    for name, (kind, shape, fill) in case.get("stored", {}).items():
        array = np.broadcast_to(np.asarray(fill, kind + "32" * (kind == "float")), shape)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
    model = wrap_proto(proto, path=Path("model.onnx"))
    entries = {
        name: Encoding(name=name, value=value_of(spec), is_param=spec.get("param"))
        for name, spec in case.get("encodings", {}).items()
    }
    backend = case.get("backend", "qnn-htp")
    request = Request(
        model=Path("model.onnx"),
        target=case.get("target", "sm8550"),
        encodings=Path("model.encodings") if entries else None,
        precision=case.get("precision"),
        options=tuple(case.get("options", {}).items()),
    )
    return Situation(
        request=request,
        model=model,
        facts=describe(collect_facts(model), case.get("described", {})),
        encodings=EncodingSet(version="1.0.0", entries=entries) if entries else None,
        target=resolve_target(request.target, case.get("sdk", "2.47"), backend),
    )


@pytest.fixture(scope="session")
def situation() -> Callable[[Mapping[str, Any]], Situation]:
    """Builds the situation of one case."""
    return build


@pytest.fixture(scope="session")
def lint() -> Callable[[Mapping[str, Any]], dict[str, list[Finding]]]:
    """Runs the lint rules on one case; the findings by code."""

    def run(case: Mapping[str, Any]) -> dict[str, list[Finding]]:
        found: dict[str, list[Finding]] = {}
        for finding in run_lint(build(case), PROVIDER if case.get("backend") == "ort-qnn" else CONVERTERS):
            found.setdefault(finding.code, []).append(finding)
        return found

    return run
