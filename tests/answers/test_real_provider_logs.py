"""Failures that the QNN provider really prints here, without hardware: each is run in a child process and diagnosed."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from deploykit.answers.diagnosis import Names, diagnose
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit_qualcomm.known_errors import known_errors

pytest.importorskip("onnxruntime_qnn", reason="the wheel is for Linux x86-64 only")

SESSION = """
import json, sys
import onnxruntime as ort, onnxruntime_qnn as qnn
model, options, entries = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
ort.set_default_logger_severity(int(sys.argv[4]))
ort.register_execution_provider_library(qnn.EP_NAME, qnn.get_library_path())
device = [device for device in ort.get_ep_devices() if device.ep_name == qnn.EP_NAME][:1]
session = ort.SessionOptions()
session.log_severity_level = int(sys.argv[4])
session.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
for key, value in entries.items():
    session.add_session_config_entry(key, value)
session.add_provider_for_devices(device, options)
ort.InferenceSession(model, sess_options=session)
"""
QDQ = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8,8] x) => (float[1,4,8,8] y)
  <float s = {0.1}, uint8 z = {0}, int64 axis = {1}> {
  a = QuantizeLinear (x, s, z)  b = DequantizeLinear (a, s, z)  c = OP
  d = QuantizeLinear (c, s, z)  y = DequantizeLinear (d, s, z) }"""


HTP = '{"backend_type": "htp", "soc_model": "43"}'


def log_of(
    tmp_path: Path,
    op: str,
    options: str = HTP,
    entries: str = "{}",
    *,
    shape: str = "1,4,8,8",
    severity: int = 2,
    stored: str = "",
) -> bytes:
    text = QDQ.replace("c = OP", op if " = " in op and stored else f"c = {op}").replace("1,4,8,8", shape)
    model = onnx.parser.parse_model(text.replace("<float s", f"<{stored}float s"))
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    onnx.save(model, tmp_path / "m.onnx")
    argv = [sys.executable, "-c", SESSION, "m.onnx", options, entries, str(severity)]
    ended = subprocess.run(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return ended.stdout


@pytest.mark.parametrize(
    ("op", "options", "row"),
    [
        ("CumSum <reverse = 1> (b, axis)", HTP, "ort-unsupported-nodes"),
        ("Relu (b)", '{"backend_type": "htp", "soc_model": "9999"}', "ort-unknown-soc"),
        ("Relu (b)", '{"backend_type": "htp", "htp_arch": "74"}', "ort-invalid-arch"),
        ("Relu (b)", '{"backend_type": "htp", "enable_htp_fp16_precision": "1"}', "ort-fp16-soc"),
        ("Relu (b)", '{"backend_type": "gpu"}', "provider-backend-not-initialized"),
    ],
)
def test_a_real_failure_is_known(tmp_path: Path, op: str, options: str, row: str) -> None:
    diagnosis = diagnose(io.BytesIO(log_of(tmp_path, op, options)), known_errors())
    assert diagnosis.causes[0].error.id == row
    assert diagnosis.understood


def test_a_run_that_went_well_shows_no_failure(tmp_path: Path) -> None:
    """Thousands of lines at severity 0, many of which hold a word that a failure has too."""
    log = log_of(tmp_path, "Relu (b)", severity=0)
    assert len(log.splitlines()) > 1000 and b"Unsupported nodes" not in log
    assert [cause.error.id for cause in diagnose(io.BytesIO(log), catalog_of(load_backends())).errors] == []


def test_an_existing_context_is_known(tmp_path: Path) -> None:
    (tmp_path / "c.onnx").write_bytes(b"")
    entries = '{"ep.context_enable": "1", "ep.context_file_path": "c.onnx"}'
    log = log_of(tmp_path, "Relu (b)", HTP, entries)
    assert diagnose(io.BytesIO(log), known_errors()).causes[0].error.id == "ort-context-exists"


def test_an_axis_that_does_not_fit_is_the_cause_of_everything_else(tmp_path: Path) -> None:
    """The whole cascade of the HTP compiler at severity 0: migration, code 17, 1002."""
    log = log_of(tmp_path, "Softmax (b)", shape="1,2621440", severity=0)
    diagnosis = diagnose(io.BytesIO(log), known_errors())
    assert [cause.error.id for cause in diagnosis.errors] == ["vtcm-per-op"]
    assert {follow.error.id for follow in diagnosis.causes[0].follow_ups} >= {"prepare-12-13-17", "finalize-1002"}
    assert diagnosis.understood


def test_a_refused_combination_of_types_is_the_cause_of_the_refused_node(tmp_path: Path) -> None:
    stored = "int8[8] gq = {1,1,1,1,1,1,1,1}, int8 gz = {0}, int32[8] hq = {0,0,0,0,0,0,0,0}, int32 hz = {0}, "
    norm = "g = DequantizeLinear (gq, s, gz)  h = DequantizeLinear (hq, s, hz)  c = LayerNormalization (b, g, h)"
    log = log_of(tmp_path, norm, severity=0, stored=stored)
    names = Names(nodes=[node.name for node in onnx.load(tmp_path / "m.onnx").graph.node])
    first = diagnose(io.BytesIO(log), known_errors(), names).causes[0]
    assert first.error.id == "no-type-combination"
    assert {follow.error.id for follow in first.follow_ups} >= {"validate-3110", "ort-unsupported-nodes"}
    assert [name.onnx[0].partition("_")[0] for name in first.names] == ["LayerNormalization"]
