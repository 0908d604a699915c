"""What counts as free memory, and how a budget is stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploykit.errors import UsageError
from deploykit.system.limits import VARIABLE, free_memory, memory_budget, read_size, with_memory
from tables import each_row


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("3G", 3 << 30), ("1.5 GiB", 3 << 29), ("512m", 512 << 20), ("2KB", 2048)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert read_size(text) == size


@each_row("text", ["", "0", "-1", "3X", "G", "1e9", "nan", "0.1"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no amount of memory"):
        read_size(text)


def test_a_budget_holds_inside_and_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "5K")
    with with_memory("3K"):
        assert memory_budget() == 3072
        with with_memory(None):
            assert memory_budget() == 3072
    assert memory_budget() == 5120
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(UsageError), with_memory("much"):
        pass
    assert 0 < memory_budget() <= free_memory() * 0.7


def _machine(root: Path, *, free_kib: int, groups: str = "") -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:   {free_kib} kB\n", "ascii")
    (root / "proc/self/cgroup").write_text(groups, "ascii")


def _group(folder: Path, **numbers: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in numbers.items():
        (folder / name.replace("__", ".")).write_text(f"{number}\n", "ascii")


def test_the_tightest_group_counts_and_its_file_caches_are_free(tmp_path: Path) -> None:
    _machine(tmp_path, free_kib=1000, groups="0::/a/b\n")
    assert free_memory(tmp_path) == 1000 << 10
    top = tmp_path / "sys/fs/cgroup"
    _group(
        top / "a", memory__max=600 << 10, memory__current=500 << 10, memory__stat=f"anon 1\ninactive_file {50 << 10}"
    )
    _group(top / "a/b", memory__max="max", memory__current=1)
    assert free_memory(tmp_path) == 150 << 10


def test_where_nothing_is_said_something_is_assumed(tmp_path: Path) -> None:
    assert free_memory(tmp_path) > 1 << 30
