"""What the compiler says about time: its CSV, and the trace beside it, as one release writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploykit_ort_qnn.compiler.estimates import read_estimate
from deploykit_ort_qnn.compiler.graphs import QnnGraph, QnnNode, Schematic

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
        json.dumps({"name": "thread_name", "ph": "M", "tid": 5, "pid": 0, "args": {"name": "DMA:"}}),
        kernel(2, 5, 0, 100, "for_dma", moved=4096),
        kernel(22, 0, 100, 600, "uses_hmx"),
        kernel(39, 1, 700, 300, "for_hvx"),
        *(['"sim_core_freq":1497.6,'] if end else ['{"name":"q::Cut","ph":"X","ti']),
    ]
    (folder / "profile_qnn.log").write_bytes(b"\x88p\n\x00" + ",\n".join(lines).encode())
    return profile


def test_the_estimate_and_its_dearest_operators(tmp_path: Path) -> None:
    found = read_estimate(written(tmp_path, BLOCK), [GRAPH], [SCHEMATIC], chip="77", nodes={"conv"})
    assert found is not None
    assert (found.time_us, found.lower_us, found.upper_us, found.cycles, found.missing_ops) == (500, 450, 560, 1000, 3)
    assert (found.ddr["input_fill"], found.clock_mhz) == (649216, 1497.6)
    assert [(item.node, item.share) for item in found.operators] == [
        ("conv", 600),
        ("layout of conv", 300),
        ("graph input", 100),
    ]
    assert "channel-last" in found.operators[1].reason
    assert found.operators[2].reason == "waits for 4,096 bytes from or to DDR"


def test_a_product_that_is_not_on_the_matrix_unit_is_told(tmp_path: Path) -> None:
    profile = written(tmp_path, BLOCK)
    trace = tmp_path / "profile_qnn.log"
    trace.write_bytes(trace.read_bytes().replace(b"uses_hmx", b"scalar"))
    found = read_estimate(profile, [GRAPH], [SCHEMATIC], chip="77", nodes={"conv"})
    assert found is not None
    assert "not on the matrix unit" in found.operators[0].reason


def test_several_graphs_are_summed(tmp_path: Path) -> None:
    found = read_estimate(written(tmp_path, BLOCK + BLOCK), [GRAPH, GRAPH], [SCHEMATIC, SCHEMATIC], chip="77")
    assert found is not None
    assert (found.time_us, found.cycles) == (1000, 2000)
    assert "cannot be told apart" in found.note


@pytest.mark.parametrize(
    "rows",
    [
        [],
        ["0,BACKEND,0,US,BACKEND,ROOT,Performance Estimates unsupported on soc"],
        BLOCK[:2],
        [BLOCK[1], BLOCK[2].replace("1000", "0"), BLOCK[3]],
        [BLOCK[1], BLOCK[2].replace("1000", "many")],
    ],
)
def test_without_an_estimate_there_is_none(tmp_path: Path, rows: list[str]) -> None:
    assert read_estimate(written(tmp_path, rows), [GRAPH], [SCHEMATIC], chip="43") is None


def test_no_profile_is_no_estimate(tmp_path: Path) -> None:
    assert read_estimate(tmp_path / "profile.csv", [GRAPH], [SCHEMATIC], chip="77") is None


def test_a_trace_that_is_cut_off_names_no_operator(tmp_path: Path) -> None:
    found = read_estimate(written(tmp_path, BLOCK, end=False), [GRAPH], [SCHEMATIC], chip="77", nodes={"conv"})
    assert found is not None
    assert (found.time_us, found.operators, found.note) == (500, (), "the compiler's trace is cut off")
