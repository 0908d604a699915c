"""Work of the vendor's tools is asked for once, and anew for whatever it depends on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploykit.system.processes import ProgramEnd
from deploykit_ort_qnn.compiler import jobs as module
from deploykit_ort_qnn.compiler.hosts import Work
from deploykit_ort_qnn.compiler.jobs import known_work

ASKED: dict[str, Any] = {"options": {"soc_model": "57"}, "entries": {}}


class Desk:
    """A worker that leaves one file and counts how often it was asked."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked = root, 0
        self.model = root / "model"
        self.model.mkdir()
        (self.model / "model.onnx").write_bytes(b"nodes")
        (self.model / "weights").write_bytes(b"weights")
        self.ends: tuple[dict[str, Any] | None, int] = ({"ok": True, "cpu_nodes": []}, 0)

    def work(self, asked: dict[str, Any] = ASKED, tell: Callable[[str], None] | None = None) -> tuple[Work, Path]:
        scratch = self.root / f"scratch{len(list(self.root.iterdir()))}"
        (scratch / "out").mkdir(parents=True)

        def run() -> Work:
            self.asked += 1
            for name in ("request.json", "result.json", "out/context.bin"):
                (scratch / name).write_bytes(f"{name} {self.asked}".encode())
            answer, status = self.ends
            return ProgramEnd(argv=("x",), returncode=status, tail=(), seconds=1.0), answer, ("a line",)

        return known_work("compiled", asked, [self.model], scratch, run, tell=tell), scratch


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "is_off", lambda: False)
    root = tmp_path / "root"
    root.mkdir()
    return Desk(root)


def test_the_same_work_is_not_done_twice(desk: Desk) -> None:
    told: list[str] = []
    (first, first_at), (second, second_at) = desk.work(tell=told.append), desk.work(tell=told.append)
    assert desk.asked == 1
    assert first[1:] == second[1:] and second[0].ok
    assert (first_at / "out/context.bin").read_bytes() == (second_at / "out/context.bin").read_bytes()
    assert not (second_at / "request.json").exists()
    assert len(told) == 1 and "done before" in told[0]


def test_another_file_option_or_tool_is_other_work(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.work()
    for asked, file in enumerate(("model.onnx", "weights", "more"), 2):
        (desk.model / file).write_bytes(b"other")
        desk.work()
        assert desk.asked == asked
    desk.work({**ASKED, "options": {"soc_model": "69"}})
    assert desk.asked == 5
    other = {"wheel": "2.7.1", "qairt": "2.51", "onnxruntime": "1.32.0"}
    for asked, (what, value) in enumerate((("who_compiles", lambda _: other), ("code_digest", lambda _: "another")), 6):
        monkeypatch.setattr(module, what, value)
        desk.work()
        assert desk.asked == asked


@pytest.mark.parametrize("ends", [(None, -11), ({"ok": False, "error": "refused"}, 0)])
def test_a_failure_is_asked_for_again(desk: Desk, ends: tuple[dict[str, Any] | None, int]) -> None:
    desk.ends = ends
    for _ in range(2):
        (done, answer, log), _ = desk.work()
        assert (answer, done.returncode, log) == (*ends, ("a line",))
    assert desk.asked == 2


def test_damaged_work_is_done_again(desk: Desk, tmp_path: Path) -> None:
    desk.work()
    (entry,) = (tmp_path / "cache" / "compiled").iterdir()
    entry.write_bytes(entry.read_bytes()[:-1])
    desk.work()
    assert desk.asked == 2


def test_nothing_is_kept_where_that_is_switched_off(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_off", lambda: True)
    desk.work()
    desk.work()
    assert desk.asked == 2
