"""A run on a phone, whose client and shell are scripts of this machine: what it says, what it refuses, its record."""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import deploykit
from deploykit.accuracy.judge.verdict import Thresholds
from deploykit.backend.on_device import DeviceFile, DeviceRequest, Place
from deploykit.backend.plugins import load_backend
from deploykit.backend.status import Correctness, Right
from deploykit.devices.places import DeviceRow
from deploykit.devices.profiles import Origins, read_session_profile
from deploykit.devices.record import OutputBeside, RunRecord
from deploykit.devices.sessions import session_job, session_results
from deploykit.errors import ToolError
from deploykit.packages.manifests import read_manifest
from tables import each_row


def _plays(monkeypatch: pytest.MonkeyPatch, model: Path, *, says: str = "", **more: Any) -> list[DeviceRequest]:
    """The backend's part is played by the runner on the processor; the requests that it was given."""
    asked: list[DeviceRequest] = []

    def job(self: object, package: Path, manifest: object, request: DeviceRequest) -> Any:
        asked.append(request)
        files = [DeviceFile(path="m.onnx", source=model)]
        made = session_job(replace(request, profile=False), {"model": "m.onnx"}, files, **more)
        return replace(made, argv=("sh", "-c", says), started="at once") if says else replace(made, started="at once")

    def results(self: object, package: Path, request: DeviceRequest, folder: Path) -> Any:
        return session_results(request, folder)

    backend = type(load_backend("qnn-htp"))
    monkeypatch.setattr(backend, "device_job", job)
    monkeypatch.setattr(backend, "device_results", results)
    return asked


def test_a_run_there_is_judged_measured_and_recorded(
    plain: Path, sources: Path, phone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _plays(monkeypatch, sources / "net.onnx", distributions={"numpy": np.__version__})
    digest = read_manifest(plain)["digest"]
    how: dict[str, Any] = {"python": sys.executable, "iterations": 9, "warmup": 1, "seconds": 5.0}
    record = deploykit.run(plain, on="adb", power="saver", max_p90="50s", **how).record
    assert record is not None
    serial = hashlib.sha256(b"deploykit:S1").hexdigest()[:12]
    there = Place(
        kind="adb", system="Android", machine="aarch64", folder="", abi="arm64-v8a", soc="SM8650", release="15"
    )
    place = replace(there, serial=serial, python=sys.executable, temperature=41.5)
    assert replace(record.device, folder="", free_bytes=None) == place
    manifest = read_manifest(plain)
    told = (record.package, record.backend, record.target, record.where, record.started, record.power)
    assert told == (digest, "qnn-htp", "sm8650", "device", "at once", "saver")
    assert str(record.right) == "yes, on 8 recorded samples against float: 8 of 8 classes equal"
    more = (record.emulator, record.units, record.operators, record.estimate, record.against)
    assert more == (None, {}, (), (), None)
    assert record.outputs == (
        OutputBeside(output="y", device_db=record.outputs[0].device_db, emulator_db=None, beside_db=None),
    )
    assert (record.temperature_after, record.budget, record.exit_status) == (41.5, {"p90_us": 50e6, "held": True}, 0)
    assert record.latency is not None and record.latency.count == 9 and record.init_us and record.peak_mb
    assert record.libraries.keys() == {"onnxruntime", "python"}
    (request,) = asked
    assert (request.power, request.iterations, request.warmup, request.seconds) == ("saver", 9, 1, 5.0)
    entry: dict[str, Any] = {"id": "0001", "device": "SM8650 Android 15 aarch64", "serial": serial, "where": "device"}
    entry |= {"emulator": None, "parts": [], "median_us": record.latency.median_us, "p90_us": record.latency.p90_us}
    (row,) = manifest["runs"]
    assert {name: row[name] for name in entry} == entry
    kept = json.loads((plain / row["record"]).read_text("utf-8"))
    assert (kept["times"], kept["temperature"]) == ("measured on the device", {"before": 41.5, "after": 41.5})
    assert kept["device"].keys() == {"kind", "system", "machine", "abi", "soc", "release", "serial"}


@each_row(
    ("change", "says"),
    ({"distributions": {"numpy": "0.1"}}, f"adb: has numpy {np.__version__}, the package is for 0.1"),
    ({"distributions": {"no-such": "0.1"}}, "adb: has no no-such, the package is for 0.1"),
    ({"soc": "SM8550"}, "SM8550 Android 15 aarch64: is sm8550 (v73), and the package is for sm8650 (v75)"),
)
def test_what_is_of_another_chip_or_release_is_not_pushed(
    change: dict[str, Any], says: str, plain_package: Path, sources: Path, phone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    getprop = (phone / "bin" / "getprop").read_text("utf-8")
    with monkeypatch.context() as patch:
        _plays(patch, sources / "net.onnx", **{name: value for name, value in change.items() if name != "soc"})
        (phone / "bin" / "getprop").write_text(getprop.replace("SM8650", change.get("soc", "SM8650")), "utf-8")
        with pytest.raises(ToolError) as caught:
            deploykit.run(plain_package, on="adb", python=sys.executable)
    (phone / "bin" / "getprop").write_text(getprop, "utf-8")
    assert caught.value.what == says and caught.value.next
    assert not list((phone / "deploykit" / "files").iterdir()) and not list((phone / "deploykit" / "runs").iterdir())


def test_a_program_that_fails_there_is_diagnosed(
    plain: Path, sources: Path, phone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = "[ ERROR ] <E> DspTransport.openSession qnn_open failed, 0x0000000e, prio 100"
    _plays(monkeypatch, sources / "net.onnx", says=f"echo began; echo '{error}'; exit 14")
    report = deploykit.run(plain, on="adb", python=sys.executable)
    told = (report.record, report.path, report.status, report.said, report.exit_status)
    assert told == (None, "", 14, ("began", error), 5)
    assert report.diagnosis is not None and report.diagnosis.errors
    assert report.to_json()["log"] == ["began", error] and "runs" not in read_manifest(plain)
    _plays(monkeypatch, sources / "net.onnx", says="echo x > outputs.npz; echo y > result.json")
    with pytest.raises(ToolError, match="sent results that cannot be read"):
        deploykit.run(plain, on="adb", python=sys.executable)
    monkeypatch.undo()


@each_row(
    ("client", "says"),
    ('head -c 3000 | sh -c "$last"; exit 0', "adb: the files cannot be stored there"),  # the push is cut
    ('sh -c "$last" > /dev/null; exit 0', "adb: gave no outputs"),  # what is pulled is lost
    ('sh -c "$last" 2>&1 | tr deploykit- xxxxxxxxxx', "adb: the connection was cut or refused"),  # garbage
)
def test_a_cable_that_is_pulled_leaves_nothing_that_hinders_the_next_run(
    client: str, says: str, plain_package: Path, sources: Path, phone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = phone.parent / "client" / "adb"
    text = whole.read_text("utf-8")
    with monkeypatch.context() as patch:
        _plays(patch, sources / "net.onnx")
        whole.write_text(
            text.replace('exec sh -c "$last"', "; ".join(("", client))).replace("$PATH ;", "$PATH;"), "utf-8"
        )
        with pytest.raises(ToolError) as caught:
            deploykit.run(plain_package, on="adb", python=sys.executable)
    whole.write_text(text, "utf-8")
    assert caught.value.what == says
    assert "runs" not in read_manifest(plain_package)


PROFILE = Path(__file__).parents[1] / "data/profiles/session.json"
PLACE = Place(kind="adb", system="Android", machine="aarch64", folder="/x", soc="S", python="/bin/python")
REQUEST = DeviceRequest(feeds=[{"x": np.ones(2)}, {"x": np.zeros(2)}], place=PLACE, seconds=7.0, iterations=3, warmup=2)


def test_the_job_of_a_session(tmp_path: Path) -> None:
    """All that is pushed and started; what a profile leaves comes back where one was asked for."""
    with pytest.raises(ToolError, match="S Android aarch64: has no Python that was found"):
        session_job(replace(REQUEST, place=replace(PLACE, python="")), {}, [])
    model = DeviceFile(path="m.onnx", source=b"m")
    job = session_job(
        REQUEST, {"model": "m.onnx", "provider": "NPU"}, [model], distributions={"a": "1"}, where="emulator"
    )
    assert [file.path for file in job.files] == ["m.onnx", "runner.py", "job.json", "inputs.npz"]
    sources = {file.path: file.source for file in job.files}
    wanted = {"model": "m.onnx", "provider": "NPU", "samples": 2}
    wanted |= {"iterations": 3, "warmup": 2, "seconds": 7.0, "profile": True}
    assert json.loads(bytes(sources["job.json"])) == wanted
    (tmp_path / "inputs.npz").write_bytes(bytes(sources["inputs.npz"]))
    with np.load(tmp_path / "inputs.npz") as stored:
        assert {name: stored[name].tolist() for name in stored.files} == {"0:x": [1, 1], "1:x": [0, 0]}
    assert replace(job, files=()) == replace(
        session_job(replace(REQUEST, profile=False), {}, []),
        files=(),
        optional=("session_profile.json", "provider_profile.csv"),
        distributions={"a": "1"},
        where="emulator",
    )
    plain = session_job(replace(REQUEST, profile=False), {}, [])
    told = (plain.argv, plain.results, plain.optional, plain.where, plain.timeout)
    assert told == (("/bin/python", "runner.py"), ("outputs.npz", "result.json"), (), "device", 1821.0)
    assert plain.environment == {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@each_row(
    ("result", "outputs", "fails"),
    ({}, {"0:a:b": np.ones(2), "1:y": np.ones(1)}, False),
    ({"peak_mb": None}, {"0:y": np.ones(2)}, False),
    ({}, {"2:y": np.ones(2)}, True),
    ({}, {"y": np.ones(2)}, True),
    ({}, {"0:y": np.asarray([{"a": 1}], object)}, True),
    ({"latencies_us": ["soon"]}, {}, True),
    ({"latencies_us": None}, {}, True),
    ({"versions": []}, {}, True),
    ({"init_us": None}, {}, True),
)
def test_results_of_a_session(result: dict[str, Any], outputs: dict[str, Any], fails: bool, tmp_path: Path) -> None:
    np.savez(tmp_path / "outputs.npz", **outputs)
    told = {"latencies_us": [5, 6.5], "init_us": 9, "peak_mb": 12.5, "versions": {"onnxruntime": 1.5}, **result}
    (tmp_path / "result.json").write_text(json.dumps(told), "utf-8")
    if fails:
        with pytest.raises(ToolError, match="S Android aarch64: sent results that cannot be read"):
            session_results(REQUEST, tmp_path)
        return
    shutil.copyfile(PROFILE, tmp_path / "session_profile.json")
    known, units = Origins(nodes={}), {"QNNExecutionProvider": "NPU"}
    told_too = session_results(REQUEST, tmp_path, known, npu="QNNExecutionProvider").operators
    assert told_too == read_session_profile(PROFILE, known, units) and told_too[0].on == "NPU"
    found = session_results(REQUEST, tmp_path)
    assert [list(one) for one in found.outputs] == [[key[2:] for key in outputs if key[0] == at] for at in "01"]
    assert (found.latencies_us, found.init_us, found.libraries) == ((5.0, 6.5), 9.0, {"onnxruntime": "1.5"})
    assert (found.peak_mb, found.operators) == (told["peak_mb"], ())


WORDS: Any = {"package": "p", "backend": "b", "target": "t", "where": "device", "started": "", "power": ""}
RECORD = RunRecord(**WORDS, device=PLACE, right=Correctness(state=Right.YES))


@each_row(
    ("change", "status"),
    ({}, 0),
    ({"right": Correctness(state=Right.NO)}, 1),
    ({"right": Correctness()}, 0),
    ({"right": Correctness(broken=True)}, 1),
    ({"budget": {"held": True}}, 0),
    ({"budget": {"held": False}}, 1),
)
def test_the_status_of_a_run(change: dict[str, Any], status: int) -> None:
    assert replace(RECORD, **change).exit_status == status


def test_a_device_parts_from_its_emulator_by_more_than_three_decibels() -> None:
    for device, emulator, parts in (
        (20.0, 23.0, False),
        (20.0, 23.1, True),
        (None, 30.0, False),
        (0.0, 5.0, True),
        (9.0, None, False),
    ):
        assert OutputBeside(output="y", device_db=device, emulator_db=emulator, beside_db=None).parts is parts
    for where in ("device", "emulator", "simulated"):
        assert replace(RECORD, where=where).times_mean_something is (where == "device")


def test_what_a_row_of_a_device_asks_for() -> None:
    asked = {"min_sqnr": 1.0, "min_cosine": 2.0, "min_agreement": 3.0, "max_box_error": 4.0}
    row = DeviceRow(at="local", max_p90="5ms", **asked)  # type: ignore[arg-type]
    assert (row.thresholds, row.budget_us) == (Thresholds(**asked), 5000.0)
    assert (DeviceRow(at="local").thresholds, DeviceRow(at="local").budget_us) == (Thresholds(), None)
