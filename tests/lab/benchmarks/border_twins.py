"""How well ``check`` tells models at the borders of the rows.

    PYTHONPATH=tests/lab python tests/lab/benchmarks/border_twins.py [--seed S]

For every part of the condition of every row about a wrong kernel, and of some about refused ones, it draws models just
inside and just outside, runs each as it is on the emulator against the CPU, and holds what ``check`` says against that.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import onnx

from atlas.cases import case_unit
from atlas.units import Unit
from deploykit_ort_qnn.bench.together import run_together
from deploykit_qualcomm.atlas.rows import Row, atlas_rows
from kernel_rates import said_of, truth_of
from unseen_twins import Twin, drawn_twins

__all__ = ["Told", "summary"]

_SOC = 57


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One model: at which border it lies, what it does, and what ``check`` says of it."""

    row: str
    verdict: str
    part: str
    inside: bool
    case: str
    kind: str
    truth: str
    off: float
    said: str
    finding: str


def main() -> None:
    """Measure and print; ``--out`` keeps every answer, one a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=1, help="models on each side of each border")
    parser.add_argument("--tries", type=int, default=60, help="models drawn for an operator in a type, to choose from")
    parser.add_argument("--refused", type=int, default=40, help="so many rows about refused kernels, drawn by the seed")
    parser.add_argument("--only", nargs="*", default=(), help="operators")
    parser.add_argument("--out", type=Path, default=Path("border_twins.jsonl"))
    given = parser.parse_args()
    rows = [row for row in chosen_rows(given.seed, given.refused) if not given.only or row.op in given.only]
    twins = list(drawn_twins(rows, given.seed, each=given.each, tries=given.tries))
    print(f"{len(twins)} models at the borders of {len(rows)} rows", flush=True)
    answers = []
    with given.out.open("w", encoding="utf-8") as file:
        for told in measured(twins):
            answers.append(told)
            file.write(json.dumps(asdict(told)) + "\n")
            file.flush()
    print("\n".join(summary(answers)))


def chosen_rows(seed: int, refused: int) -> list[Row]:
    """All about wrong and narrowed kernels, and some about refused ones."""
    rows = atlas_rows()
    others = [row for row in rows if row.verdict == "refused"]
    return [
        *(row for row in rows if row.verdict != "refused"),
        *Random(seed).sample(others, min(refused, len(others))),
    ]


def measured(twins: Sequence[Twin]) -> Iterator[Told]:
    """Every twin that is a model of ONNX and that the CPU runs."""
    units: list[tuple[Twin, Unit]] = []
    for number, twin in enumerate(twins):
        try:
            units.append((twin, case_unit(twin.case, number)))
        except Exception:  # what shape inference makes of sizes that do not fit
            continue
    by_prefix = {unit.prefix: (twin, unit) for twin, unit in units}
    for kind in dict.fromkeys(unit.kind for _, unit in units):
        some = [unit for _, unit in units if unit.kind == kind]
        for ran in run_together(some, host=None, soc_model=_SOC, progress=print, together=60):
            twin, unit = by_prefix[ran.probe.prefix]
            truth, off = truth_of(twin.case, ran)
            if ran.answer != "invalid":
                yield _told(twin, unit, truth, off)


def _told(twin: Twin, unit: Unit, truth: str, off: float) -> Told:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(unit.model, path)
        said, finding = said_of(path)
    return Told(
        row=twin.row.id,
        verdict=twin.row.verdict,
        part=twin.part,
        inside=twin.inside,
        case=f"{twin.case.form.id} {twin.case.variation}",
        kind=twin.case.kind,
        truth=truth,
        off=round(off, 4),
        said=said,
        finding=finding,
    )


def summary(told: Sequence[Told]) -> Iterator[str]:
    """Truth against what was said, on each side; then the three rates."""
    counts = Counter((one.truth, "inside" if one.inside else "outside", one.said or "nothing") for one in told)
    yield "truth: side: said"
    for (truth, side, word), count in sorted(counts.items()):
        yield f"  {truth:10} {side:8} {word:16} {count}"

    def among(truth: str, *words: str) -> int:
        return sum(one.truth == truth and not {*words}.isdisjoint(one.said.split()) for one in told)

    truths, said = Counter(one.truth for one in told), sum("refused" in one.said.split() for one in told)
    yield f"wrong and told: {among('wrong', 'wrong', 'narrowed', 'refused', 'handled')} of {truths['wrong']}"
    yield f"right and told as wrong or refused: {among('right', 'wrong', 'refused')} of {truths['right']}"
    yield f"refused and told so: {among('refused', 'refused')} of {truths['refused']}"
    yield f"told as refused and so: {among('refused', 'refused')} of {said}"


if __name__ == "__main__":
    main()
