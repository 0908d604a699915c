"""Evaluation with a model: the Concat that mixes ranges is named, and the proposed exclusion is closed and ready."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from deploykit.accuracy.judge.compare import evaluate
from deploykit.backend.plugins import all_options
from deploykit.backend.requests import CORE_OPTIONS
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.cli.package import command as package_command
from deploykit.encodings.post_processing import exclusion_around, find_mixing, output_of_shape
from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts
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


def test_a_quantized_model_leads_to_the_same_concat() -> None:
    facts = collect_facts(load_model(QUARK / "vint8.onnx"))
    mixing = find_mixing(facts, "output0", 1)
    assert mixing is not None
    assert mixing.concat.name == "/post/Concat_1"
    assert [(first, stop) for _, first, stop in mixing.parts] == [(0, 4), (4, 8)]
    assert mixing.exclusion == "/head/Reshape,/head/Reshape_1:/post/Concat_1"


@pytest.mark.parametrize(("output", "axis"), [("output0", 2), ("output0", 0)])
def test_another_axis_has_no_concat(output: str, axis: int) -> None:
    assert find_mixing(collect_facts(load_model(QUARK / "fp32.onnx")), output, axis) is None


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
    return collect_facts(wrap_proto(made, path=Path("g.onnx")))


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


def test_the_output_is_found_by_name_then_alone_then_by_shape() -> None:
    facts = graph()
    assert output_of_shape(facts, "y", (9,)) == "y"
    assert output_of_shape(facts, "", (9,)) == "y"


def test_two_models_on_data_trace_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((1, 3, 64, 64), dtype=np.float32))
    models = [str(QUARK / "fp32.onnx"), str(QUARK / "vint8.onnx")]
    assert run(cli, ["accuracy", "compare", *models, "--data", str(tmp_path), "--target", "vek385"]) == 1
    assert "--exclude-subgraph" in capsys.readouterr().out
