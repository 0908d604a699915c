"""Advice of the core's rules about graphs, encodings, samples and comparisons, followed on their triggering cases."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, inliner, numpy_helper

import deploykit
from deploykit.encodings.values import Float
from sample_models.networks import conv_net, save_with_external_data

GRAPHS, ENCODINGS = "model/test_graph_rules.py", "encodings/test_encoding_rules.py"
SIDES = "accuracy/test_comparison.py"


def top_k(bench: Any) -> Any:
    made = bench.module(GRAPHS)
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "where"])]
    return made.model(nodes, tensors=[made.stored("k", 2, dtype=np.int64)])


def condition_folded(bench: Any) -> Any:
    """What stands in the branch that is always taken stands in the graph."""
    model = bench.trigger("DK003")
    (branch,) = [a.g for a in model.graph.node[1].attribute if a.name == "then_branch"]
    return bench.module(GRAPHS).model([*branch.node, helper.make_node("Identity", ["b"], ["y"])])


def cut_before_it(bench: Any) -> onnx.ModelProto:
    first = helper.make_node("Abs", ["x"], ["a"])
    whole = bench.module(GRAPHS).model([first, *bench.trigger("DK003").graph.node])
    assert bench.look("DK003", whole)
    inferred = onnx.shape_inference.infer_shapes(whole)
    return onnx.utils.Extractor(inferred).extract_model(["x"], ["a"])


def with_opset(bench: Any) -> onnx.ModelProto:
    given = bench.trigger("DK004")
    return helper.make_model(given.graph, opset_imports=[helper.make_opsetid("", 17)])


def inlined(bench: Any) -> onnx.ModelProto:
    return inliner.inline_local_functions(bench.trigger("DK006"))


def checker(bench: Any) -> None:
    path = bench.saved(bench.trigger("DK007"))
    with pytest.raises(onnx.checker.ValidationError, match="opset"):
        onnx.checker.check_model(path, full_check=True)


def finite(bench: Any) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(bench.trigger("DK008"))
    (tensor,) = model.graph.initializer
    values = np.nan_to_num(numpy_helper.to_array(tensor), nan=0.0, neginf=-100.0)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


def float32(bench: Any) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(bench.trigger("DK009"))
    for value in (*model.graph.input, *model.graph.output):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, (4,)))
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    onnx.checker.check_model(model, full_check=True)
    return model


def dropped(bench: Any) -> onnx.ModelProto:
    model: onnx.ModelProto = bench.module(GRAPHS).model()
    passed = model.graph.output.add()
    passed.CopyFrom(model.graph.input[0])
    assert bench.look("DK010", model)
    model.graph.output.remove(passed)
    return model


def identity(bench: Any) -> Any:
    model = bench.trigger("DK010")
    (output,) = (value.name for value in model.graph.output)
    return bench.module(GRAPHS).model([helper.make_node("Identity", [output], ["y"])])


def removed(bench: Any) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(bench.trigger("DK011"))
    read = {name for node in model.graph.node for name in node.input}
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in read]:
        model.graph.initializer.remove(tensor)
    return model


def named(bench: Any) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(bench.trigger("DK012"))
    for node in model.graph.node:
        node.name = node.output[0]
    return model


def copied(bench: Any) -> None:
    (bench.folder / "from").mkdir()
    path = save_with_external_data(conv_net(), bench.folder / "from/model.onnx")
    shutil.copytree(path.parent, bench.folder / "to")
    shutil.rmtree(path.parent)
    found = bench.ask(bench.folder / "to/model.onnx")
    assert [finding.severity for finding in found if finding.code == "DK013"] == ["info"]


def own_model(bench: Any) -> Any:
    """AIMET's file beside the model that it was exported with, and beside another."""
    detr, mlp = bench.aimet / "detr", bench.aimet / "mlp"
    foreign = bench.ask(detr / "model.onnx", encodings=mlp / "w8a8.v1.0.0.encodings")
    assert {"DK101", "DK102"} & {finding.code for finding in foreign}
    return bench.ask(detr / "model.onnx", encodings=detr / "w8a8.v1.0.0.encodings")


def mix(bench: Any, version: str, **more: Any) -> Any:
    encodings = bench.aimet / f"detr/w8a16-fp16mix-omit.v{version}.encodings"
    return bench.ask(bench.aimet / "detr/model.onnx", sdk="2.37", encodings=encodings, **more)


def float_tensors(bench: Any) -> Any:
    assert "DK103" in {finding.code for finding in mix(bench, "2.0.0")}
    names = bench.folder / "float.txt"
    names.write_text("/decoder/Div_output_0\n")
    return mix(bench, "2.0.0", float_tensors=names)


def float_entries(bench: Any) -> Any:
    return bench.module(ENCODINGS).on_graph(**dict.fromkeys("xgcy", Float(dtype="float16")))


def other_versions(bench: Any) -> Any:
    mlp = bench.aimet / "mlp"

    def ask(version: str) -> Any:
        return bench.ask(mlp / "model.onnx", encodings=mlp / f"bq-w4a16.v{version}.encodings")

    assert "DK105" in {finding.code for finding in ask("0.6.1")}
    return [*ask("1.0.0"), *ask("2.0.0")]


def on_graph(**entries: tuple[float, float, dict[str, Any]]) -> Callable[[Any], Any]:
    def make(bench: Any) -> Any:
        made = bench.module(ENCODINGS)
        return made.on_graph(**{name: made.grid(scale, zero, **kind) for name, (scale, zero, kind) in entries.items()})

    return make


def own_outputs(bench: Any) -> Any:
    made = bench.module(SIDES)

    def parts(values: Any) -> Any:
        return made.as_set("a", {"0": {"boxes": values[:, :2], "scores": values[:, 2:]}})

    return made.Judged(comparison=made.compare(parts(made.MIXED), parts(made.NOISY)))


def concat_named(bench: Any) -> None:
    sides = [str(bench.quark / name) for name in ("output_fp32", "output_vint8")]
    answer = bench.run("accuracy", "compare", *sides, "--model", str(bench.quark / "fp32.onnx"), status=1)
    (dead,) = [finding for finding in answer["findings"] if finding["code"] == "DK601"]
    assert "Concat" in dead["message"]


def on_both_sides(bench: Any) -> Any:
    made = bench.module(SIDES)
    both = [made.as_set(label, {"0": {}, "1": {}}) for label in "ab"]
    return made.Judged(comparison=made.compare(*both))


def first_not_finite(bench: Any) -> None:
    """``locate`` names the operator that divides by zero in the candidate."""
    good, bad = quotient(1.0), quotient(0.0)
    found = deploykit.locate(bench.saved(good), bench.saved(bad))
    assert found.first is not None
    assert "divide" in str(found.first)


def quotient(divisor: float) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], "positive"),
        helper.make_node("Div", ["a", "c"], ["q"], "divide"),
        helper.make_node("Neg", ["q"], ["y"], "negative"),
    ]
    info = helper.make_tensor_value_info
    sides = [info("x", TensorProto.FLOAT, (1, 8))], [info("y", TensorProto.FLOAT, (1, 8))]
    stored = [numpy_helper.from_array(np.array(divisor, np.float32), "c")]
    graph = helper.make_graph(nodes, "g", *sides, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def all_finite(bench: Any) -> Any:
    made = bench.module(SIDES)
    return made.Judged(comparison=made.pair(made.MIXED, np.nan_to_num(made.NAN)))


def sides(bench: Any) -> None:
    made = bench.module(SIDES)
    for name, values in (("quantized", made.COARSE), ("float", made.MIXED)):
        (bench.folder / name).mkdir()
        np.savez(bench.folder / name / "0.npz", y=values.astype(np.float32))
    left, right = str(bench.folder / "quantized"), str(bench.folder / "float")
    swapped = bench.run("accuracy", "compare", left, right)
    assert "DK607" in {finding["code"] for finding in swapped["findings"]}
    righted = bench.run("accuracy", "compare", "--baseline", right, "--candidate", left, status=1)
    assert "DK607" not in {finding["code"] for finding in righted["findings"]}


def slices(bench: Any) -> None:
    pair = [str(bench.quark / name) for name in ("output_fp32", "output_vint8_mixed")]
    missed = bench.run("accuracy", "compare", *pair, "--min-sqnr", "90", status=1)
    assert "DK608" in {finding["code"] for finding in missed["findings"]}
    plain, told = (
        bench.text("accuracy", "compare", *pair, "--min-sqnr", "90", *more, status=1) for more in ([], ["--slices"])
    )
    assert len(told.splitlines()) > len(plain.splitlines())


def locate(bench: Any) -> None:
    vit = bench.aimet / "vit"
    answer = bench.run(
        "accuracy",
        "locate",
        str(vit / "model.onnx"),
        "--encodings",
        str(vit / "w8a8.v1.0.0.encodings"),
        "--threshold",
        "30",
        status=1,
    )
    assert answer["first"]["node"]


def threshold(bench: Any) -> None:
    """The limit of a number of a verdict is one that the user may give."""
    models = [str(bench.quark / name) for name in ("fp32.onnx", "vint8.onnx")]
    rng = np.random.default_rng(0)
    np.savez(bench.folder / "data.npz", images=rng.random((1, 3, 64, 64), dtype=np.float32))
    data = ["--data", str(bench.folder / "data.npz")]
    strict = bench.run("accuracy", "compare", *models, *data, "--max-box-error", "1e-9", status=1)
    assert "DK610" in {finding["code"] for finding in strict["findings"]}


def unusable_named(bench: Any) -> None:
    from deploykit.accuracy.samples.data_rules import Survey

    found = bench.look("DK623", Survey(kind="arrays", origin="data", samples=0, unusable=(("a.npy", "damaged"),)))
    assert [finding.subject.name for finding in found] == ["a.npy"]


def given(bench: Any) -> Any:
    """Real samples in place of random data."""
    np.save(bench.folder / "images.npy", np.random.default_rng(0).random((200, 3, 64, 64), dtype=np.float32))
    ask = {"backend": "vitis-ai", "precision": "vint8"}
    model = bench.quark / "fp32.onnx"
    assert "DK627" in {f.code for f in bench.ask(model, "vek385", adapter_options={"random_data": True}, **ask)}
    return bench.ask(model, "vek385", calibration=bench.folder / "images.npy", **ask)


WAYS: dict[str, Callable[[Any], Any]] = {
    "DK002 TopK": top_k,
    "DK003 condition folded": condition_folded,
    "DK003 cut": cut_before_it,
    "DK004 opset_imports": with_opset,
    "DK006 inlined": inlined,
    "DK007 checker": checker,
    "DK008 finite": finite,
    "DK009 float32": float32,
    "DK010 dropped": dropped,
    "DK010 Identity": identity,
    "DK011 removed": removed,
    "DK012 named": named,
    "DK013 copied": copied,
    "own model": own_model,
    "DK103 --float-tensors": float_tensors,
    "DK103 version 1.0.0": lambda bench: mix(bench, "1.0.0"),
    "DK104 float entries": float_entries,
    "DK105 other versions": other_versions,
    "DK107 left out": on_graph(x=(0.5, 0, {}), w=(0.5, 0, {"signed": True})),
    "DK108 one entry": on_graph(g=(0.5, 0, {})),
    "DK110 flag": on_graph(g=(0.5, 5, {"signed": True, "symmetric": False})),
    "DK601 --model": concat_named,
    "DK602 own outputs": own_outputs,
    "DK604 both": on_both_sides,
    "DK606 locate": first_not_finite,
    "DK606 finite": all_finite,
    "DK607 sides": sides,
    "DK608 --slices": slices,
    "DK610 locate": locate,
    "DK610 threshold": threshold,
    "DK622 named": unusable_named,
    "DK627 --calibration": given,
}


def test_what_is_advised_helps(advice: Any, bench: Any) -> None:
    bench.follow(advice, WAYS)
