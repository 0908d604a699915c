"""Logs, containers and programs that go on without end: what reads them holds little and ends."""

import random
import struct
import sys
import time
import zipfile
from pathlib import Path

import pytest

from deploykit.errors import InputError, ToolError
from deploykit.system.processes import run
from deploykit_ort_qnn.compiler.dlc import read_dlc
from victims import MODEL, acceptable, run_cli, run_here


def test_a_line_without_end_is_cut_into_lines() -> None:
    code = "import sys; sys.stdout.write('a' * (5 << 20)); print(); print('b')"
    lines: list[str] = []
    assert run([sys.executable, "-c", code], on_line=lines.append).ok
    assert [len(line) for line in lines] == [1 << 20] * 5 + [0, 1]


def test_a_program_that_never_stops_talking_ends_with_its_time(tmp_path: Path) -> None:
    """What it writes faster than it is read waits with it, and not in memory."""
    began, seen = time.monotonic(), [0]

    def slowly(_: str) -> None:
        seen[0] += 1
        time.sleep(0.001)

    done = run([sys.executable, "-c", "while True: print('x' * 4000)"], timeout=0.5, on_line=slowly)
    assert done.timed_out
    assert time.monotonic() - began < 30
    assert seen[0] < 5_000


def test_a_log_of_long_lines_full_of_words_that_tell_of_trouble_is_answered(tmp_path: Path) -> None:
    """Each line is looked at once, whatever leads to it, and patterns do not begin at every letter of it."""
    words = "ret failed error cannot open no such file OSError: E QnnDsp not supported undefined symbol (12) err -13"
    chance = random.Random(0)
    lines = ("[ERROR] " + " ".join(chance.choices(words.split(), k=500)) for _ in range(20))
    (tmp_path / "a.log").write_text("\n".join(lines))
    began = time.process_time()
    assert run_here("diagnose", tmp_path / "a.log").status in (0, 1)
    assert time.process_time() - began < 2


@pytest.mark.heavy
def test_huge_logs_are_answered(tmp_path: Path) -> None:
    """As one line, as very many, as what every pattern begins to match, as no text at all."""
    lines = b"2026 [ ERROR ] QnnDsp <E> failed to validate op node_1234 with error 3110 (0x0c26)\n"
    logs = {
        "one": b"error " * (20 << 17),
        "many": lines * 150_000,
        "brackets": b"[" * (4 << 20) + b"\n" + b"QnnDsp <E> " * 200_000,
        "spaces": b"error:" + b" " * (8 << 20) + b"!",
        "zeros": bytes(8 << 20),
        "escapes": b"\x1b]0;" * (1 << 20),
    }
    for name, data in logs.items():
        (tmp_path / f"{name}.log").write_bytes(data)
        ending = run_cli("diagnose", tmp_path / f"{name}.log", "--model", MODEL)
        assert acceptable(ending, seconds=20), (name, ending)


def container(path: Path, model: bytes, times: int = 1) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(times):
            archive.writestr("model" if number == 0 else f"m{number}", model)
    return path


def netd(width: int) -> bytes:
    """A buffer whose graphs and tensors are lists of ``width`` entries that all point to one."""
    root, graphs = 16, 24
    tensors = (graph := graphs + 4 + 4 * width) + 12
    tensor = tensors + 4 + 4 * width
    data = bytearray(tensor + 8)
    data[12:16] = b"NETD"

    def table(fields: dict[int, int], at: int) -> None:
        """Fields of a table at ``at``, its list of offsets behind the buffer so far."""
        size = 4 + 2 * (max(fields) + 1)
        place = len(data)
        data.extend(struct.pack("<HH", size, 4))
        for field in range(max(fields) + 1):
            data.extend(struct.pack("<H", fields[field] - at if field in fields else 0))
        data[at : at + 4] = struct.pack("<i", at - place)

    for at, to in ((graphs, graph), (tensors, tensor)):
        data[at : at + 4] = struct.pack("<I", width)
        for place in range(at + 4, at + 4 + 4 * width, 4):
            data[place : place + 4] = struct.pack("<I", to - place)
    for at, to in ((8, root), (root + 4, graphs), (graph + 8, tensors)):
        data[at : at + 4] = struct.pack("<I", to - at)
    table({0: root + 4}, root)
    table({2: graph + 8}, graph)
    data[tensor + 4 : tensor + 8] = struct.pack("<I", 0x408)
    table({6: tensor + 4}, tensor)
    return bytes(data)


ROOM = "its lists hold more than there is room for"


@pytest.mark.parametrize("width", [40_000])
def test_lists_of_a_container_that_point_to_one_another(width: int, tmp_path: Path) -> None:
    """A third of a megabyte that asked for 1,600,000,000 tensors."""
    path = container(tmp_path / "m.dlc", netd(width))
    assert path.stat().st_size < 1 << 20
    began = time.process_time()
    with pytest.raises(InputError, match="not a DLC of a known form") as caught:
        read_dlc(path)
    assert caught.value.why == ROOM and time.process_time() - began < 5


def test_as_many_entries_as_a_container_has_room_for(tmp_path: Path) -> None:
    """An entry takes four bytes: 30 fit into 126 bytes, and 42 do not into 134."""
    assert read_dlc(container(tmp_path / "m.dlc", netd(5))).graphs == 5
    with pytest.raises(InputError) as caught:
        read_dlc(container(tmp_path / "n.dlc", netd(6)))
    assert caught.value.why == ROOM


def test_members_of_a_container_that_share_their_bytes(tmp_path: Path) -> None:
    """Ten thousand names for one megabyte are ten gigabytes."""
    path = container(tmp_path / "m.dlc", bytes(1 << 20), 2)
    data = path.read_bytes()
    start = data.index(b"PK\x01\x02")
    entry, end = data[start : data.index(b"PK\x01\x02", start + 4)], data.index(b"PK\x05\x06")
    many = b"".join(entry.replace(b"model", b"%05d" % number) for number in range(2000))
    tail = bytearray(data[end:])
    tail[8:20] = struct.pack("<HHII", 2000, 2000, len(many), start)
    path.write_bytes(data[:start] + many + bytes(tail))
    with pytest.raises(InputError, match="not a DLC of a known form"):
        read_dlc(path)


def test_a_measure_that_ends_the_program_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from deploykit.accuracy.judge.metric import user_metric

    (tmp_path / "quits.py").write_text("import os\ndef now(a, b):\n    os._exit(0)\n")
    monkeypatch.chdir(tmp_path)
    metric = user_metric("quits:now")
    assert metric is not None
    with pytest.raises(ToolError, match="left no number"):
        metric.measure([{"y": np.zeros(2)}], [{"y": np.zeros(2)}])
