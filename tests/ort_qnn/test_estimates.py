"""What the compiler says about time: its CSV, and the trace beside it, as one release writes them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.accuracy.latency import Estimate, OperatorTime, TraceEvent
from deploykit.backend.backend import Request
from deploykit.backend.status import Compilation, Compiled, PackageStatus
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.packages.rejudging import judge_of
from deploykit_ort_qnn.compiler.estimates import compiled_origins, nearest_estimated, read_estimate
from deploykit_ort_qnn.compiler.graphs import QnnGraph, QnnNode, Schematic
from deploykit_ort_qnn.prepare import wheel_for
from deploykit_qualcomm.devices import arch_of, qualcomm_device
from tables import each_row
from text_models import text_model

HEAD = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier"
BLOCK = [
    "0,FINALIZE,265671,US,BACKEND,ROOT,QNN (finalize) time",
    "0,BACKEND,0,US,BACKEND,ROOT,Performance Estimates",
    "0,BACKEND,1000,CYCLES,BACKEND,SUB-EVENT,Simulated (Accelerator exec cycles)",
    "0,BACKEND,500,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us)",
    "0,BACKEND,450,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us (lower estimate))",
    "0,BACKEND,560,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us (upper estimate))",
    "0,BACKEND,649216,BYTES,BACKEND,SUB-EVENT,Input Fill",
    "0,BACKEND,3,US,BACKEND,SUB-EVENT,Missing Ops (Number of Ops with no Costs associated)",
]
CONV = QnnNode(name="conv_token_1", type="Conv2d", inputs=("x", "w"), outputs=("c",))
TURN = QnnNode(name="Transpose_token_8", type="Transpose", inputs=("c",), outputs=("y",))
GRAPH = QnnGraph(name="g", nodes=(CONV, TURN), tensors={})
SCHEMATIC = Schematic(graph="g", after=(), names={22: "conv_token_1", 39: "Transpose_token_8"})


def kernel(number: int, thread: int, start: float, duration: float, *flags: str, moved: int = 0) -> str:
    args = {"id": hex(0x4F0E << 32 | number), "flags": list(flags), "bw_info": {"dram_read": moved, "dram_write": 0}}
    return json.dumps({"name": "q::X", "ph": "X", "tid": thread, "pid": 0, "ts": start, "dur": duration, "args": args})


def written(folder: Path, rows: list[str], *, end: bool = True) -> Path:
    """The two files: kernels as lines of text inside a binary file, and behind them the simulated machine."""
    profile = folder / "profile.csv"
    profile.write_text("\n".join([HEAD, *rows]) + "\n")
    lines = [
        json.dumps({"name": "thread_name", "ph": "M", "tid": 1, "pid": 0, "args": {"name": "HVX 1:"}}),
        kernel(2, 5, 0, 100, "for_dma", moved=4096),
        kernel(22, 0, 100, 600, "uses_hmx"),
        kernel(39, 1, 700, 300, "for_hvx"),
        *(['"sim_core_freq":1497.6,'] if end else ['{"name":"q::Cut","ph":"X","ti']),
    ]
    (folder / "profile_qnn.log").write_bytes(b"\x88p\n\x00" + ",\n".join(lines).encode())
    return profile


def test_a_transpose_belongs_to_the_model_or_to_what_needs_it() -> None:
    """One before an operator, one behind it, one of the model's own, and one beside nothing that the model has."""
    names = {"own": "xa", "before": "ab", "conv": "bc", "behind": "cy", "lost": "zu"}
    nodes = tuple(
        QnnNode(name=name, type="Conv2d" if name == "conv" else "Transpose", inputs=(ends[0],), outputs=(ends[1],))
        for name, ends in names.items()
    )
    graph = QnnGraph(name="g", nodes=nodes, tensors={})
    found = compiled_origins([graph], {"own": "Transpose", "conv": "Conv"})
    told = ["own", "layout of conv", "conv", "layout of conv", "lost"]
    assert [found.node(name) for name in names] == told
    assert compiled_origins([graph], {}).layouts == {}


def test_the_estimate_and_its_dearest_operators(tmp_path: Path) -> None:
    found = read_estimate(written(tmp_path, BLOCK), [GRAPH], [SCHEMATIC], chip="77", nodes={"conv"})
    turned = "a transpose between the model's layout and the chip's channel-last one (at a border: --io nhwc)"
    waits = "waits for 4,096 bytes from or to DDR"
    times = (
        OperatorTime(node="conv", share=600, waiting=0, busy={"matrix": 600}, ddr_bytes=0),
        OperatorTime(node="layout of conv", share=300, waiting=0, busy={"vector": 300}, ddr_bytes=0, reason=turned),
        OperatorTime(node="graph input", share=100, waiting=100, busy={"dma": 100}, ddr_bytes=4096, reason=waits),
    )
    ends: list[Any] = [
        ("graph input", "DMA", 0, 100, "dma", 4096),
        ("conv", "FG", 100, 600, "matrix", 0),
        ("layout of conv", "HVX 1", 700, 300, "vector", 0),
    ]
    names = ("node", "thread", "start", "duration", "unit", "ddr_bytes")
    made: list[dict[str, Any]] = [dict(zip(names, one, strict=True)) for one in ends]
    events = tuple(TraceEvent(kernel="q::X", **one) for one in made)
    ddr = {"input_fill": 649216, "intermediate_fill": 0, "intermediate_spill": 0, "output_spill": 0}
    numbers: dict[str, Any] = {"time_us": 500, "lower_us": 450, "upper_us": 560, "cycles": 1000, "missing_ops": 3}
    told: dict[str, Any] = {"soc_model": "77", "clock_mhz": 1497.6, "ddr": ddr}
    assert found == Estimate(**numbers, **told, operators=times, events=events)


def test_a_product_that_is_not_on_the_matrix_unit_is_told(tmp_path: Path) -> None:
    profile = written(tmp_path, BLOCK)
    trace = tmp_path / "profile_qnn.log"
    trace.write_bytes(trace.read_bytes().replace(b"uses_hmx", b"scalar"))
    found = read_estimate(profile, [GRAPH], [SCHEMATIC], chip="77", nodes={"conv"})
    assert found is not None and "not on the matrix unit" in found.operators[0].reason


@each_row(
    "rows",
    [],
    ["0,BACKEND,0,US,BACKEND,ROOT,Performance Estimates unsupported on soc"],
    BLOCK[:2],
    [BLOCK[1], BLOCK[2].replace("1000", "0"), BLOCK[3]],
    [BLOCK[1], BLOCK[2].replace("1000", "many")],
)
def test_without_an_estimate_there_is_none(tmp_path: Path, rows: list[str]) -> None:
    assert read_estimate(written(tmp_path, rows), [GRAPH], [SCHEMATIC], chip="43") is None


def test_a_trace_that_is_cut_off_names_no_operator(tmp_path: Path) -> None:
    found = read_estimate(written(tmp_path, BLOCK, end=False), [GRAPH], [SCHEMATIC], chip="77", nodes={"conv"})
    assert found is not None
    assert (found.time_us, found.operators, found.note) == (500, (), "the compiler's trace is cut off")


@pytest.mark.parametrize(
    ("device", "near"), [("qcs9075", None), ("sm8550", "v73"), ("sm8650", "v73"), ("sm8450", "v68"), ("sm8850", "v81")]
)
def test_the_nearest_chip_with_a_model_is_of_the_nearest_architecture(device: str, near: str | None) -> None:
    found = nearest_estimated(qualcomm_device(device))
    assert (None if found is None else arch_of(found)) == near


def test_every_compiler_here_is_asked_and_told_by_its_own_estimate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if three wheels were here: one refuses the model, one has no cost model of the chip."""
    asked: list[Request] = []
    slow = Estimate(time_us=8.0, lower_us=7.0, upper_us=9.0, cycles=1, soc_model="", chip="QCS9075", ddr={"input": 9})

    def make(request: Request, out: Path, *, progress: Any) -> Any:
        asked.append(request)
        state = Compiled.REFUSED if request.sdk == "2.4.0" else Compiled.YES
        status = PackageStatus(compiled=Compilation(state=state, by=f"QAIRT {request.sdk} for soc_model 77"))
        return SimpleNamespace(status=status, estimate=slow if request.sdk == "2.7.0" else None, findings=())

    monkeypatch.setattr("deploykit.flow.releases.make_package", make)
    monkeypatch.setattr("deploykit_ort_qnn.bench.opinions.wheels_here", lambda: [*map(wheel_for, ("2.48", "2.49", ""))])
    model = Path(__file__).parents[1] / "data/aimet/mlp/model.onnx"
    command = ["compat", "compilers", str(model), "--target", "qcs9075"]
    assert run(cli, [*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["compilers"]
    assert [(one["sdk"], one["status"]["compiled"].split()[0].strip(",")) for one in told] == [
        ("2.4.0", "refused"),
        ("2.5.0", "yes"),
        ("2.7.0", "yes"),
    ]
    assert [one["estimate"] and one["estimate"]["time_us"] for one in told] == [None, None, 8.0]
    assert all(one.adapter_options["kernels"] == "off" and one.adapter_options["estimate"] for one in asked)
    assert run(cli, command) == 0 and "8 us (7 us to 9 us)" in capsys.readouterr().out
    monkeypatch.setattr("deploykit_ort_qnn.bench.opinions.wheels_here", list)
    assert run(cli, command) == run(cli, [*command, "--backend", "vitis-ai"]) == 2


@pytest.mark.heavy
def test_borders_with_the_channels_last_are_right_and_cost_less(tmp_path: Path) -> None:
    """Compiled and run on the emulator; samples stay in the layout of the model, and wrongly turned ones are a no."""
    pytest.importorskip("onnxruntime_qnn")
    rng, size = np.random.default_rng(0), 32
    shapes = {"w": (16, 3, 3, 3), "v": (8, 16, 1, 1)}
    weights: dict[str, Any] = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    body = "c = Conv <pads = [1, 1, 1, 1]> (x, w)  r = Relu (c)  y = Conv (r, v)"
    model = text_model(f"float[1,3,{size},{size}] x", body, f"float[1,8,{size},{size}] y", **weights)
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", rng.random((4, 3, size, size), np.float32))
    data = tmp_path / "data.npy"
    asked: dict[str, Any] = {"target": "qcs9075", "backend": "ort-qnn", "calibration": data, "kernels": "off"}
    given = deploykit.package(tmp_path / "m.onnx", out=tmp_path / "p", **asked)
    turned = deploykit.package(tmp_path / "m.onnx", out=tmp_path / "q", io="nhwc", **asked)
    for made in (given, turned):
        assert made.exit_status == 0 and made.estimate is not None
    assert given.estimate is not None and turned.estimate is not None
    assert turned.estimate.time_us < given.estimate.time_us
    manifest = json.loads((tmp_path / "q/manifest.json").read_text("utf-8"))
    assert [(one["name"], one["shape"], one["layout"]) for one in manifest["io"]] == [
        ("x", [1, size, size, 3], "nhwc"),
        ("y", [1, size, size, 8], "nhwc"),
    ]
    kept, expected = (np.load(tmp_path / "q" / path) for path in ("calibration/samples.npz", "artifacts/expected.npz"))
    np.testing.assert_array_equal(kept["0:x"], np.load(tmp_path / "data.npy")[:1].transpose(0, 2, 3, 1))
    assert expected["0:emulator:y"].shape == expected["0:float:y"].shape == (1, size, size, 8)
    judge = judge_of(tmp_path / "q", {})
    outputs = [{"y": expected[f"{at}:emulator:y"]} for at in range(4)]
    assert judge.judged(outputs).right is True
    assert judge.judged([{"y": one["y"].swapaxes(1, 2)} for one in outputs]).right is False
