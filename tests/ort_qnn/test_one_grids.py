"""Operators that only move values get one grid: who gets whose, and on the emulator what is wrong without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

import deploykit
from changes import regridded
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.flow.pipeline import Packaged
from deploykit.rewrites.contract import shares_grid
from deploykit_ort_qnn.forms.kernel_grids import conversions_before_moves, one_grids

_MOVE = "SpaceToDepth <blocksize = 2>"


def moved(*, kind: str = "uint8", read_twice: bool = False, behind: str = "") -> onnx.ModelProto:
    """x, then a move whose result has steps three times as large; ``behind`` is an operator between the two."""
    pair = "{1} = QuantizeLinear ({0}, {2}, z) {3} = DequantizeLinear ({1}, {2}, z)"
    steps = [pair.format("x", "q0", "s", "a")]
    if behind:
        steps += [f"r = {behind} (a)", pair.format("r", "q1", "s", "b")]
    steps += [f"m = {_MOVE} ({'b' if behind else 'a'})", pair.format("m", "q2", "t", "y")]
    outputs = "float[1,8,3,3] y"
    if read_twice:
        steps += ["e = Relu (a)", pair.format("e", "q3", "s", "w")]
        outputs += ", float[1,2,6,6] w"
    zero = {"uint8": 128, "uint16": 32768}[kind]
    grids = f"float s = {{0.02}}, float t = {{0.06}}, {kind} z = {{{zero}}}"
    graph = f"g (float[1,2,6,6] x) => ({outputs}) <{grids}> {{ {' '.join(steps)} }}"
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 21]> {graph}')


def parts(model: onnx.ModelProto) -> tuple[onnx.ModelProto, EncodingSet]:
    found = extract_qdq(model)
    return found.model, found.encodings


def step(encodings: EncodingSet, name: str) -> float:
    value = encodings.entries[name].value
    assert isinstance(value, Affine)
    return float(value.scale)


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_what_is_read_by_the_move_alone_gets_its_results_grid(kind: str) -> None:
    model, encodings = parts(moved(kind=kind))
    (made,) = model.graph.output
    changed, names = regridded(one_grids, model, encodings)
    assert names == (model.graph.input[0].name,) and step(changed, names[0]) == step(encodings, made.name)
    assert regridded(one_grids, model, changed)[1] == () and not conversions_before_moves(model, changed)


def test_what_only_carries_values_gets_it_with_them() -> None:
    model, encodings = parts(moved(behind="Identity"))
    changed, names = regridded(one_grids, model, encodings)
    assert len(names) == 2 and {round(step(changed, name), 6) for name in names} == {0.06}
    model, encodings = parts(moved(behind="Relu"))
    assert len(regridded(one_grids, model, encodings)[1]) == 1


def test_what_is_read_elsewhere_too_is_converted_for_the_move() -> None:
    model, encodings = parts(moved(read_twice=True))
    assert regridded(one_grids, model, encodings)[1] == ()
    ((_, wanted),) = conversions_before_moves(model, encodings).items()
    assert wanted.scale == pytest.approx(0.06)


def test_grids_of_other_widths_stay() -> None:
    model, encodings = parts(moved())
    (name,) = (value.name for value in model.graph.input)
    wide = extract_qdq(moved(kind="uint16")).encodings
    entries = {**encodings.entries, name: wide.entries[name]}
    mixed = EncodingSet(version=encodings.version, entries=entries)
    assert regridded(one_grids, model, mixed)[1] == () and not shares_grid(
        mixed.get(name), encodings.entries[name].value
    )


@pytest.mark.heavy
@pytest.mark.parametrize("read_twice", [False, True])
def test_a_move_to_another_grid_is_right_and_was_not(tmp_path: Path, read_twice: bool) -> None:
    """QAIRT 2.51 takes the integers over: three times what it should be, without a word."""
    path = tmp_path / "moved.onnx"
    onnx.save(moved(read_twice=read_twice), path)
    done = package(path, tmp_path / "done")
    left = package(path, tmp_path / "left", without=["one-grid"])
    assert done.exit_status == 0 and "ORT120" not in {finding.code for finding in done.findings}
    assert left.exit_status == 1 and "ORT120" in {finding.code for finding in left.findings}


def package(path: Path, out: Path, *, without: Sequence[str] = ()) -> Packaged:
    return deploykit.package(path, target="sm8650", backend="ort-qnn", out=out, no_rewrite=without, audit="off")  # type: ignore[call-arg]
