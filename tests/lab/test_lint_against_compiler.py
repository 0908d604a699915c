"""The HTP compiler of the onnxruntime-qnn wheel has the last word: it refuses what a rule refuses, and takes the rest.

No hardware is involved; each case is compiled in a child process with the CPU fallback forbidden.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest

from deploykit.backend.backend import Situation
from deploykit.findings import Finding

pytest.importorskip("onnxruntime_qnn", reason="the wheel is for Linux x86-64 only")

Case = dict[str, Any]

COMPILE = """
import sys
import onnxruntime as ort, onnxruntime_qnn as qnn
ort.register_execution_provider_library(qnn.EP_NAME, qnn.get_library_path())
device = [device for device in ort.get_ep_devices() if device.ep_name == qnn.EP_NAME][:1]
session = ort.SessionOptions()
session.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
session.add_provider_for_devices(device, {"backend_type": "htp", "soc_model": sys.argv[2]})
compiled = ort.InferenceSession(sys.argv[1], sess_options=session)
assert compiled.get_providers()[0] == qnn.EP_NAME
"""


def load(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "qualcomm" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"qualcomm_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GRAPH = load("test_lint_graph_rules")
PROVIDER = load("test_lint_provider_rules")
BUILDING = load("conftest")
situation, lint = BUILDING.situation, BUILDING.lint
SHAPED_BY_DATA = {"graph": "g (float[4] x) => (int64[1,n] y) { y = NonZero (x) }"}
CASES_OF = {**GRAPH.CASES, **PROVIDER.CASES, "DK002": (SHAPED_BY_DATA, GRAPH.one("Relu (x)", "4"))}


@pytest.fixture
def compiles(
    situation: Callable[[Case], Situation], tmp_path: Path
) -> Callable[[Case], subprocess.CompletedProcess[str]]:
    def compile_(case: Case) -> subprocess.CompletedProcess[str]:
        made = situation(case)
        onnx.save(made.model.proto, tmp_path / "m.onnx")
        soc = str(made.target.device.fact("soc_model"))
        argv = [sys.executable, "-c", COMPILE, str(tmp_path / "m.onnx"), soc]
        return subprocess.run(argv, capture_output=True, encoding="utf-8", check=False)

    return compile_


@pytest.mark.parametrize(
    "code",
    [
        *("DK002", "QNN200", "QNN204", "QNN206", "QNN207", "QNN208", "QNN211", "QNN212", "QNN213"),
        *("QNN232", "QNN242", "QNN247", "QNN249"),
    ],
)
def test_the_compiler_refuses_the_triggering_case_and_takes_the_clean_one(code: str, compiles: Any) -> None:
    trigger, clean = CASES_OF[code]
    assert compiles(trigger).returncode != 0
    assert compiles(clean).returncode == 0


@pytest.mark.parametrize(
    ("scale", "bias", "taken"),
    [
        ("uint8", "int32", True),
        ("int8", "int32", False),
        ("int8", "uint8", True),
        ("uint16", "int32", False),
        ("int16", "int32", True),
    ],
)
def test_types_of_a_layer_normalization(
    scale: str,
    bias: str,
    taken: bool,
    compiles: Any,
    lint: Callable[[Case], dict[str, list[Finding]]],
) -> None:
    case = PROVIDER.norm(scale, bias)
    assert (compiles(case).returncode == 0) == taken
    assert ("QNN247" not in lint(case)) == taken


@pytest.mark.parametrize(("elements", "target"), [(1 << 19, "qcs6490"), (1 << 20, "qcs6490"), (5 << 19, "sa8295")])
def test_the_vtcm_of_the_chip_decides(elements: int, target: str, compiles: Any, lint: Any) -> None:
    """Quantized, because v68 computes no float."""
    pairs = "a = QuantizeLinear (x, s, z)  b = DequantizeLinear (a, s, z)  c = Softmax (b)"
    graph = f"g (float[1,{elements}] x) => (float[1,{elements}] y) {{ {pairs}  d = QuantizeLinear (c, s, z) "
    stored = {"s": ("float", (), 0.05), "z": ("uint8", (), 100)}
    case = {"graph": graph + "y = DequantizeLinear (d, s, z) }", "stored": stored, "target": target}
    taken = "QNN204" not in lint(case)
    ended = compiles(case)
    assert (ended.returncode == 0) == taken
    assert taken or "1002" in ended.stderr
