"""A package is run where the user says, judged by the one judge, and its record kept; faults leave nothing behind."""

import io
import json
import os
import re
import sys
import threading
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace

import deploykit
from deploykit.backend.on_device import DeviceRequest, MeasuredOperator, Place
from deploykit.backend.plugins import load_backend
from deploykit.backend.status import Correctness, Right
from deploykit.cli import cli
from deploykit.cli.frame import run as run_command
from deploykit.devices import runner
from deploykit.devices.record import OutputBeside, RunRecord
from deploykit.devices.run import RunReport
from deploykit.errors import ToolError, UsageError
from deploykit.packages.manifests import content_of, read_manifest
from deploykit.report.pages import with_runs
from tables import each_row

QUICK: dict[str, Any] = {"iterations": 12, "warmup": 1, "seconds": 2.0}


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """The exit status and the JSON of a command line."""
    status = run_command(cli, [*arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_on_this_machine_the_processor_runs_what_has_nothing_else(
    plain: Path, sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(plain), "--on", "local", "--iterations", "12", "--warmup", "1"]
    arguments += ["--data", str(sources / "data")]
    status, record = told(arguments, capsys)
    assert status == 0 and record["ok"] and record["where"] == "simulated"
    assert record["times"] == "no device: the times mean nothing"
    assert record["right"]["right"] == "yes" and record["right"]["samples"] == {"label": "given", "count": 12}
    assert record["latency"]["count"] == 12 == len(record["latency"]["samples_us"])
    assert 10 < record["peak_mb"] < 100_000 and str(plain.parent) not in json.dumps(record)
    # It is in the package, which is as sound as before, and in its report; a second run adds one.
    assert deploykit.verify(plain).ok
    before = (plain / "report.html").read_bytes()
    assert b"Run 0001 on" in before and b"right: yes, on 12 given samples" in before
    run_command(cli, [*arguments, "--against", str(plain)])
    assert "(A is this run)" in capsys.readouterr().out
    runs = read_manifest(plain)["runs"]
    assert [run["id"] for run in runs] == ["0001", "0002"]
    assert json.loads((plain / runs[0]["record"]).read_text("utf-8"))["latency"] == record["latency"]
    # A process that is killed after the manifest leaves the page before; no other page is taken for it.
    assert b"Run 0002 on" in (plain / "report.html").read_bytes()
    for page, sound in ((before, True), (before[:-1], False), (before + b" ", False), (before, True)):
        (plain / "report.html").write_bytes(page)
        assert deploykit.verify(plain).ok is sound
    # A budget that nothing can hold is a no, for a server too.
    suites = plain.parent / "junit.xml"
    assert run_command(cli, [*arguments, "--max-p90", "0.001us", "--junit", str(suites)]) == 1
    assert [suite.get("failures") for suite in ElementTree.parse(suites).getroot()] == ["1"]


def test_what_a_run_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A device that loses more than the emulator, on a chip that no table has; and a program that failed there."""
    place = Place(kind="adb", system="Android", machine="aarch64", folder="/data/here", soc="SM0001")
    judged: dict[str, Any] = {"package": "p", "backend": "qnn-htp", "target": "sm8650", "where": "device"}
    judged |= dict.fromkeys(("started", "power"), "")
    beside = OutputBeside(output="y", device_db=20.0, emulator_db=40.0, beside_db=20.0)
    yes = Correctness(state=Right.YES)
    spent = tuple(MeasuredOperator(node=f"n{n}", raw="", value=float(n), unit="us") for n in range(1, 100))
    record = RunRecord(**judged, device=place, right=yes, emulator=yes, outputs=(beside,), operators=spent)
    known = deploykit.diagnose(io.BytesIO(b"DspTransport.openSession qnn_open failed, 0x0000000e"))
    reports = [RunReport(record=record, path="here"), RunReport(record=None, status=14, said=("no",), diagnosis=known)]
    monkeypatch.setattr("deploykit.api.run", lambda *_, **__: reports.pop(0))
    asked = ["run", "p", "--on", "adb", "--keep", "--draft", str(tmp_path / "my" / "drafts")]
    assert run_command(cli, asked) == 0
    said = capsys.readouterr().out
    assert "y: 20.0 dB here, 40.0 dB on the emulator" in said and "/data/here, on the device" in said
    assert "n99: 99 us\ndearest    n98: 98 us" in said and "n1: " not in said
    assert (tmp_path / "my" / "drafts" / "sm0001.toml").is_file()
    assert run_command(cli, [*asked, "--junit", str(tmp_path / "j.xml")]) == 5
    assert "the program on the device failed (status 14)" in capsys.readouterr().out
    assert [suite.get("errors") for suite in ElementTree.parse(tmp_path / "j.xml").getroot()] == ["1"]
    reports.append(RunReport(record=None, status=14))
    assert run_command(cli, [*asked, "--json"]) == 5 and json.loads(capsys.readouterr().out)["status"] == 14


CPU = "CPUExecutionProvider"


@each_row(
    ("asked", "count", "failure"),
    ({"seconds": 60.0, "profile": False}, 5, ""),
    ({"seconds": 0.0, "provider": CPU, "plugin": {"module": "no.such", "built_in": {}}}, 1, ""),
    ({"seconds": 0.0, "provider": CPU, "plugin": {"module": "onnxruntime", "library": "", "paths": {}}}, 1, ""),
    ({"provider": "NPU", "plugin": {"module": "onnxruntime", "library": "", "paths": {}}}, 0, "NPU offers no device"),
)
def test_what_runs_on_a_device_keeps_to_the_time_and_to_the_provider(
    asked: dict[str, Any], count: int, failure: str, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time left one inference is measured; whoever asked for an accelerator is given no processor's times."""
    monkeypatch.chdir(tmp_path)
    feed: dict[str, Any] = {"0:x": np.zeros((1, 3, 16, 16), np.float32)}
    np.savez("inputs.npz", **feed)
    job = {"model": str(sources / "net.onnx"), "samples": 1, "iterations": 5, "warmup": 2, "profile": True}
    entries = {"session.intra_op.allow_spinning": "0"}
    Path("job.json").write_text(json.dumps({**job, "entries": entries, **asked}), "utf-8")
    if failure:
        with pytest.raises(SystemExit, match=re.escape(failure)):
            runner.main()
        return
    monkeypatch.setattr("resource.getrusage", lambda _: SimpleNamespace(ru_maxrss=3 << 19))  # the system counts in KiB
    runner.main()
    result = json.loads(Path("result.json").read_text("utf-8"))
    assert (len(result["latencies_us"]), result["peak_mb"]) == (count, 1536.0)
    assert Path("session_profile.json").is_file() is asked.get("profile", True)


def test_a_record_that_never_came_into_the_manifest_is_cleared(plain: Path) -> None:
    """What a process leaves that is killed between the record and the manifest."""
    (plain / "artifacts" / "runs").mkdir(parents=True)
    (plain / "artifacts" / "runs" / "0001.json").write_text("{", "utf-8")
    report = deploykit.run(plain, on="local", **QUICK)
    assert report.path == "artifacts/runs/0001.json" and deploykit.verify(plain).ok


@pytest.mark.heavy
def test_two_runs_at_once_are_both_kept(plain: Path) -> None:
    failed: list[BaseException] = []

    def start() -> None:
        try:
            deploykit.run(plain, on="local", **QUICK)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(read_manifest(plain)["runs"]) == 2 and deploykit.verify(plain).ok


@each_row(
    ("found", "told"),
    ({"right": "no", "emulator": "yes"}, "They differ: on the same samples the emulator says yes, the device no."),
    ({"right": "yes", "emulator": "yes"}, "Both agree in every output."),
    ({"right": "no", "emulator": "yes", "parts": ["y"]}, "The device loses more than the emulator in y."),
)
def test_the_report_says_where_device_and_emulator_differ(found: dict[str, Any], told: str) -> None:
    run = {"id": "0001", "device": "SM8650", "where": "device", "content": content_of({"files": {}}), **found}
    here = {**run, "id": "0002", "where": "emulator"}
    manifest = {"files": {}, "runs": [run, here], "status": {"right": "yes", "where": "emulator", "compiled": "yes"}}
    page = with_runs("<title>✓ m</title><!-- runs on devices --><!-- end of runs -->rest", manifest)
    assert all(words in page for words in (told, "Run 0001 ", "Run 0002 ", "The emulator had said: yes."))
    assert page.endswith("rest")
    assert page.startswith("<title>✗ m" if found["right"] == "no" else "<title>? m")
    assert with_runs("a page of one's own", manifest) == ""


SSH = "ssh://somebody@there:22"


@pytest.mark.heavy
def test_over_ssh_a_package_is_pushed_once_run_and_judged(compiled: Path, phone: Path) -> None:
    first = deploykit.run(compiled, on=SSH, python=sys.executable, **QUICK).record
    assert first is not None and first.where == "emulator" and str(first.right.state) == "yes"
    assert first.units == {"NPU": 5} and {one.unit for one in first.operators} == {"cycles"}
    kept = {path: path.stat().st_ino for path in (phone / "deploykit/files").iterdir()}
    second = deploykit.run(compiled, on=SSH, python=sys.executable, **QUICK).record
    assert second is not None
    again = {path: path.stat().st_ino for path in (phone / "deploykit/files").iterdir()}
    assert {path: again[path] for path in kept} == kept
    assert list((phone / "deploykit/runs").iterdir()) == []
    deploykit.run(compiled, on=SSH, python=sys.executable, keep=True, **QUICK)
    (left,) = (phone / "deploykit/runs").iterdir()
    assert (left / "outputs.npz").is_file()
    assert len(read_manifest(compiled)["runs"]) == 3 and deploykit.verify(compiled).ok


@pytest.mark.heavy
def test_what_cannot_work_is_said_before_anything_is_pushed(compiled: Path, plain: Path, phone: Path) -> None:
    with pytest.raises(ToolError, match="no Python"):
        deploykit.run(compiled, on=SSH, python="/no/such/python")
    wrong = phone / "python"
    wrong.write_text("#!/bin/sh\necho 1.2.3\n", "utf-8")
    wrong.chmod(0o755)
    with pytest.raises(ToolError, match=r"onnxruntime-qnn 1\.2\.3, the package is for"):
        deploykit.run(compiled, on=SSH, python=str(wrong))
    with pytest.raises(UsageError, match="runs nothing there"):
        deploykit.run(plain, on=SSH)
    assert list((phone / "deploykit/files").iterdir()) == []
    assert "runs" not in read_manifest(compiled)


@pytest.mark.heavy
def test_through_adb_the_sdks_program_runs_a_context_binary(
    context_package: Path, phone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part is played by a program on the emulator's libraries, with the same command line and files."""
    on = "adb:S1"
    record = deploykit.run(context_package, on=on, power="balanced", **QUICK).record
    assert record is not None and record.where == "device" and str(record.right.state) == "yes"
    assert record.emulator is not None and str(record.emulator.state) == "yes"
    assert [output.parts for output in record.outputs] == [False] and record.outputs[0].emulator_db is not None
    assert record.latency is not None and record.latency.count == 12 and record.units == {"NPU": 5}
    assert record.device.soc == "SM8650" and "lower priority" in record.started
    (entry,) = read_manifest(context_package)["runs"]
    assert entry["where"] == "device" and "S1" not in json.dumps(record.to_json())
    # What the device says outranks the emulator; both are told.
    assert deploykit.verify(context_package).to_json()["status"]["where"] == "device"
    told = deploykit.explain(context_package)
    assert told.shipping.word == "ship it" and "it ran on the device" in told.shipping.why
    (lines,) = [chapter.lines for chapter in told.chapters if chapter.title == "On a device"]
    assert "right: yes, on 8 recorded samples" in lines[0] and lines[1].startswith("The emulator had said: yes")
    assert lines[2] == "Both agree in every output." and "(p90)" in lines[3]
    report = unescape((context_package / "report.html").read_text("utf-8"))
    assert "Ship it" in report and all(line in report for line in lines)
    kept = (context_package / "artifacts" / "runs" / "0001.json").read_text("utf-8")
    assert '"soc": "SM8650"' in kept and "/stem/relu" in kept
    # What is of another release, another chip, or not allowed there, is said; the first two before anything is pushed.
    pushed = sorted(path.name for path in (phone / "deploykit" / "files").iterdir())
    sdk = Path(os.environ["QAIRT_SDK_ROOT"])
    (sdk / "sdk.yaml").write_text("name: qairt\nversion: 2.40.0\n", "utf-8")
    with pytest.raises(ToolError, match=r"is version 2\.40\.0, the package is for 2\.51"):
        deploykit.run(context_package, on=on, **QUICK)
    (sdk / "sdk.yaml").write_text("name: qairt\nversion: 2.51.0\n", "utf-8")
    for name, build in (("lib/aarch64-android/libQnnHtpV75Stub.so", b"1"), (_SKEL, b"2")):
        (sdk / name).write_bytes(b"\0v2.51.0.25010" + build + b"0000_1\0")
    with pytest.raises(ToolError, match="stub and skel are of two releases"):
        deploykit.run(context_package, on=on, **QUICK)
    assert sorted(path.name for path in (phone / "deploykit" / "files").iterdir()) == pushed
    (sdk / _SKEL).unlink()
    with pytest.raises(ToolError, match=r"V75Skel\.so: is missing"):
        deploykit.run(context_package, on=on, **QUICK)
    (sdk / _SKEL).write_bytes(b"skel")
    monkeypatch.setenv("STANDIN_DSP", _REFUSED)
    failed = deploykit.run(context_package, on=on, **QUICK)
    assert failed.exit_status == 5 and failed.record is None and failed.diagnosis is not None
    assert failed.diagnosis.errors and len(read_manifest(context_package)["runs"]) == 1
    monkeypatch.delenv("STANDIN_DSP")
    getprop = phone / "bin" / "getprop"
    getprop.write_text(getprop.read_text("utf-8").replace("SM8650", "SM8550"), "utf-8")
    with pytest.raises(ToolError, match=r"is sm8550 \(v73\), and the package is for sm8650 \(v75\)"):
        deploykit.run(context_package, on=on, **QUICK)
    getprop.write_text(getprop.read_text("utf-8").replace("SM8550", "SM8650"), "utf-8")
    assert len(read_manifest(context_package)["runs"]) == 1 and deploykit.verify(context_package).ok


_SKEL = "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"
_REFUSED = "[ ERROR ] <E> DspTransport.openSession qnn_open failed, 0x0000000e, prio 100"


def test_a_board_is_given_the_compiled_model_and_its_cache(sources: Path, tmp_path: Path) -> None:
    """Only the job is looked at: no provider of such a board can be installed here."""
    out = tmp_path / "board"
    deploykit.package(sources / "net.onnx", target="strix", backend="vitis-ai", precision="bf16", out=out)
    backend, manifest = load_backend("vitis-ai"), read_manifest(out)
    place = Place(kind="ssh", system="Linux", machine="x86_64", folder="/x", python="/usr/bin/python3")
    request = DeviceRequest(feeds=[{"x": np.zeros((1, 3, 16, 16), np.float32)}], place=place)
    with pytest.raises(ToolError, match="not compiled"):
        backend.device_job(out, manifest, request)
    (out / "artifacts" / "cache" / "net").mkdir(parents=True)
    (out / "artifacts" / "cache" / "net" / "compiled.bin").write_bytes(b"0")
    job = backend.device_job(out, manifest, request)
    assert job is not None and job.where == "device" and job.argv == ("/usr/bin/python3", "runner.py")
    paths = {file.path: file.source for file in job.files}
    assert {"model/net.onnx", "artifacts/cache/net/compiled.bin", "config/vitisai_config.json"} < set(paths)
    asked = json.loads(bytes(paths["job.json"]))
    assert asked["provider"] == "VitisAIExecutionProvider" and asked["options"]["cache_key"] == "net"
    assert backend.device_job(out, manifest, replace(request, place=replace(place, kind="local"))) is None
    (out / "artifacts" / "cache" / "net").rename(tmp_path / "net")
    (out / "artifacts" / "cache" / "net.rai").write_bytes(b"0")
    assert backend.device_job(out, manifest, request) is not None, "all in one file"
