"""A DLC without a converter: written by the real IR backend, read back, compared, and every damage refused."""

import json
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

import deploykit
from deploykit.errors import InputError, UsageError
from deploykit_ort_qnn.compiler.dlc import DLC, Compared, compare_dlc, read_dlc, with_check_sums
from deploykit_ort_qnn.rules.compiled import DLC_RULES as RULES
from deploykit_ort_qnn.rules.compiled import DlcScope
from rule_cases import check_pairs
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"
WRITTEN = DlcScope(qairt="2.51.0", metadata="2.3.0", compared=(Compared(tensor="x", meant="uint16", found="uint16"),))
CASES: dict[str, tuple[Any, Any]] = {"QNN299": (WRITTEN, DlcScope())}


def test_the_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, RULES)
    for changed, words in (
        ({"why": "the provider refuses it"}, "no DLC was written: the provider refuses it"),
        ({"compared": (Compared(tensor="y", meant="uint16", found="uint8"),)}, "1 of 1 tensors"),
        ({"compared": (Compared(tensor="y", meant="int8", found="int8", grid=False),)}, "grid: y"),
    ):
        (found,) = RULES["QNN299"].run(replace(WRITTEN, **changed))
        assert found.blocks and words in found.message


def test_the_package_holds_it_and_verifies_it(compiled_package: Path) -> None:
    report = deploykit.verify(compiled_package)
    (check,) = (check for check in report.checks if check.id == "dlc-types")
    assert report.ok and check.detail == "metadata 2.3.0, 23 tensors compared, 0 differ"
    manifest = json.loads((compiled_package / "manifest.json").read_text("utf-8"))
    assert manifest["record"]["dlc"] == {"metadata": "2.3.0", "compared": 23, "wrong": []}
    assert DLC in manifest["files"]


def test_it_is_the_graph_that_was_compiled(compiled_package: Path) -> None:
    dlc = read_dlc(compiled_package / DLC)
    assert dlc.graphs == 1
    kinds = [kind for _, kind in dlc.operators]
    assert kinds.count("Conv2d") == 4 and "FullyConnected" in kinds
    weights = dlc.tensors["conv1.weight_q"]
    assert (weights.dtype, weights.axis, len(weights.scales)) == ("int8", 3, 16)
    assert dlc.tensors["input"].dtype == "float32"
    with zipfile.ZipFile(compiled_package / DLC) as archive:  # with check sums and without the time of day
        assert archive.testzip() is None
        metadata = [archive.read(name) for name in archive.namelist() if name.startswith("dlc.metadata")]
    assert metadata and all(
        b"1980-01-01" in one and b"2026" not in one.split(b'"converterVersion"')[0] for one in metadata
    )


def test_another_type_and_another_grid_are_seen(compiled_package: Path) -> None:
    model, dlc = onnx.load(compiled_package / "model/model.onnx"), read_dlc(compiled_package / DLC)
    tensor = "/relu/Relu_output_0_QuantizeLinear"
    assert all(row.ok for row in compare_dlc(model, dlc))
    narrow = replace(dlc, tensors={**dlc.tensors, tensor: replace(dlc.tensors[tensor], dtype="uint8")})
    (row,) = (row for row in compare_dlc(model, narrow) if not row.ok)
    assert (row.tensor, row.meant, row.found) == (tensor, "uint16", "uint8")
    found = dlc.tensors[tensor]
    signed = replace(found, dtype="int16", zero_points=tuple(zero - 32768 for zero in found.zero_points))
    (row,) = (
        row for row in compare_dlc(model, replace(dlc, tensors={**dlc.tensors, tensor: signed})) if row.tensor == tensor
    )
    assert row.grid, "the same grid, whatever the sign"
    more = replace(found, zero_points=found.zero_points * 2)
    assert not all(row.ok for row in compare_dlc(model, replace(dlc, tensors={**dlc.tensors, tensor: more})))
    moved = replace(dlc.tensors[tensor], zero_points=(7,))
    (row,) = (row for row in compare_dlc(model, replace(dlc, tensors={**dlc.tensors, tensor: moved})) if not row.ok)
    assert (row.tensor, row.found, row.grid) == (tensor, "uint16", False)


def test_a_changed_model_does_not_agree_and_parameters_beside_are_not_compared(compiled_package: Path) -> None:
    model, dlc = onnx.load(compiled_package / "model/model.onnx"), read_dlc(compiled_package / DLC)
    node = next(node for node in model.graph.node if node.input[0] == "/relu/Relu_output_0")
    scale, whole = next(one for one in model.graph.initializer if one.name == node.input[1]), compare_dlc(model, dlc)
    count = len(list(whole))
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * 2, scale.name))
    assert "/relu/Relu_output_0_QuantizeLinear" in [row.tensor for row in compare_dlc(model, dlc) if not row.ok]
    scale.data_location = onnx.TensorProto.EXTERNAL
    assert 0 < len(list(compare_dlc(model, dlc))) < count


def damaged(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target


@each_row(
    "change",
    lambda members: members.pop("model"),
    lambda members: members.update(model=b"short"),
    lambda members: members.update(model=members["model"].replace(b"NETD", b"DTEN")),
    lambda members: members.update(model=members["model"][:200]),
    lambda members: members.update(model=members["model"][:8] + struct.pack("<I", 1 << 31) + members["model"][12:]),
)
def test_a_damaged_file_is_an_error_and_no_guess(compiled_package: Path, tmp_path: Path, change: Any) -> None:
    with pytest.raises(InputError, match="not a DLC of a known form"):
        read_dlc(damaged(compiled_package / DLC, tmp_path / "m.dlc", change))


def test_what_is_no_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.dlc").write_bytes(b"PK no zip")
    with pytest.raises(InputError):
        read_dlc(tmp_path / "m.dlc")
    with pytest.raises(InputError):
        with_check_sums(tmp_path / "m.dlc", tmp_path / "n.dlc")


@each_row(("sdk", "words"), ("2.36", "writes none"), ("2.42", "does not run here"))
def test_a_wheel_that_cannot_is_refused(tmp_path: Path, sdk: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        deploykit.package(
            AIMET / "cnn/model.onnx",
            encodings=AIMET / "cnn/w8a16.v2.0.0.encodings",
            out=tmp_path / "p",
            target="sc8380xp",
            backend="ort-qnn",
            sdk=sdk,
            dlc=True,  # type: ignore[call-arg]
        )
