"""The toolchain files of the shared tables are whole: pins for what they install, sources, what was tried."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from deploykit.errors import UnknownTargetError
from deploykit.system.specs import select
from deploykit_qualcomm.carriers import qualcomm_toolchains


def test_the_files_are_whole() -> None:
    specs = qualcomm_toolchains("qnn-htp")
    old = ("2.22.0", "2.22.10", "2.36.1", "2.47.0", "2.48.40", "2.49.40", "2.50.40")
    htp = [f"htp=={version}" for version in old]
    assert [spec.id for spec in specs] == ["aimet==2.42.0", *htp, "onnxruntime-qnn==2.7.0"]
    for spec in specs:
        assert spec.verified and spec.source
        pinned = {str(Requirement(pin)) for pin in spec.constraints}
        assert {str(Requirement(name)) for stage in spec.stages for name in stage.packages} <= pinned


def test_a_series_is_enough_to_name_one() -> None:
    assert select(qualcomm_toolchains("ort-qnn"), "htp-2.48").version == "2.48.40"
    with pytest.raises(UnknownTargetError):
        select(qualcomm_toolchains("ort-qnn"), "htp-2.4")


def test_a_linux_wheel_is_pinned_by_a_hash_for_every_python() -> None:
    for spec in qualcomm_toolchains("ort-qnn"):
        if spec.name == "htp" and not spec.needs:
            (wheel,) = [stage for stage in spec.stages if stage.id == "wheel"]
            assert len(wheel.hashes) == len(set(wheel.hashes)) == 4
            assert wheel.packages[0] in spec.constraints
