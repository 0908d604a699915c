"""The parts of the generated quantize.py that need no Quark, and that they agree with what deploykit itself reads."""

import importlib.util
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.accuracy.samples.calibration import places_in, read_places
from deploykit.accuracy.samples.inputs import InputSpec
from deploykit.errors import InputError
from deploykit.flow.quantizing.making import divide
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.report.rendering import render
from deploykit_vitis_ai import configs
from tables import each_row
from text_models import text_model

DATA = Path(__file__).parents[1] / "data" / "quark"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    path = tmp_path_factory.mktemp("package") / "scripts" / "quantize.py"
    path.parent.mkdir()
    path.write_text(render("vitis_ai/scripts/quantize.py.j2", {}))
    spec = importlib.util.spec_from_file_location("generated_quantize", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@each_row(
    ("wanted", "shape", "count"),
    ((1, 3), (1, 3), 1),
    ((1, 3), (4, 3), 4),
    ((2, 3), (4, 2, 3), 4),
    ((None, 3), (4, 3), 1),
    ((1, None), (4, 1, 2), 4),
    ((2, 3), (3, 3), 0),
    ((3,), (2, 2), 0),
)
def test_the_script_splits_samples_as_deploykit_does(
    wanted: tuple[int | None, ...], shape: tuple[int, ...], count: int, script: ModuleType, tmp_path: Path
) -> None:
    array, spec = np.random.default_rng(0).random(shape), InputSpec(name="x", dtype="float32", shape=wanted)
    inputs = {"x": {"shape": list(wanted), "dtype": "float32"}}
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", x=array)
    for path in sorted(tmp_path.iterdir()):
        mine: list[Any] = []
        theirs: list[Any] = []
        with suppress(InputError):
            mine += [sample["x"] for sample in read_places(places_in(path, (spec,)))]
        with suppress(ValueError):
            theirs += [script.checked(sample, inputs)["x"] for sample in script.array_samples(path, inputs)]
        assert len(mine) == len(theirs) == count
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(mine, theirs, strict=True))


@each_row("count", 1, 4, 5, 9, 10, 32, 40)
def test_the_script_holds_out_the_samples_that_deploykit_would(script: ModuleType, count: int, tmp_path: Path) -> None:
    facts = collect_facts(load_model(DATA / "fp32.onnx"))
    np.save(tmp_path / "x.npy", np.zeros((count, 1, 3, 64, 64), np.float32))
    divided = divide(tmp_path / "x.npy", facts)
    assert script.held_out(count, configs.HOLD_OUT) == {place.index for place in divided.held_out}
    assert script.held_out(count, None) == set()


def test_what_is_held_out_is_measured_on_and_never_calibrated_with(script: ModuleType, tmp_path: Path) -> None:
    (script.ROOT / "calibration").mkdir(exist_ok=True)
    np.save(script.ROOT / "calibration" / "x.npy", np.arange(10, dtype=np.float32).reshape(10, 1))
    inputs = {"x": {"shape": [1], "dtype": "float32"}}
    entry = {"kind": "arrays", "files": ["calibration/x.npy"], "inputs": inputs, "hold_out": configs.HOLD_OUT}
    result: dict[str, Any] = {}
    reader = script.collect(entry, result)
    assert result["samples"] == 10 and result["held_out"] == 2
    seen = [float(sample["x"][0]) for sample in iter(reader.get_next, None)]
    assert [float(sample["x"][0]) for sample in reader.held_out] == [2.0, 8.0]
    assert sorted([*seen, 2.0, 8.0]) == list(range(10))
    identity = tmp_path / "identity.onnx"
    onnx.save(text_model("float[1] x", "y = Identity (x)", "float[1] y"), identity)
    script.save_outputs(identity, identity, reader, tmp_path / "out", most=5)
    names = sorted(path.stem for path in (tmp_path / "out" / "candidate").iterdir())
    assert names == ["held_out_000", "held_out_001", "seen_000", "seen_001", "seen_002"]


def test_an_input_that_nothing_reads_is_not_fed(script: ModuleType, tmp_path: Path) -> None:
    onnx.save(text_model("float[2] x, int64[1] length", "y = Relu (x)", "float[2] y"), tmp_path / "m.onnx")
    read, unread = script.without_unread(tmp_path / "m.onnx")
    assert [given.name for given in onnx.load(read).graph.input] == ["x"] and [given.name for given in unread] == [
        "length"
    ]
    assert script.without_unread(read) == (read, ())


def test_nodes_are_sorted_and_nothing_else_changes(script: ModuleType, tmp_path: Path) -> None:
    onnx.save(text_model("float[2] x", "c = Relu (b) a = Relu (x) b = Relu (a)", "float[2] c"), tmp_path / "m.onnx")
    assert script.put_in_order(tmp_path / "m.onnx") is True
    after = onnx.load(tmp_path / "m.onnx")
    assert [node.output[0] for node in after.graph.node] == ["a", "b", "c"]
    onnx.checker.check_model(after)
    before = (tmp_path / "m.onnx").read_bytes()
    assert script.put_in_order(tmp_path / "m.onnx") is False
    assert (tmp_path / "m.onnx").read_bytes() == before


def test_a_calibration_method_becomes_the_member_it_names(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quark takes a plain text without a word and goes on with its preset's method."""

    class PowerOfTwoMethod(Enum):
        MinMSE = 1

    stand_in = ModuleType("quark.onnx")
    stand_in.PowerOfTwoMethod = PowerOfTwoMethod  # type: ignore[attr-defined]
    parent = ModuleType("quark")
    parent.onnx = stand_in  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "quark", parent)
    monkeypatch.setitem(sys.modules, "quark.onnx", stand_in)
    assert script.calibration_method("PowerOfTwoMethod.MinMSE") is PowerOfTwoMethod.MinMSE
    assert script.calibration_method("CalibrationMethod.Entropy").name == "Entropy"
    with pytest.raises(AttributeError):
        script.calibration_method("NoSuchMethod.MinMSE")
