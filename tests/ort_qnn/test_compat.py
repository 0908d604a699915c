"""Capability rows, block weight paths, versions and the second opinion."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from deploykit.errors import ToolError
from deploykit_ort_qnn import backend
from deploykit_ort_qnn.compat import KernelCell, operator_rows
from deploykit_ort_qnn.compiler import hosts, worker
from deploykit_ort_qnn.prepare import wheel_for
from deploykit_qualcomm.devices import qualcomm_device
from tables import each_row
from told import check_file

AIMET = Path(__file__).parents[1] / "data" / "aimet"


@each_row(
    ("typed", "wheel"),
    *((None, "2.7.0"), ("2.7.0", "2.7.0"), ("2.7", "2.7.0"), ("2.51", "2.7.0"), ("2.49.40", "2.5.0")),
    *(("2.36", "1.22.2"), ("2.36.1", "1.22.2"), ("1.22.2", "1.22.2"), ("2.33", "1.22.0"), ("2.22", "1.18.1")),
)
def test_a_version_names_a_wheel_or_the_qairt_inside(typed: str | None, wheel: str) -> None:
    assert wheel_for(typed).version == wheel


def path_of(words: str) -> list[str]:
    """Of ``2.7.0 MatMul lpbq bias``: a wheel, an operator, and what its weights and it have."""
    sdk, op_type, *has = words.split()
    return [backend.block_weight_path(op_type=op_type, lpbq="lpbq" in has, has_bias="bias" in has, sdk=sdk)]


def test_the_path_of_block_weights_is_told() -> None:
    check_file(Path(__file__).with_name("block_weights.told"), path_of)


def test_the_time_of_one_run_is_that_of_its_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    model = (AIMET / "vit/w8a8.qdq.onnx").read_bytes()
    assert (backend.time_us(model, qualcomm_device("sm8650"), print) or 0) >= 0
    assert "compiling" in capsys.readouterr().out
    with pytest.raises(ToolError, match="no compiler runs here"):
        backend.time_us(model, replace(qualcomm_device("sm8650"), facts={}), print)


def test_float16_mixes_depend_on_the_chip() -> None:
    with_fp16 = backend.mixed_support(backend.resolve(qualcomm_device("sm8650"), None), {})
    assert with_fp16.kinds == {"integer", "fallback"} and with_fp16.safe and "segments" in with_fp16.without
    without = backend.mixed_support(backend.resolve(qualcomm_device("sm8350"), None), {})
    assert without.kinds == {"integer"} and "no float16" in without.without["fallback"]


def test_a_worker_and_a_host_say_the_same_of_a_graph_of_which_nothing_is_taken() -> None:
    assert worker.NOTHING_TAKEN == hosts.NOTHING_TAKEN


def row(**more: Any) -> KernelCell:
    return KernelCell(**{"op": "Add", "form": "r 3", "type": "w8a16", "release": "2.36.1", "answer": "taken", **more})


def test_a_release_that_does_not_run_is_answered_by_the_nearest_one_that_does() -> None:
    cells = [row(answer="refused", why="Add"), row(release="2.47.0", decibels=35), row(release="2.47.0", form="r 2")]
    cells += [row(release="2.51.0", decibels=34.9), row(release="2.51.0", form="r 4", type="w8a8", decibels=20.0)]
    found = [
        (one.since, one.until, str(one.status), str(one.confidence), one.feature, one.note.split("; ", 1)[-1])
        for one in operator_rows(cells)
    ]
    refused, right, taken = "op Add, refused", "op Add, taken and right", "op Add, taken, not run"
    inferred, here = "for this release inferred from it; ", "w8a16: r 3 (Add)"
    assert found == [
        ("2.33.0", "2.36.0", "unsupported", "inferred", refused, inferred + here),
        ("2.36.1", "2.36.1", "unsupported", "observed", refused, here),
        ("2.37.0", "2.41.99", "unsupported", "inferred", refused, inferred + here),
        ("2.42.0", "2.46.99", "supported", "inferred", right, f"{inferred}w8a16: r 3"),
        ("2.42.0", "2.46.99", "supported", "inferred", taken, f"{inferred}w8a16: r 2"),
        ("2.47.0", "2.47.99", "supported", "observed", right, "w8a16: r 3"),
        ("2.47.0", "2.47.99", "supported", "observed", taken, "w8a16: r 2"),
        ("2.48.0", "2.50.99", "supported", "inferred", right, f"{inferred}w8a16: r 3"),
        ("2.48.0", "2.50.99", "supported", "inferred", taken, f"{inferred}w8a16: r 2"),
        ("2.51.0", "", "supported", "observed", right, "w8a8: r 4"),
        ("2.51.0", "", "broken", "observed", "op Add, taken and wrong", "w8a16: r 3 35 dB"),
    ]
