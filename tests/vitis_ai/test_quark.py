"""Real AMD Quark in its isolated environment: installed as a user would, then run. Minutes and gigabytes: heavy."""

import json
from pathlib import Path

import onnx
import pytest

from deploykit.backend.status import Right
from deploykit.errors import ToolError
from deploykit.packages.verifying import verify_package as verify
from deploykit.system.environments import Environment
from deploykit_vitis_ai.runner import run_quark
from real_quark import DEFAULT, Make, codes, installed_quark, is_sound, quark_packages
from sample_models.classifiers import classifier

pytestmark = [pytest.mark.heavy, pytest.mark.xdist_group("quark")]


@pytest.fixture(scope="module")
def default() -> Environment:
    """The Quark that belongs to the newest Vitis AI."""
    return installed_quark(DEFAULT)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return quark_packages(tmp_path)


def test_a_classifier_becomes_vint8(make: Make, default: Environment, tmp_path: Path) -> None:
    onnx.save(classifier(), tmp_path / "cnn.onnx")
    packaged = make(tmp_path / "cnn.onnx", adapter_options={"exclude_nothing": True})
    assert packaged.executed == ("quantize",)
    assert codes(packaged) == {"DK610"}, "random weights: one class of ten is lost"
    assert packaged.package is not None
    report = verify(packaged.package)
    assert is_sound(report), report
    added = {"h_Mul"}  # between GlobalAveragePool and the Mul that enable_npu_cnn adds
    assert {kind for name, kind in report.actual.items() if name not in added} == {"int8"}
    assert not [finding for finding in packaged.findings if finding.code == "VAI205"]
    manifest = json.loads((packaged.package / "manifest.json").read_text())
    assert manifest["record"]["quark"] == "0.12.post1"
    assert manifest["record"]["quality"]["logits"]["min_cosine"] > 0.99


def test_bf16_is_judged_by_an_imitation_that_stays_outside(make: Make, default: Environment, tmp_path: Path) -> None:
    """The compiler makes it; of operator set 12 Quark's imitation would open nowhere."""
    model = classifier()
    model.opset_import[0].version = 12
    onnx.save(model, tmp_path / "cnn.onnx")
    packaged = make(tmp_path / "cnn.onnx", precision="bf16")
    assert packaged.status.right.where == "simulated" and packaged.status.right.count == 16
    assert packaged.status.right.state is not Right.NOT_JUDGED
    assert packaged.package is not None and not (packaged.package / "artifacts").exists()


def test_the_detector_is_dead_in_vint8_and_the_proposed_way_out_cures_it(make: Make, default: Environment) -> None:
    whole = make(out="whole", adapter_options={"exclude_nothing": True})
    assert codes(whole) == {"DK601", "DK610"}
    assert whole.status.right.why.endswith("; --precision bf16 is wider, and is judged in the same way")
    assert whole.exit_status == 1
    (dead,) = [finding for finding in whole.findings if finding.code == "DK601"]
    assert dead.evidence["concat"] == "/post/Concat_1"
    assert (dead.evidence["start"], dead.evidence["stop"]) == (4, 8)
    proposed = dead.evidence["exclude_subgraph"]
    assert proposed in dead.hint

    mixed = make(out="mixed", precision="mixed", adapter_options={"exclude_subgraph": (proposed,)})
    assert codes(mixed) == set() and mixed.exit_status == 0
    assert mixed.package is not None and verify(mixed.package).ok


def test_an_option_that_quark_would_ignore_is_caught(make: Make, default: Environment) -> None:
    packaged = make(out="good")
    assert packaged.package is not None
    path = packaged.package / "config/quantize.json"
    recipe = json.loads(path.read_text())
    recipe["attributes"]["exclude_nodes"] = ["/post/Concat_1"]
    path.write_text(json.dumps(recipe))
    with pytest.raises(ToolError) as failed:
        run_quark(default, packaged.package, recipe="config/quantize.json", progress=lambda line: None)
    assert "no attribute 'exclude_nodes'" in failed.value.why
