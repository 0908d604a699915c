"""The table of wheels says where each compiler runs, and what follows from it: rows, the wheel of a build, doctor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploykit.backend.probes import Surroundings
from deploykit.tables.capabilities import Status
from deploykit_qualcomm.carriers import carrier, compilable, host_toolchain, probe_hosts, qualcomm_toolchains
from deploykit_qualcomm.compat import compat_rows
from deploykit_qualcomm.tables import LINUX, WINE, tables
from tables import each_row


def test_every_file_of_a_host_has_a_hash_and_is_of_its_wheel() -> None:
    for wheel in tables().wheels:
        assert wheel.build.startswith(f"{wheel.sdk}.")
        assert wheel.host
        for host in wheel.host:
            assert bool(host.file) == bool(host.sha256)
            assert not host.file or host.file.startswith(f"onnxruntime_qnn-{wheel.version}-")
            assert not host.sha256 or re.fullmatch(r"[0-9a-f]{64}", host.sha256)
            assert all(run.endswith("arm64") == (host.machine == "aarch64") for run in host.runs)


def test_only_what_was_run_counts_as_compilable() -> None:
    assert [wheel.version for wheel in tables().wheels if compilable(wheel)] == [
        *("1.18.0", "1.18.1", "1.22.2", "2.3.0", "2.4.0", "2.5.0", "2.6.0", "2.7.0")
    ]


def test_a_toolchain_installs_the_wheel_that_carries_its_release() -> None:
    specs = [spec for spec in qualcomm_toolchains("ort-qnn") if spec.name == "htp"]
    assert specs
    for spec in specs:
        (wheel,) = [wheel for wheel in tables().wheels if wheel.sdk == spec.version]
        assert spec.licence
        if wheel.runs_on(LINUX) is not None:
            assert spec.stages[0].packages == (f"onnxruntime-qnn=={wheel.version}",) and spec.stages[0].hashes
            pairs = {f"onnxruntime=={pair.version}" for pair in wheel.onnxruntime if pair.status is Status.SUPPORTED}
            assert spec.stages[1].packages[0] in pairs
            continue
        host = wheel.runs_on(WINE)
        assert host is not None and host.sha256
        asking = {wheel.version: wheel for wheel in tables().wheels}[wheel.asked_by or wheel.version]
        assert asking.loadable and asking.provider == "append"
        assert [stage.run[2] for stage in spec.stages if stage.id == "libraries"] == [asking.version]
        assert [stage.run[2] for stage in spec.stages if stage.id == "target"] == [wheel.version] * bool(wheel.asked_by)
        # The relay shows the core API that the provider was made for.
        core = spec.environment.get("DEPLOYKIT_QNN_CORE", "")
        assert core == (asking.qnn_api.split(".")[1] if wheel.asked_by else "")
        assert all(Path(spec.files, name).is_file() for stage in spec.stages for name in stage.inputs)
        assert spec.needs


@each_row(
    ("build", "wheel"),
    [
        ("v2.36.1.250708151608_123266", "1.22.2"),
        ("v2.33.2.250410134701_117956", "1.22.0"),
        ("v2.28.2.241116104011_1", "1.20.2"),
        ("v2.51.0.260929181845", "2.7.0"),
        ("v2.36.0.250627101419_123859", None),
        ("", None),
    ],
)
def test_a_build_id_names_its_wheel(build: str, wheel: str | None) -> None:
    found = carrier(build)
    assert (None if found is None else found.version) == wheel


def test_a_row_per_host_holds_at_its_release_only() -> None:
    rows = [row for row in compat_rows("ort-qnn") if row.feature == "wheel onnxruntime-qnn 1.22.0"]
    reads, row = rows
    assert reads.tool == "onnxruntime 1.22.0" and "operator sets up to 22, IR up to 10" in reads.note
    assert (row.tool, row.since, row.until) == ("windows aarch64", "2.33.2", "2.33.2")
    assert "2.33.2.250410134701" in row.note and "Windows on ARM" in row.note


def test_doctor_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_TOOLCHAINS", str(tmp_path))
    *lines, last = probe_hosts(Surroundings(which=lambda name: None))
    first = next(line for line in lines if line.id == "htp-2.36.1")
    assert first.state == "absent"
    assert "absent; wine is not installed" in first.detail
    assert "apt-get install" in first.next and first.next.endswith("deploykit toolchain install htp-2.36.1")
    assert last.id == "htp-elsewhere" and "2.33.2 (wheel 1.22.0)" in last.detail and "2.36.1" not in last.detail
    with_wine, *_ = probe_hosts(Surroundings(which=lambda name: f"/usr/bin/{name}"))
    assert with_wine.next == "deploykit toolchain install htp-2.22.0"


def test_the_toolchain_of_another_release_is_none() -> None:
    assert host_toolchain("2.33.2") is None
