"""Tables of Vitis AI, what is left out of quantization, and keys of Quark."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from deploykit.backend.targets import find_device
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model, wrap_proto
from deploykit_vitis_ai import backend, tables
from deploykit_vitis_ai.configs import config_problems
from deploykit_vitis_ai.exclusions import activation_types, resolve_exclusions
from deploykit_vitis_ai.inspection import actual_types, inspect_quantized
from text_models import text_model
from told import check_file


def test_every_row_says_who_says_it() -> None:
    rows = tuple(backend.compat())
    assert len(rows) > 110 and all(row.source and row.confidence is not None and row.note for row in rows)
    short = tables.source_file().sources.keys()
    assert not [row for row in rows if not short.isdisjoint(row.source)], "unexplained short keys"


def test_a_release_that_is_no_more_than_a_name_is_for_those_who_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device, known = find_device(backend.devices(), "vek385"), tables.releases()
    usual, newer = backend.resolve(device, None), replace(known[-1], version="99.1", established=False)
    monkeypatch.setattr("deploykit_vitis_ai.targets.releases", lambda: (*known, newer))
    asked = backend.resolve(device, "99.1").sdk
    assert backend.resolve(device, None) == usual and asked and asked.version == "99.1"


PARTITION: dict[str, object] = {"name": "vaiml_partition", "plugin": "vaip-pass_vaiml_partition"}


def problems(question: str) -> list[str]:
    """Those of a configuration, by the changes to it and the keys of its pass; what is ``null`` is left out."""
    change, keys = json.loads(question)
    config: dict[str, object] = {
        "passes": [{"name": "init", "plugin": "vaip-pass_init"}, {**PARTITION, "vaiml_config": keys}],
        "target": "VAIML",
        "targets": [{"name": "VAIML", "pass": ["init", "vaiml_partition"]}],
    }
    given = {key: value for key, value in {**config, **change}.items() if value is not None}
    return list(config_problems(given, product="versal_ai_edge_gen2"))


DATA = Path(__file__).parents[1] / "data" / "quark"
POST = "/post/Slice,/post/Slice_1,/post/Sigmoid:/post/Concat_1"


def test_what_is_worked_out_is_what_quark_made() -> None:
    facts = collect_facts(load_model(DATA / "fp32.onnx"))
    for name, subgraphs in (("vint8", ()), ("vint8_mixed", (POST,))):
        excluded = resolve_exclusions(facts, (), subgraphs).indices
        made = inspect_quantized(DATA / f"{name}.onnx", precision="vint8")
        actual = actual_types(made.facts, made.grids)
        wanted = activation_types(facts, excluded, "int8")
        assert {tensor: actual[tensor] for tensor in wanted} == wanted


def of_body(body: str) -> GraphFacts:
    """Operators one after the other; Conv has a weight of its own."""
    stored: dict[str, Any] = {"w": np.ones((3, 3, 1, 1), np.float32), "s": [1.0] * 3}
    model = text_model("float[1,3,8,8] x", body, body.rpartition(" =")[0].split()[-1], **stored)
    for node in model.graph.node:
        node.name = f"{node.op_type}_{node.output[0]}"
    return collect_facts(wrap_proto(model, path=Path("g.onnx")))


def region(question: str) -> list[str]:
    """The nodes in a region of one graph; it is closed where every way in passes a start."""
    facts = of_body(
        "a = Relu (x) b = Conv (a, w) c = Sigmoid (a) d = Neg (b) e = Add (b, c) f = Abs (s) g = Mul (a, f)"
    )
    (found,) = resolve_exclusions(facts, (), (question,)).regions
    return [f"leaks: {found.leaks}" if found.leaks else f"closed: {sorted(found.nodes)}"]


def test_a_concat_that_takes_another_in_is_named_after_what_it_makes_too() -> None:
    """So Quark calls the one that it makes of both (observed with 0.12.post1)."""
    facts = of_body("a = Concat <axis = 1> (x, x) b = Concat <axis = 1> (a, x) c = Relu (b)")
    assert resolve_exclusions(facts, ("Concat_a", "Concat_b"), ()).names(facts) == ("Concat_a", "Concat_b", "b")
    assert resolve_exclusions(facts, ("Concat_a", "Relu_c"), ()).names(facts) == ("Concat_a", "Relu_c")


def test_a_normalization_goes_with_the_convolution_that_it_is_folded_into_and_with_no_other() -> None:
    body = "a = Conv (x, w)  b = BatchNormalization (a, s, s, s, s)  c = Relu (b)"
    for more, together in (("", {0, 1}), ("  d = Add (a, c)", {0})):
        facts = of_body(body + more)
        assert resolve_exclusions(facts, ("Conv_a",), ()).indices == together


def types(question: str) -> list[str]:
    """``EXCLUDED | BODY``: what passes values on follows what it reads, what quantizes takes a float value in."""
    excluded, body = question.split(" | ")
    made = activation_types(of_body(body), {int(index) for index in excluded.split(",") if index != "none"}, "int8")
    return [f"{name} {kind}" for name, kind in sorted(made.items())]


def test_what_the_rules_of_configurations_regions_and_types_say() -> None:
    kinds = {"configuration": problems, "region": region, "types": types}
    check_file(Path(__file__).with_name("rules.told"), lambda asked: kinds[asked.split()[0]](asked.split(" ", 1)[1]))
