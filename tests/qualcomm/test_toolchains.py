"""The toolchain files of the shared tables are whole: pins for what they install, sources, what was tried."""

from __future__ import annotations

from packaging.requirements import Requirement

from deploykit_qualcomm.toolchains import qualcomm_toolchains


def test_the_files_are_whole() -> None:
    specs = qualcomm_toolchains("qnn-htp")
    old = ("htp==2.22.0", "htp==2.22.10", "htp==2.36.1")
    assert [spec.id for spec in specs] == ["aimet==2.42.0", *old, "onnxruntime-qnn==2.7.0", "qnn-replay==1"]
    for spec in specs:
        assert spec.verified and spec.source
        pinned = {str(Requirement(pin)) for pin in spec.constraints}
        assert {str(Requirement(name)) for stage in spec.stages for name in stage.packages} <= pinned
