"""Packages for releases whose wheel is not the one beside this Python: planned everywhere, and compiled by that very
release where its toolchain is: 2.22 (asked by a later provider) and 2.36 under Wine, 2.48 on Linux.
"""

import json
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from deploykit.backend.backend import Request
from deploykit.backend.status import Compiled, Right
from deploykit.errors import ToolError
from deploykit.flow.pipeline import make_package
from deploykit.packages.verifying import verify_package as verify
from deploykit.system.environments import environment_of
from deploykit.system.installing import install
from deploykit.system.processes import ProgramEnd
from deploykit_ort_qnn.compiler import hosts
from deploykit_ort_qnn.compiler.contexts import inspect_context
from deploykit_ort_qnn.compiler.hosts import Host, Worker, toolchain_host
from deploykit_ort_qnn.prepare import wheel_for
from deploykit_qualcomm.carriers import host_toolchain
from deploykit_qualcomm.hosted import RunnerAnswer
from tables import each_row
from told import check_told

AIMET = Path(__file__).parents[1] / "data" / "aimet"
ZOO = AIMET.with_name("zoo")
QAIRT = {"2.22": "2.22.10", "2.36": "2.36.1", "2.48": "2.48.40"}
# Models that a release takes wholly, and dB of the first output below which something has changed.
TAKEN = {
    ("2.22", "cnn/w8a16"): 60.0,
    ("2.22", "vit/w8a16"): 40.0,
    ("2.36", "cnn/w8a8"): 35.0,
    ("2.36", "detr/w8a16-fp16mix-explicit"): 40.0,
    ("2.36", "vit/w8a8"): 25.0,
    ("2.48", "cnn/w8a16"): 50.0,
}


def request(name: str, sdk: str = "2.36", **more: object) -> Request:
    values: dict[str, object] = {"encodings": AIMET / f"{name}.v2.0.0.encodings"}
    values |= {"target": "sm8650", "backend": "ort-qnn", "sdk": sdk, **more}
    return Request(model=AIMET / name.split("/")[0] / "model.onnx", **values)  # type: ignore[arg-type]


def host_of(sdk: str) -> Host:
    """The compiler of a release, installed by its own toolchain if it is not yet."""
    spec = host_toolchain(QAIRT[sdk])
    assert spec is not None
    if any(need.find() is None for need in spec.needs):
        pytest.skip(f"Wine is not installed: {spec.needs[0].install}")
    if environment_of(spec).state(with_size=False).state != "ready":
        install(spec, print)
    found = toolchain_host(wheel_for(sdk))
    assert found is not None
    return found


@pytest.fixture
def no_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path / "none"))


def steps(folder: Path) -> set[str]:
    return {step["id"] for step in json.loads((folder / "config/intended_types.json").read_text("utf-8"))["steps"]}


@pytest.mark.usefixtures("no_toolchain")
@each_row(("sdk", "wheel"), ("2.22", "1.18.1"), ("2.36", "1.22.2"))
def test_without_the_toolchain_the_plan_says_how_to_get_it(tmp_path: Path, sdk: str, wheel: str) -> None:
    packaged = make_package(request("cnn/w8a16", sdk), tmp_path / "p")
    hints = {finding.code: finding.hint for finding in packaged.findings}
    assert hints["ORT141"] == f"deploykit toolchain install htp-{QAIRT[sdk]} (needs Wine)"
    assert packaged.plan.sdk["version"] == wheel and packaged.plan.sdk["qairt"] == QAIRT[sdk]
    assert packaged.executed == () and ("QNN005" in hints) == (sdk == "2.22"), "no table of that release is there"


@pytest.mark.usefixtures("no_toolchain")
@each_row(
    ("name", "sdk", "there", "absent"),
    ("vit/w8a16", "2.22", {"without-channel-bias"}, {"int16-matmul", "softmax-rounding"}),
    ("vit/w8a16", "2.51", {"int16-matmul", "softmax-rounding"}, {"without-channel-bias"}),
)
def test_it_is_prepared_for_providers(tmp_path: Path, name: str, sdk: str, there: set[str], absent: set[str]) -> None:
    make_package(request(name, sdk, compile=False), tmp_path / "p")
    assert there <= steps(tmp_path / "p") and not absent & steps(tmp_path / "p")


@pytest.mark.heavy
@pytest.mark.parametrize(("sdk", "name"), TAKEN)
def test_exactly_that_release_compiles_and_something_emulates(tmp_path: Path, sdk: str, name: str) -> None:
    host_of(sdk)
    packaged = make_package(request(name, sdk), tmp_path / "p")
    assert packaged.exit_status == 0, [finding.message for finding in packaged.findings if finding.blocks]
    assert packaged.executed == ("compile", "emulate")
    record = json.loads((tmp_path / "p/manifest.json").read_text("utf-8"))["record"]
    assert record["compile"]["qairt"] == QAIRT[sdk] and record["compile"]["nodes_on_cpu"] == 0
    assert next(iter(record["numbers"]["outputs"].values())) >= TAKEN[sdk, name]
    types = json.loads((tmp_path / "p/artifacts/compiled_types.json").read_text("utf-8"))
    assert types["asked"] and types["asked"][0]["tensors"]
    assert inspect_context(tmp_path / "p/artifacts/model_ctx_qnn.bin")["release"] == QAIRT[sdk]
    # The toolchain of a Linux wheel emulates, too; what was compiled under Wine is run by the wheel beside this Python.
    codes = {finding.code for finding in packaged.findings}
    assert ("ORT143" in codes) == (sdk != "2.48") and not codes & {"ORT141", "ORT142"}
    judged = verify(tmp_path / "p")
    assert judged.ok and any("does not tell which float" in one.detail for one in judged.checks) == (sdk != "2.48")


@pytest.mark.heavy
def test_a_detector_is_taken_wholly_and_is_right(tmp_path: Path) -> None:
    """RT-DETRv2 with all its operators; forms without which 2.36.1 refuses it, or makes code that dies, are in."""
    host_of("2.36")
    with zipfile.ZipFile(ZOO / "rt_detr_v2.zip") as archive:
        archive.extractall(tmp_path)
    (model,) = tmp_path.rglob("model.onnx")
    files: Any = {
        "encodings": model.with_name("w8a16.v1.0.0.encodings"),
        "calibration": model.with_name("calibration.npz"),
    }
    asked = Request(model=model, target="sm8650", backend="ort-qnn", sdk="2.36", **files)
    packaged = make_package(asked, tmp_path / "p")
    assert packaged.exit_status == 0, [finding.message for finding in packaged.findings if finding.blocks]
    assert packaged.status.compiled.state is Compiled.YES
    assert packaged.status.right.state is Right.YES, packaged.status.right
    assert "QNN001" not in {finding.code for finding in packaged.findings}
    assert {"without-mod", "without-sigmoid-before-linear"} <= steps(tmp_path / "p")


def test_a_worker_abroad_sees_no_other_module_of_deploykit(tmp_path: Path) -> None:
    """The Python of a toolchain has the wheel and nothing of deploykit; a bad request ends it with its name."""
    worker = Worker(python=sys.executable, environment={"PYTHONPATH": ""})
    done, answer, log = worker.work({"action": "nothing"}, tmp_path, tmp_path, 60.0, print)
    assert answer is None and done.returncode != 0 and "KeyError: 'nothing'" in log[-1]
    venv.create(tmp_path / "v")
    bare = Worker(python=str(tmp_path / "v/bin/python"), environment={"PYTHONPATH": ""})
    with pytest.raises(ToolError, match="cannot be used here"):
        bare.work({"action": "compile"}, tmp_path, tmp_path, 60.0, print)


END = ProgramEnd(argv=(), returncode=0, tail=(), seconds=0.0)
ANSWERS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "Nothing is taken": ("2.36", {}, False),
    "It fails": ("2.36", {"error": "one\ntwo"}, False),
    "It crashes": ("2.36", {"error": "one", "crashed": True}, False),
    "It is made, with the CPU and the binary inside, asked by a later provider": ("2.22", {}, True),
}
CALL = {"call": "validate", "name": "fc", "type": "FullyConnected", "answer": 3110, "said": ["QnnDsp <E> bad bias"]}


def test_a_runner_is_asked_for_what_the_worker_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = dict[str, list[str]]()
    for number, (title, (sdk, given, made)) in enumerate(ANSWERS.items()):
        root, spec, said = tmp_path / str(number), host_toolchain(QAIRT[sdk]), list[str]()

        def ask_runner(
            spec: Any, asked: Any, root: Any = root, given: Any = given, said: Any = said, **more: Any
        ) -> Any:
            said.append(f"asked: {json.dumps(asked)} with {more['variables']} in {more['timeout']:g} s")
            if more["variables"]:
                (root / "c.onnx").touch()
                (root / "s/record/record.jsonl").write_text(f"{json.dumps(CALL)}\n")
            return RunnerAnswer(**{"error": "", "log": ("a line",), "runtime": "1.22.2", "done": END, **given})

        monkeypatch.setattr(hosts, "ask_runner", ask_runner)
        (root / "s").mkdir(parents=True)
        assert spec is not None
        host, files = Host(wheel=wheel_for(sdk), spec=spec), {"model": "m.onnx", "context": "c.onnx"}
        options = {"options": {"soc_model": "57", "profiling_level": "optrace"}, "entries": {"a.b": "1"}}
        request = {**files, **options, "embed": made, "allow_cpu": made}
        _, answer, log = host.compile(request, root, root / "s", 5.0, said.append)
        told[title] = [f"by {host.identity}{host.where}", *(said if number % 4 == 0 else ()), f"answers {answer}", *log]
        assert host.emulator is None
    check_told(Path(__file__).with_name("runners.told"), told)
