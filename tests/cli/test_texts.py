"""What commands print of answers that tools or devices would have to give: whole, in ``texts.told``."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from deploykit.accuracy.judge.verdict import KeptCount
from deploykit.accuracy.latency import Estimate
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.search.goals import Reached, parse_goal
from deploykit.accuracy.search.locate import Culprit, Divergence, Located, TensorView
from deploykit.answers.binaries import BinaryReport, Runtime
from deploykit.backend.backend import Check
from deploykit.backend.on_device import MeasuredOperator, Place
from deploykit.backend.probes import CheckLine
from deploykit.backend.status import Compilation, Compiled, Correctness, PackageStatus, Right
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.cli.packaged import package_text
from deploykit.cli.terminal import finding_lines
from deploykit.devices.measure import faster, summarize
from deploykit.devices.profiles import EstimateRow
from deploykit.devices.record import RunRecord
from deploykit.devices.run import RunReport
from deploykit.errors import ToolError
from deploykit.findings import Confidence, Severity
from deploykit.flow.candidates import SimulatedLadder
from deploykit.flow.ladder import Ladder, LadderRung
from deploykit.flow.quantizing.command import Quantization
from deploykit.flow.releases import CompilerTrial
from deploykit.packages.building import BuildReport
from deploykit.packages.verifying import VerifyReport
from deploykit.system.environments import ToolchainState
from deploykit.system.store import Room
from deploykit.tables.capabilities import Status
from made_findings import a_finding
from stub_backend import ROW
from told import check_told

OUT = Path("out")
YES = Compilation(state=Compiled.YES, by="QAIRT 2.0 for x86 on this machine")
RIGHT = Correctness(state=Right.YES, label="given", count=4, against="float")
WARNING = a_finding(code="DK2", severity=Severity.WARNING, message="is odd\x1b", hint="mend it")
LONG = a_finding(message=f"{'long/' * 20} is not taken, and " + "so on, " * 40 + "and on", hint="look")
NOTE = a_finding(code="DK3", slug="input-size-chosen", severity=Severity.INFO, message="is chosen")
ASIDE = a_finding(code="DK4", severity=Severity.INFO, message="is said")
DONE = ASIDE.with_handled("it is cut")


def tensor(name: str, scale: float | None = None) -> Mapping[str, Any]:
    return {"name": name, "dtype": "uint8", "shape": [1, 4], "scale": scale, "zero_point": 3}


GRAPH = {"name": "g", "inputs": [tensor("x", 0.1234567)], "outputs": [tensor("y")], "vtcm_bytes": 8 << 20}
GRAPH |= {"memory": {"spill_fill": 1023, "constants": 1536, "data": None, "all": 3 << 30}}
KNOWN = {"counted_bytes": 3 << 30, "limit_bytes": 2 << 30, "ok": False, "parts": 2, "source": ["a page", "another"]}
INFO: dict[str, Any] = {"file": "m.bin", "maker": "QAIRT", "release": "2.33.0", "build": "2.33.0.1", "soc_model": 57}
INFO |= {"core_api": "2.1", "backend_api": "5.1", "blob_version": "3.1", "graph_count": 1, "graphs": [GRAPH]}
LOADS = (replace(ROW, status=Status.UNSUPPORTED, confidence=Confidence.OBSERVED, note="it is newer"),)
RUNS = (
    Runtime(release="2.32", status=Status.UNSUPPORTED, carriers=("old 1",)),
    Runtime(release="2.33", status=Status.SUPPORTED, carriers=("kit 1", "kit 2")),
    Runtime(release="2.34", status=Status.SUPPORTED),
)


def binary(*, loads: Any = (), runtimes: Any = (), **info: Any) -> BinaryReport:
    return BinaryReport(info={**INFO, **info}, loads=loads, runtimes=runtimes)


def fitting(**fits: Any) -> BinaryReport:
    return binary(graphs=[{**GRAPH, "memory": {}, "vtcm_bytes": None, "fits": {**KNOWN, **fits}}])


BINARIES = {
    "a binary": binary(arch="v75", carrier="kit 1", runtimes=RUNS),
    "a binary that would not load": binary(soc_model=None, loads=LOADS, runtimes=RUNS[:1]),
    "a binary that is too large": fitting(),
    "a binary that fits": fitting(ok=True, counted_bytes=1000),
    "a binary of whose limit nothing is known": fitting(limit_bytes=None, ok=None, counted_bytes=2048),
}
ESTIMATE = Estimate(time_us=1500.0, lower_us=900.0, upper_us=2000.0, cycles=9, ddr={"in": 1000, "out": 500}, chip="A")
GOOD = PackageStatus(compiled=YES, right=RIGHT)
REFUSED = PackageStatus(compiled=Compilation(state=Compiled.REFUSED, by="it", why="no kernel"))
TRIALS = (
    CompilerTrial(sdk="1.0", status=REFUSED, estimate=None, blocking=()),
    CompilerTrial(sdk="1.1", status=replace(GOOD, compiled=replace(YES, by="")), estimate=ESTIMATE, blocking=()),
    CompilerTrial(sdk="2.0", status=GOOD, estimate=replace(ESTIMATE, instead_of="B"), blocking=()),
    CompilerTrial(sdk="3.0", status=PackageStatus(), estimate=None, blocking=("DK1", "DK2")),
)
CHECKS = (Check(id="files", ok=True, detail="all"), Check(id="types", ok=False, detail="some\nodd"))
TYPES = {"intended": {"a": "int8", "b": "int8"}, "actual": {"a": "float16"}}
LATER = replace(RIGHT, state=Right.NOT_JUDGED, label="derived", count=1)
VERIFIED = {
    "verified": VerifyReport(package=OUT, checks=CHECKS[:1], status=GOOD),
    "verified, and not as intended": VerifyReport(
        package=OUT, checks=CHECKS, findings=(WARNING,), status=replace(GOOD, right=LATER), **TYPES
    ),
    "verified, and wrong": VerifyReport(
        package=OUT, checks=(), status=replace(REFUSED, right=replace(RIGHT, state=Right.NO), intact=False)
    ),
    "verified, and not to be judged": VerifyReport(
        package=OUT, checks=(), status=replace(GOOD, right=Correctness(broken=True, why="it died"))
    ),
}
BUILT = BuildReport(
    package=OUT, status=0, done=("convert", "run"), log=OUT / "log", diagnosis=None, said=("a", "b"), digest="sha256:1"
)
RECORD = {"quantizer": "ort", "toolchain": "", "numbers": {"sqnr_db": 30.126}}
QUANTIZED = Quantization(folder=OUT, files={"model": "m.onnx", "encodings": "m.json"}, record=RECORD, findings=())
QDQ = {"qdq": "q d.onnx"}
ROUTE = SimpleNamespace(id="one", confidence=Confidence.OBSERVED, why="it is short")
PLAN = SimpleNamespace(route=ROUTE, assumed="", target={"name": "A"})
PACKAGED = SimpleNamespace(
    plan=PLAN, package=OUT, findings=(), status=GOOD, estimate=None, executed=("run",), generated=(), digest="sha256:1"
)


def packaged(**changed: Any) -> str:
    return package_text(SimpleNamespace(**{**vars(PACKAGED), **changed}))  # type: ignore[arg-type]


PACKAGES: dict[str, Callable[[], str]] = {
    "packaged": packaged,
    "packaged, with a time and an assumption": lambda: packaged(
        estimate=ESTIMATE, plan=SimpleNamespace(**{**vars(PLAN), "assumed": "float16, since none was given"})
    ),
    "packaged, with what asks": lambda: packaged(
        findings=(WARNING, NOTE, ASIDE, DONE, replace(WARNING, message="too"))
    ),
    "packaged, with no room for all": lambda: packaged(
        findings=tuple(replace(WARNING, code=f"DK{at}") for at in range(9)), status=PackageStatus()
    ),
    "packaged, with what blocks": lambda: packaged(findings=(LONG, WARNING)),
    "packaged, refused": lambda: packaged(status=replace(REFUSED, right=LATER)),
    "not packaged": lambda: packaged(package=None, findings=(LONG, WARNING, DONE)),
    "findings, in their colours": lambda: "\n".join(
        line
        for one in (WARNING, LONG, NOTE, DONE, a_finding().with_handled("it is done"))
        for most in (0, len("is chosen"), len("is said") - 1)
        for line in finding_lines(one, " (2 times)" if most == 0 else "", most=most)
    ),
}
KEPT = Reached(right=True, metric=0.123456789, detections=KeptCount(wanted=(30, 30), made=(30, 31), kept=(30, 28)))
RUNGS = (
    LadderRung(precision="w8a8", reached=KEPT, time_us=1234.0),
    LadderRung(precision="w4a8", missing="it failed"),
    LadderRung(precision="w8a16", reached=replace(KEPT, detections=KeptCount(wanted=(9,), made=(9,), kept=(9,)))),
    LadderRung(precision="w16a16", reached=KEPT, time_us=1.0, runs_here=False),
)
LADDER = Ladder(goal=parse_goal("kept>=80%"), rungs=RUNGS, advice=None, steps=(), chosen=None, why="so it is")
WALKED = SimulatedLadder(
    ladder=LADDER, samples=Samples(feeds=({},) * 4, of_inputs={}), seen=3, measured=1, held_out=True, findings=(NOTE,)
)
VIEW = TensorView(name="a", sqnr_db=float("-inf"), left_range=(0, 1.5), reordered=True, lost=0.25)
PART = Divergence(node="n", op_type="Add", output=VIEW, inputs=(), culprit=Culprit(tensor="c", value=1e9))
LOCATED = Located(first=PART, outputs=(VIEW,), rounds=2, compared=3, hidden=("h",), threshold_db=20.0, exhausted=True)
SPENT = [MeasuredOperator(node=node, raw="r\x1b", value=9e3 + len(node), unit="cycles") for node in ("a", "", "bc")]
TIMES: Any = {"device": Place(kind="adb", system="Linux", machine="arm", folder="/f\x1b", temperature=39.6)}
TIMES |= {"init_us": 1234.56e3, "peak_mb": 2048.4, "temperature_after": 41.4, "latency": summarize([1e3, 2e3, 1e3])}
TIMES |= {"estimate": (EstimateRow(node="a", cycles=1, share=0, estimated_cycles=5e4, estimated_share=0),)}
TIMES |= {"budget": {"held": False, "p90_us": 1500.0}, "against": faster([1e3], [2e3])}
ASKED: Any = {"package": "p", "backend": "ort-qnn", "target": "t", "started": "", "power": "", "right": RIGHT}
RUNS_THERE = {
    "device": RunRecord(**ASKED, **TIMES, where="device", units={"NPU": 3, "CPU": 1}, operators=(*SPENT, *SPENT)),
    "emulator": RunRecord(**ASKED, **TIMES, where="emulator", emulator=RIGHT),
    "simulated": RunRecord(**ASKED, where="simulated", device=replace(TIMES["device"], temperature=None)),
}
SPEC = SimpleNamespace(id="kit==1.0", name="kit", version="1.0", summary="it makes things", disk_mb=900)
STATES = {
    "kit": ToolchainState(spec=SPEC, path=OUT, state="ready", detail="", size_mb=800),  # type: ignore[arg-type]
    "kat": ToolchainState(spec=SPEC, path=OUT, state="absent", detail="", size_mb=0),  # type: ignore[arg-type]
    "kot": ToolchainState(spec=SPEC, path=OUT, state="broken", detail="no python", size_mb=7),  # type: ignore[arg-type]
}
LINES = (
    CheckLine(id="one", state="ok", detail="is there"),
    CheckLine(id="two", state="absent", detail="is not there", next="get it"),
    CheckLine(id="three", state="problem", detail="is broken", next="mend it"),
)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    monkeypatch.setenv("COLUMNS", "120")

    def answered(name: str, value: Any, *words: str) -> list[str]:
        """What a command prints where this is what it is answered, with the status."""
        monkeypatch.setattr(name, lambda *_, **how: value(how) if callable(value) else value)
        status = run(cli, list(words))
        shown = capsys.readouterr()
        return [*(shown.out + shown.err).splitlines(), f"status {status}"]

    return answered


def test_what_is_printed(answered: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploykit.cli.toolchain.known_toolchains", lambda: (SPEC, SPEC, SPEC))
    monkeypatch.setattr("deploykit.cli.toolchain.toolchains_root", lambda: OUT)
    told: dict[str, list[str]] = {}
    for name, report in BINARIES.items():
        told[name] = answered("deploykit.answers.binaries.report_binary", report, "explain", "m.bin")
    asked = ("compat", "compilers", "m.onnx", "--target", "a")
    told["compilers"] = answered("deploykit.flow.releases.try_compilers", TRIALS, *asked)
    bad = (TRIALS[0], replace(TRIALS[1], status=replace(GOOD, right=replace(RIGHT, state=Right.NO))))
    told["compilers of which none is right"] = answered("deploykit.flow.releases.try_compilers", bad, *asked)
    trials = [SimpleNamespace(sdk=one, state="no", blocking=("DK1",), open=()) for one in ("1.0", "2.0")]
    for name, still_open in (("no release takes", ()), ("no release is known to take", ("DK2",))):
        trials[1] = SimpleNamespace(**{**vars(trials[1]), "open": still_open})
        lowest = SimpleNamespace(trials=trials, lowest=None, backend="b", target="a")
        told[name] = answered("deploykit.flow.releases.lowest_sdk", lowest, "compat", "--model=m.onnx", "--target=a")
    both = [SimpleNamespace(**vars(PACKAGED), exit_status=status) for status in (0, 1)]
    several = ("package", "m.onnx", "--target=a", "--target=b", "-o", "out")
    told["packages of which one is refused"] = answered("deploykit.flow.pipeline.make_packages", both, *several)
    for name, verified in VERIFIED.items():
        told[name] = answered("deploykit.api.verify", verified, "verify", "out")
    for name, status, more in (
        ("built", 0, ()),
        ("changed", 1, ("-q",)),
        ("not built", 3, ("-q",)),
        ("no", 2, ("-v",)),
    ):
        done = replace(BUILT, status=status, done=() if status else BUILT.done)
        told[f"build: {name}"] = answered("deploykit.api.build", done, "build", "out", *more)
    told["a ladder that counts detections"] = answered("deploykit.api.ladder", WALKED, "accuracy", "ladder", "m.onnx")
    parting = ("accuracy", "locate", "out", "--on", "local", "--samples", "3", "--threshold", "35")
    told["where two runs part"] = answered("deploykit.api.locate_on", LOCATED, *parting)
    told["what a device is asked"] = answered(
        "deploykit.api.locate_on",
        lambda how: replace(LOCATED, first=None, rounds=how["samples"], threshold_db=how["threshold_db"]),
        *parting,
    )
    for name, record in RUNS_THERE.items():
        ran = RunReport(record=record if name == "device" else replace(record, budget=None), path="runs/1.json")
        told[f"a run: {name}"] = answered("deploykit.api.run", ran, "run", "p", "--on", "adb")
    quantizing = ("quantize", "m.onnx", "--target", "a b", "--calibration", "d", "-o", "out")
    for name, made in {
        "quantized": QUANTIZED,
        "quantized without a loss": replace(
            QUANTIZED, record={**RECORD, "toolchain": "kit 1", "numbers": {"sqnr_db": None}}
        ),
        "quantized into one file": replace(QUANTIZED, files=QDQ, record={"quantizer": "x"}, findings=(WARNING,)),
    }.items():
        told[name] = answered("deploykit.api.quantize", made, *quantizing, *(("--sdk", "2.0") if "one" in name else ()))
    for name, text in PACKAGES.items():
        told[name] = text().replace("\x1b", "\\e").splitlines()
    found = iter(STATES.values())
    place = SimpleNamespace(state=lambda: next(found))
    told["toolchains"] = answered("deploykit.cli.toolchain.environment_of", place, "toolchain", "list")
    monkeypatch.setattr("deploykit.cli.toolchain.select", lambda *_: SPEC)
    told["installed"] = answered("deploykit.cli.toolchain.install", STATES["kit"], "toolchain", "install", "kit")
    told["removed"] = answered("deploykit.cli.toolchain.remove", True, "toolchain", "remove", "kit")
    told["not removed"] = answered("deploykit.cli.toolchain.remove", False, "toolchain", "remove", "kit")
    check_told(Path(__file__).with_name("texts.told"), told)


def test_what_doctor_says(answered: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = (Room(kind="a", entries=3, bytes=1_250_000), Room(kind="b", entries=1, bytes=60_000))
    found: Iterator[ToolchainState] = iter(STATES.values())
    names = {"cache_folder": OUT, "rooms": kept, "limit": 2_000_000_000, "known_toolchains": (SPEC, SPEC, SPEC)}
    for name, value in names.items():
        monkeypatch.setattr(f"deploykit.cli.doctor.{name}", lambda value=value: value)
    monkeypatch.setattr("deploykit.cli.doctor.environment_of", lambda _: SimpleNamespace(state=lambda: next(found)))
    monkeypatch.setattr("deploykit.cli.doctor.backend_ids", lambda: ("one",))
    monkeypatch.setattr("deploykit.cli.doctor.load_backend", lambda _: LINES)
    told = {"a machine": answered("deploykit.cli.doctor.examine", LINES, "doctor")}

    def broken(*_: object) -> Any:
        raise ToolError("it does not load", why="no file", next="install it again")

    for name in ("load_backend", "known_toolchains"):
        monkeypatch.setattr(f"deploykit.cli.doctor.{name}", broken)
    monkeypatch.setattr("deploykit.cli.doctor.rooms", tuple)
    told["a machine with broken backends"] = answered("deploykit.cli.doctor.examine", (), "doctor")
    monkeypatch.setattr("deploykit.cli.doctor.backend_ids", tuple)
    monkeypatch.setattr("deploykit.cli.doctor.known_toolchains", tuple)
    told["a machine with nothing"] = answered("deploykit.cli.doctor.examine", LINES[:2], "doctor")
    told["a machine with one problem"] = answered("deploykit.cli.doctor.examine", LINES[2:], "doctor")
    told["what was kept"] = answered("deploykit.cli.doctor.clear", kept, "doctor", "--clear-cache")
    check_told(Path(__file__).with_name("doctor.told"), told)
