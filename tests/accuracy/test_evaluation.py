"""Evaluation with a model: the Concat that mixes ranges is named, and the proposed exclusion is closed and ready."""

from __future__ import annotations

import shlex
from pathlib import Path

from onnx import TensorProto, helper

from deploykit.accuracy.judge.compare import evaluate
from deploykit.backend.plugins import all_options
from deploykit.backend.requests import CORE_OPTIONS
from deploykit.cli.package import command as package_command
from deploykit.encodings.post_processing import exclusion_around, find_mixing
from deploykit.model.collect import facts_of
from deploykit.model.facts import GraphFacts

QUARK = Path(__file__).parents[1] / "data" / "quark"


def test_the_concat_is_named_and_the_command_is_ready() -> None:
    found = evaluate(QUARK / "output_fp32", QUARK / "output_vint8", model=QUARK / "fp32.onnx", target="vek385")
    (dead,) = [finding for finding in found.findings if finding.code == "DK601"]
    assert dead.evidence["concat"] == "/post/Concat_1"
    assert "score" in dead.message
    assert "pixels" not in dead.message, "the large operand is not the dead one"
    words = shlex.split(dead.hint)
    assert words[:2] == ["deploykit", "package"]
    known = {option for parameter in package_command.params for option in parameter.opts}
    known |= {spec.flag for spec in (*CORE_OPTIONS, *all_options())}
    assert {word for word in words if word.startswith("-")} <= known
    assert words[words.index("--exclude-subgraph") + 1] == "/head/Reshape,/head/Reshape_1:/post/Concat_1"


def graph(shape: tuple[int | str, ...] = (1, 2, 4), name: str = "join") -> GraphFacts:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Sigmoid", ["x"], ["b"], name="sigmoid"),
        helper.make_node("Concat", ["a", "b"], ["y"], name=name, axis=-2),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", list(shape)), ("y", None))]
    made = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:]), opset_imports=[helper.make_opsetid("", 17)]
    )
    return facts_of(made)


def test_a_negative_axis_and_graph_inputs() -> None:
    mixing = find_mixing(graph(), "y", 1)
    assert mixing is not None
    assert mixing.part_of(2, 4) == ("b",)
    assert exclusion_around(graph(), mixing.concat) == (("relu", "sigmoid"), ("join",))


def test_unknown_lengths_and_missing_names_give_no_proposal() -> None:
    assert find_mixing(graph((1, "n", 4)), "y", 1) is None
    nameless = find_mixing(graph(name=""), "y", 1)
    assert nameless is not None
    assert nameless.exclusion == ""
