"""The graphs that are measured, the file of what releases make of them, and how a sweep goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from atlas.forms import all_forms
from atlas.sweep import sweep
from atlas.units import TYPES, Kind, Unit, unit
from atlas.writing import keep
from deploykit.accuracy.simulate.sessions import Session
from deploykit_ort_qnn.bench import together
from deploykit_ort_qnn.bench.together import Ran, joined
from deploykit_ort_qnn.compat import KernelCell, recorded

FORMS = {form.id: form for form in all_forms()}

SAMPLE = (
    *("MatMul: two activations, rank 4", "Conv: depthwise, 2 sides", "LayerNormalization: last axis, rank 3"),
    *("Softmax: last axis, rank 6", "TopK: 5 of axis 1, rank 3", "Gather: int32 places as input, axis 0 of a table"),
)


def sample(kind: Kind) -> list[Unit]:
    return [unit(FORMS[name], kind, number) for number, name in enumerate(SAMPLE)]


def test_there_is_one_form_of_each_name_and_ranks_from_three_to_six() -> None:
    assert len(FORMS) == len(all_forms()) > 440
    for op in ("Add", "Relu", "Softmax", "LayerNormalization", "MatMul", "ReduceMean", "Transpose", "Concat"):
        for rank in (3, 4, 5, 6):
            assert any(form.op == op and f"rank {rank}" in form.name for form in all_forms()), (op, rank)


@pytest.mark.parametrize("kind", TYPES)
def test_every_graph_is_valid_and_the_same_each_time(kind: Kind) -> None:
    for number, form in enumerate(all_forms()[::7]):
        one = unit(form, kind, number)
        onnx.checker.check_model(one.model)
        assert one.model.SerializeToString(deterministic=True) == unit(form, kind, number).model.SerializeToString(
            deterministic=True
        )


@pytest.mark.parametrize("kind", TYPES)
def test_graphs_side_by_side_give_what_they_give_alone(kind: Kind) -> None:
    units = sample(kind)
    whole = joined(one.model for one in units)
    onnx.checker.check_model(whole)
    together = Session(whole).run({name: value for one in units for name, value in one.samples[0].items()})
    for one in units:
        for name, value in Session(one.model).run(one.samples[0]).items():
            assert (together[name] == value).all()


def row(**more: Any) -> KernelCell:
    return KernelCell(
        **{"op": "Add", "form": "rank 3", "type": "w8a16", "release": "2.36.1", "answer": "taken", **more}
    )


def test_the_file_keeps_what_was_measured_and_takes_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "kernels.jsonl"
    keep([row(decibels=80.5), row(release="2.51.0", answer="refused", why="Add: the backend answers 3110")], path)
    keep([row(decibels=12.0), row(form="rank 4", answer="taken", why="not run: it died")], path)
    assert [(cell.form, cell.release, cell.state) for cell in recorded(path)] == [
        ("rank 3", "2.36.1", "wrong"),
        ("rank 3", "2.51.0", "refused"),
        ("rank 4", "2.36.1", "taken"),
    ]
    assert recorded(path)[1].why == "Add: the backend answers 3110"


def test_what_cannot_be_compiled_together_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit that ends the compiler costs the others nothing."""
    asked = []

    def attempt(batch: Sequence[Unit], *_: object) -> list[Ran] | Ran:
        asked.append(len(batch))
        if any(one.form.op == "TopK" for one in batch):
            return Ran(probe=batch[0], answer="crashed", why="it died")
        return [Ran(probe=one, answer="taken") for one in batch]

    monkeypatch.setattr(together, "_attempt", attempt)
    found = list(sweep(sample("w8a8"), host=None, soc_model=57, progress=lambda line: None))
    assert {one.unit.form.op for one in found if one.answer == "crashed"} == {"TopK"}
    assert len(found) == len(SAMPLE) and len(asked) < 2 * len(SAMPLE)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", TYPES)
def test_the_compiler_here_still_answers_so(kind: Kind) -> None:
    """A sample of the recorded column of 2.51, measured again."""
    known = {(f"{cell.op}: {cell.form}", cell.type): cell for cell in recorded() if cell.release == "2.51.0"}
    for one in sweep(sample(kind), host=None, soc_model=57, progress=print):
        was = known[one.unit.form.id, kind]
        assert one.answer == was.answer
        assert one.decibels == (None if was.decibels is None else pytest.approx(was.decibels, abs=3.0))
