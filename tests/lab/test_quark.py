"""What two releases of real Quark make of each format, and where they do otherwise than they are told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.accuracy.judge.measures import cosine
from deploykit.errors import ToolError
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.packages.verifying import verify_package as verify
from deploykit.system.environments import Environment
from deploykit_vitis_ai.inspection import inspect_quantized
from deploykit_vitis_ai.runner import run_quark
from pictures import png
from real_quark import DATA, DEFAULT, NEWEST, POST, Make, codes, installed_quark, is_sound, quark_packages
from sample_models.classifiers import classifier

pytestmark = pytest.mark.xdist_group("quark")


@pytest.fixture(scope="module")
def default() -> Environment:
    """The Quark that belongs to the newest Vitis AI."""
    return installed_quark(DEFAULT)


@pytest.fixture(scope="module")
def newest() -> Environment:
    """The Quark that made the fixtures."""
    return installed_quark(NEWEST)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return quark_packages(tmp_path)


def test_packages_equal_the_fixtures_byte_for_byte(make: Make, newest: Environment) -> None:
    newest.require()
    options = (("quark", "0.13"),)
    whole = make(out="whole", options=options, adapter_options={"exclude_nothing": True})
    mixed = make(out="mixed", precision="mixed", options=options, adapter_options={"exclude_subgraph": (POST,)})
    assert whole.package is not None and mixed.package is not None
    assert (whole.package / "artifacts/fp32_vint8.onnx").read_bytes() == (DATA / "vint8.onnx").read_bytes()
    assert (mixed.package / "artifacts/fp32_mixed.onnx").read_bytes() == (DATA / "vint8_mixed.onnx").read_bytes()


@pytest.mark.parametrize(("target", "precision"), [("phoenix", "xint8"), ("strix", "a8w8"), ("krackan", "a16w8")])
def test_ryzen_ai_formats(make: Make, newest: Environment, target: str, precision: str) -> None:
    newest.require()
    whole = {"exclude_nothing": True}
    packaged = make(target=target, precision=precision, options=(("quark", "0.13"),), adapter_options=whole)
    assert codes(packaged) <= {"DK601"}, "the detector's scores may die, nothing else"
    assert packaged.package is not None
    report = verify(packaged.package)
    assert is_sound(report), report.findings or report.mismatches


def test_the_bf16_validation_recipe_runs(make: Make, newest: Environment) -> None:
    packaged = make(precision="bf16", calibration=None)
    assert packaged.package is not None
    done = run_quark(newest, packaged.package, recipe="config/validation_only_bf16.json", progress=lambda line: None)
    model = onnx.load(packaged.package / done.output)
    assert sum(node.op_type == "Cast" for node in model.graph.node) > 10
    assert done.result["random_data"] is True


@pytest.mark.parametrize(("quark", "way"), [("0.13", "float32_model"), ("0.12.post1", "float32_model")])
def test_a_float16_source_goes_through_shapeshifter(
    make: Make, default: Environment, newest: Environment, tmp_path: Path, quark: str, way: str
) -> None:
    onnx.save(half(), tmp_path / "half.onnx")
    whole = {"exclude_nothing": True}
    packaged = make(tmp_path / "half.onnx", options=(("quark", quark),), adapter_options=whole)
    assert codes(packaged) == {"DK601"}
    assert packaged.package is not None
    assert way in json.loads((packaged.package / "config/quantize.json").read_text())
    assert is_sound(verify(packaged.package))


def test_only_what_is_quantized_leaves_float16(make: Make, default: Environment, tmp_path: Path) -> None:
    onnx.save(half(), tmp_path / "half.onnx")
    kept = {"exclude_subgraph": (POST,), "keep_float16": True}
    packaged = make(tmp_path / "half.onnx", precision="mixed", adapter_options=kept)
    assert codes(packaged) == set()
    assert packaged.package is not None
    assert is_sound(verify(packaged.package))
    (path,) = (packaged.package / "artifacts").glob("*_mixed.onnx")
    facts = collect_facts(load_model(path))
    assert {facts.tensors[name].dtype for name in (*facts.inputs, *facts.outputs)} == {"float16"}
    types = {node.name: facts.tensors[node.outputs[0]].dtype for node in facts.nodes if node.name.startswith("/post/")}
    assert set(types.values()) == {"float16"}
    assert sum(node.op_type == "QuantizeLinear" for node in facts.nodes) > 5


def half() -> onnx.ModelProto:
    """The detector in float16."""
    model = onnx.load(DATA / "fp32.onnx")
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def branches() -> onnx.ModelProto:
    """A part whose end has two operands: the first leads to a start at once, the second through one more node."""
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["a"], name="conv"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Sigmoid", ["a"], ["s"], name="sigmoid"),
        helper.make_node("Mul", ["s", "half"], ["m"], name="mul"),
        helper.make_node("Add", ["r", "m"], ["y"], name="add"),
    ]
    values = {"w": np.random.default_rng(1).normal(size=(4, 3, 3, 3)), "half": np.array(0.5)}
    graph = helper.make_graph(
        nodes,
        "branches",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 62, 62])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_part_that_quark_would_leave_out_by_half_stays_out_as_a_whole(
    make: Make, newest: Environment, tmp_path: Path
) -> None:
    """Quark's own search stops at the first operand that leads to a start; deploykit names every node instead."""
    onnx.save(branches(), tmp_path / "branches.onnx")
    excluded = {"exclude_subgraph": ("relu,sigmoid:add",)}
    packaged = make(
        tmp_path / "branches.onnx", precision="mixed", options=(("quark", "0.13"),), adapter_options=excluded
    )
    assert codes(packaged) == set()
    assert packaged.package is not None

    path = packaged.package / "config/quantize.json"
    recipe = json.loads(path.read_text())
    del recipe["attributes"]["nodes_to_exclude"]
    recipe["attributes"]["subgraphs_to_exclude"] = [[["relu", "sigmoid"], ["add"]]]
    path.write_text(json.dumps(recipe))
    done = run_quark(newest, packaged.package, recipe="config/quantize.json", progress=lambda line: None)
    theirs = inspect_quantized(packaged.package / done.output, precision="mixed")
    by_name = {node.name: node for node in theirs.facts.nodes}
    made = theirs.facts.producer_of(by_name["add"].inputs[1])
    assert made is not None
    assert made.op_type == "DequantizeLinear", "Quark quantizes mul inside the excluded part"


def test_a_convolution_that_is_folded_stays_out(make: Make, newest: Environment, tmp_path: Path) -> None:
    """Quark renames a Conv into which it folds a BatchNormalization; excluded by its own name it gets quantized."""
    newest.require()
    onnx.save(classifier(), tmp_path / "cnn.onnx")
    excluded = {"exclude_node": ("conv0",)}
    packaged = make(tmp_path / "cnn.onnx", precision="mixed", options=(("quark", "0.13"),), adapter_options=excluded)
    assert codes(packaged) == set()
    assert packaged.package is not None
    recipe = json.loads((packaged.package / "config/quantize.json").read_text())
    assert recipe["attributes"]["nodes_to_exclude"] == ["conv0", "norm", "a"]
    report = verify(packaged.package)
    assert is_sound(report)
    assert report.actual["c"] == "float32", "relu and pool follow into float"
    model = onnx.load(packaged.package / "artifacts/cnn_mixed.onnx")
    (folded,) = [node for node in model.graph.node if node.output[0] == "b"]
    assert folded.input[0] == "images"


def test_the_numbers_are_those_of_quarks_own_tool(newest: Environment, tmp_path: Path) -> None:
    folders = [str(DATA / "output_fp32"), str(DATA / "output_vint8_mixed")]
    done = newest.run(["-m", "quark.onnx.tools.evaluate", *folders], cwd=tmp_path, timeout=300)
    printed = dict(line.split(": ", 1) for line in done.tail if line.startswith(("Mean ", "Min ", "Max ")))
    pairs = [
        (np.load(path), np.load(DATA / "output_vint8_mixed" / path.name))
        for path in sorted((DATA / "output_fp32").iterdir())
    ]
    assert float(printed["Min cos similarity"]) == pytest.approx(min(cosine(a, b) for a, b in pairs), abs=1e-6)
    assert collect_facts(load_model(DATA / "fp32.onnx")).outputs == ("output0",)


def test_images_are_decoded_as_the_recipe_says(make: Make, default: Environment, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(6):
        (folder / f"{i}.png").write_bytes(png(rng.integers(0, 256, (48, 96, 3), dtype=np.uint8)))
    (folder / "calibration.toml").write_text(
        'schema = 1\nwidth = 64\nheight = 64\nresize = "letterbox"\nscale = 0.00392156862745098\n'
    )
    packaged = make(calibration=folder, precision="mixed", adapter_options={"exclude_subgraph": (POST,)})
    assert codes(packaged) == set()
    assert packaged.package is not None
    assert json.loads((packaged.package / "manifest.json").read_text())["record"]["samples"] == 6


def test_a_reader_with_a_wrong_name_is_caught(
    make: Make, default: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong_reader.py").write_text(
        "import numpy as np\nclass Reader:\n    left = 2\n    def get_next(self):\n"
        "        self.left -= 1\n        value = {'image': np.zeros((1, 3, 64, 64), 'float32')}\n"
        "        return value if self.left >= 0 else None\n"
    )
    with pytest.raises(ToolError) as failed:
        make(calibration=Path("wrong_reader:Reader"))
    assert "['image']" in failed.value.why and "['images']" in failed.value.why
    assert not (tmp_path / "out").exists()
