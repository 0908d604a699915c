"""Logs of failed tools: what is read from them, and logs that real providers wrote."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.answers.diagnosis import Names, diagnose, mangle
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit_qualcomm.known_errors import known_errors
from tables import each_row

NODES = [f"/backbone/encoder/layer.{layer}/attention/value/Add" for layer in range(129)]


def cascade() -> bytes:
    """129 operators that fail for one reason, in the order of the messages of qualcomm/aimet#4086."""
    lines = ["qnn-context-binary-generator pid:42", "<W> Initializing HtpProvider"]
    for node in NODES:
        lines += [
            " 0.0ms [ ERROR ] graph_prepare.cc:217:ERROR:could not create op: q::linearclip",
            "   in[0] N18QuantUint16_5D_TCMEE",
            " 0.0ms [ ERROR ] graph_prepare.cc:1404:ERROR:Op 0x1a preparation failed with err:-1",
            f' 0.0ms [ ERROR ] <E> "{mangle(node)}" generated: could not create op',
        ]
    lines += [
        " 0.0ms [ ERROR ] <E> RouterX86 graph prepare failed 12",
        " 0.0ms [ ERROR ] <E> Failed to finalize graph (id: 1) with err 1002",
        " 9.1ms [ ERROR ] Finalize Graph for Idx = 0 failed with error = 1002",
        " 0.0ms [ ERROR ] <E> Graph model was not finalized. Cannot create binary",
        " 0.0ms [ ERROR ] <E> Failed to get context binary size with err 0x138b",
    ]
    return "\n".join(lines).encode()


def test_a_cascade_is_one_cause_with_its_names_types_and_codes() -> None:
    diagnosis = diagnose(io.BytesIO(cascade()), known_errors(), Names(nodes=NODES))
    (cause,) = diagnosis.causes
    assert (cause.error.id, cause.count, cause.first_line) == ("linearclip-5d", 129, 3)
    followed = {follow_up.error.id for follow_up in cause.follow_ups}
    assert {"op-creation", "prepare-12-13-17", "finalize-1002", "ctx-5003"} <= followed
    assert diagnosis.exit_status == 1
    assert {name.log: name.onnx for name in cause.names} == {mangle(node): (node,) for node in NODES}
    assert all(name.exact and name.kind == "node" for name in cause.names)
    assert dict(cause.terms) == {"QuantUint16_5D_TCM": "16-bit unsigned quantized, rank-5 layout, in TCM"}
    codes = {code.spelling: code for code in diagnosis.codes}
    assert (codes["1002"].code, codes["0x138b"].code) == (1002, 5003)
    meaning = codes["0x138b"].meaning
    assert meaning is not None and "not finalized" in meaning.meaning


def test_a_flood_of_one_failure_is_counted_to_the_last_line() -> None:
    lines = (f"DspTransport.openSession qnn_open failed, 0x0000000e, try {at}\n" for at in range(9000))
    (cause,) = diagnose(io.BytesIO("".join(("begin\n", *lines)).encode()), known_errors()).causes
    assert (cause.error.id, cause.count, cause.first_line) == ("skel-not-opened", 9000, 2)


@pytest.mark.parametrize(
    "log",
    [
        b"\x1b[31m[ ERROR ]\x1b[0m Bitwidth \x1b[1mmust be\x1b[0m present\n",
        "←[0;31m[ ERROR ]←[m Bitwidth [1mmust be[0m present\n".encode(),
        b" 1%\r 50%\r100%\rERROR - Bitwidth must be present\r\n",
        b"\xff\xfe\x80 broken bytes\nERROR - Bitwidth must be present \xc3\x28\n"[3:],
        "ERROR - Bitwidth must be present ✗\n".encode("utf-16"),
        b"ERROR - Bitwidth \x00must be present\n",
        b"x" * 3_000_000 + b" Bitwidth must be present " + b"y" * 3_000_000,
    ],
    ids=["colours", "pasted-colours", "progress", "bad-utf8", "utf16", "nul", "one-line"],
)
def test_dirty_logs(log: bytes) -> None:
    (cause,) = diagnose(io.BytesIO(log), known_errors()).causes
    assert cause.error.id == "keyerror-param-encodings" and "\x1b" not in cause.hits[0].text
    assert "\r" not in cause.hits[0].text and len(cause.hits[0].text) < 1000


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2_200_000), st.integers(1, 400))
def test_a_fragment_is_found_wherever_it_lies(position: int, width: int) -> None:
    """Across the borders of the pieces that are read, with the right line number, once."""
    filler = b"." * width + b"\n"
    before = (filler * (position // len(filler) + 1))[:position]
    diagnosis = diagnose(io.BytesIO(before + b"BQ is not supported\n" + filler * 40), known_errors())
    (cause,) = diagnosis.causes
    assert cause.count == 1 and cause.first_line == before.count(b"\n") + 1
    assert (diagnosis.size, diagnosis.lines) == (len(before) + 20 + 40 * len(filler), cause.first_line + 40)


pytest.importorskip("onnxruntime_qnn", reason="the wheel is for Linux x86-64 only")

SESSIONS = """
import json, os, sys
import onnxruntime as ort, onnxruntime_qnn as qnn
for name, options, entries, severity in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    log = os.open(name + ".log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1), os.dup2(log, 2)
    ort.set_default_logger_severity(severity)
    ort.register_execution_provider_library(qnn.EP_NAME, qnn.get_library_path())
    device = [device for device in ort.get_ep_devices() if device.ep_name == qnn.EP_NAME][:1]
    session = ort.SessionOptions()
    session.log_severity_level = severity
    for key, value in entries.items():
        session.add_session_config_entry(key, value)
    session.add_provider_for_devices(device, options)
    ort.InferenceSession(name + ".onnx", sess_options=session)
    os._exit(0)
"""
"""Each session is another process, which begins where both libraries are imported."""
HTP = {"backend_type": "htp", "soc_model": "43"}
TYPES = "int8[8] gq = {1,1,1,1,1,1,1,1}, int8 gz = {0}, int32[8] hq = {0,0,0,0,0,0,0,0}, int32 hz = {0}, "
NORM = "g = DequantizeLinear (gq, s, gz)  h = DequantizeLinear (hq, s, hz)  c = LayerNormalization (b, g, h)"
ASKED: dict[str, dict[str, Any]] = {
    "ort-fallback-disabled": {"body": "c = CumSum <reverse = 1> (b, axis)"},
    "ort-unknown-soc": {"options": {"backend_type": "htp", "soc_model": "9999"}},
    "ort-invalid-arch": {"options": {"backend_type": "htp", "htp_arch": "74"}},
    "ort-fp16-soc": {"options": {"backend_type": "htp", "enable_htp_fp16_precision": "1"}},
    "provider-backend-not-initialized": {"options": {"backend_type": "gpu"}},
    "ort-context-exists": {"entries": {"ep.context_enable": "1", "ep.context_file_path": "there.onnx"}},
    "well": {"severity": 0},
    "cascade": {"body": "c = Softmax (b)", "shape": "1,2621440", "severity": 0},
    "types": {"body": NORM, "stored": TYPES, "severity": 0},
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the log and the model of each of these."""
    folder, jobs = tmp_path_factory.mktemp("logs"), []
    (folder / "there.onnx").write_bytes(b"")
    for name, asked in ASKED.items():
        body, shape = asked.get("body", "c = Relu (b)"), asked.get("shape", "1,4,8,8")
        model = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 17]> g (float[{shape}] x) => (float[{shape}] y)
            <{asked.get("stored", "")}float s = {{0.1}}, uint8 z = {{0}}, int64 axis = {{1}}> {{
            a = QuantizeLinear (x, s, z)  b = DequantizeLinear (a, s, z)  {body}
            d = QuantizeLinear (c, s, z)  y = DequantizeLinear (d, s, z) }}"""
        )
        for number, node in enumerate(model.graph.node):
            node.name = f"{node.op_type}_{number}"
        onnx.save(model, folder / f"{name}.onnx")
        entries = {"session.disable_cpu_ep_fallback": "1", **asked.get("entries", {})}
        jobs.append((name, asked.get("options", HTP), entries, asked.get("severity", 2)))
    subprocess.run([sys.executable, "-c", SESSIONS, json.dumps(jobs)], cwd=folder, check=True)
    return folder


FOLLOWS = {
    "cascade": ("vtcm-per-op", {"prepare-12-13-17", "finalize-1002"}),  # migration, code 17, 1002
    "types": ("no-type-combination", {"validate-3110", "ort-fallback-disabled"}),
}


@pytest.mark.heavy
@each_row("name", *[name for name in ASKED if name != "well"])
def test_a_real_failure_is_known(name: str, logs: Path) -> None:
    names = Names(nodes=[node.name for node in onnx.load(logs / f"{name}.onnx").graph.node])
    diagnosis = diagnose(io.BytesIO((logs / f"{name}.log").read_bytes()), known_errors(), names)
    first, follows = FOLLOWS.get(name, (name, set()))
    assert diagnosis.causes[0].error.id == first and diagnosis.understood
    assert {follow.error.id for follow in diagnosis.causes[0].follow_ups} >= follows
    if name == "types":
        assert [name.onnx[0].partition("_")[0] for name in diagnosis.causes[0].names] == ["LayerNormalization"]


@pytest.mark.heavy
def test_a_run_that_went_well_shows_no_failure(logs: Path) -> None:
    """Thousands of lines at severity 0, many of which hold a word that a failure has too."""
    log = (logs / "well.log").read_bytes()
    assert len(log.splitlines()) > 1000 and b"Unsupported nodes" not in log
    assert [cause.error.id for cause in diagnose(io.BytesIO(log), catalog_of(load_backends())).errors] == []
