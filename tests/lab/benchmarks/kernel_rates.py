"""How well wrong and refused kernels are told.

    PYTHONPATH=tests/lab python tests/lab/benchmarks/kernel_rates.py [--count N] [--seed S]

Draws small models that the atlas was not made from, runs each on the emulator against the CPU, and holds what ``check``
says and what ``package`` delivers against that. What is right is counted here by itself, not by the audit's judge.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import deploykit
from atlas.cases import Case, case_unit
from atlas.form_chance import BY_CHANCE
from atlas.units import Unit
from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.qdq import extract_qdq
from deploykit.errors import DeploykitError
from deploykit_ort_qnn.bench.together import Ran, run_together
from deploykit_ort_qnn.compiler.jobs import execute_both
from deploykit_qualcomm.atlas.rows import atlas_rows
from unseen_kernels import drawn_cases

__all__ = ["Answer", "confusion", "said_of", "truth_of"]

_SOC = 57
_SAYING = ("wrong", "narrowed", "refused")
_EDGED = ("Resize", "GridSample", "Where", "Floor", "Ceil", "Round", "Sign", "ThresholdedRelu", "TopK")
_NEARER = "nearer to float"
_FAR, _NEAR = 0.05, 0.02
"""Parts of the range: off by the one in many values is wrong; right is within the other, and no single value as far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One model: what it does, what was said of it before, and what a package of it does.

    ``delivered`` is by the file; ``distances`` are the parts of the range that the package is off the file and off the
    float model, and that the file is off the float model.
    """

    case: str
    kind: str
    truth: str
    off: float
    refused: str
    said: str
    row: str
    delivered: str = ""
    why: str = ""
    distances: tuple[float, ...] = ()


def main() -> None:
    """Measure and print; ``--out`` keeps every answer, one a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--right", type=int, default=20, help="so many right models are packaged too")
    parser.add_argument("--checked", type=int, default=10_000, help="so many right models are asked about at most")
    parser.add_argument("--out", type=Path, default=Path("kernel_rates.jsonl"))
    parser.add_argument("--suspects", action="store_true", help="only operators that a row calls wrong or narrowed")
    given = parser.parse_args()
    said = {row.op for row in atlas_rows() if row.verdict in ("wrong", "narrowed")}
    only = said if given.suspects else tuple(BY_CHANCE)
    answers = []
    with given.out.open("w", encoding="utf-8") as file:
        drawn = list(drawn_cases(given.count, given.seed, only=only))
        for answer in measured(drawn, given.right, given.checked):
            answers.append(answer)
            file.write(json.dumps(asdict(answer)) + "\n")
            file.flush()
    print("\n".join(confusion(answers)))


def measured(cases: Sequence[Case], right: int, checked: int) -> Iterator[Answer]:
    """Every case that is a model of ONNX; of right ones so many are packaged, and so many checked."""
    units: list[tuple[Case, Unit]] = []
    for number, case in enumerate(cases):
        try:
            units.append((case, case_unit(case, number)))
        except Exception:  # what shape inference makes of sizes that do not fit
            continue
    by_prefix = {unit.prefix: (case, unit) for case, unit in units}
    for kind in dict.fromkeys(case.kind for case, _ in units):
        some = [unit for case, unit in units if case.kind == kind]
        for ran in run_together(some, host=None, soc_model=_SOC, progress=print, together=60):
            case, unit = by_prefix[ran.probe.prefix]
            if ran.answer == "invalid":
                continue
            truth, off = truth_of(case, ran)
            truth = by_float(case, unit, ran, truth)
            checked -= truth == "right"
            if truth == "right" and checked < 0:
                continue
            packaged = truth.startswith(_SAYING) or (truth == "right" and right > 0)
            right -= truth == "right" and packaged
            yield _answer(case, unit, ran, truth, off, packaged=packaged)


def truth_of(case: Case, ran: Ran) -> tuple[str, float]:
    """Wrong, right, between the two, or refused; and the part of the range that the worst hundredth is off."""
    if ran.answer in ("refused", "failed"):
        return "refused", 0.0
    if not ran.got:
        return ran.answer, 0.0
    return _compared(case, ran.wanted, ran.got)


def by_float(case: Case, unit: Unit, ran: Ran, truth: str) -> str:
    """The truth, with a word more where what is off the file is nearer to the float model than the file is."""
    if truth not in ("wrong", "between") or case.kind == "fp16":
        return truth
    off, of_file = _off_float(case, unit, ran.got), _off_float(case, unit, ran.wanted)
    return f"{truth}, {_NEARER}" if off < of_file else truth


def _off_float(case: Case, unit: Unit, outputs: Mapping[str, Sequence[Any]]) -> float:
    """How far outputs are off the model without its pairs."""
    session = Session(extract_qdq(unit.model).model)
    runs = session.runs(unit.samples)
    return _compared(case, {name: [run[name] for run in runs] for name in session.outputs}, outputs)[1]


def _compared(case: Case, wanted: Mapping[str, Sequence[Any]], got: Mapping[str, Sequence[Any]]) -> tuple[str, float]:
    worst, single, few = 0.0, 0.0, 0.03 if case.form.op in _EDGED else 0.005
    for name, values in wanted.items():
        one = np.concatenate([np.ravel(value) for value in values]).astype(np.float64)
        two = np.concatenate([np.ravel(value) for value in got[name]]).astype(np.float64)
        if one.shape != two.shape or (np.isfinite(one) & ~np.isfinite(two)).any():
            return "wrong", 1.0
        known = np.isfinite(one)
        if not known.any():
            continue
        # A float has its precision by its size, an integer by its range.
        size = np.abs(one[known]).max() if case.kind == "fp16" else np.ptp(one[known])
        span = float(size)
        if span > 0:
            errors = np.abs(two - one)[known] / span
            worst, single = max(worst, float(np.quantile(errors, 1 - few))), max(single, float(errors.max()))
    is_right = worst <= _NEAR and (single <= _FAR or case.form.op in _EDGED)
    return "wrong" if worst > _FAR else "right" if is_right else "between", worst


def _answer(case: Case, unit: Unit, ran: Ran, truth: str, off: float, *, packaged: bool) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(unit.model, path)
        said, row = said_of(path)
        out = Path(folder) / "out"
        delivered, why, distances = _delivered(case, unit, ran, path, out) if packaged else ("", "", ())
    return Answer(
        case=f"{case.form.op} {case.form.name} {case.variation}",
        kind=case.kind,
        truth=truth,
        off=round(off, 4),
        refused=ran.why,
        said=said,
        row=row,
        delivered=delivered,
        why=why,
        distances=distances,
    )


def said_of(path: Path) -> tuple[str, str]:
    """All that is said about kernels, and by which rule the worst: "handled" counts only where nothing else is."""
    told = []
    for finding in deploykit.check(path, target="sm8650", backend="ort-qnn"):
        if str(finding.severity) == "info" or finding.subject.kind != "node":
            continue
        measured = str(finding.evidence.get("verdict", ""))
        verdict = measured or ("refused" if str(finding.severity) == "error" else "wrong")
        rank = (bool(finding.handled), not measured, _SAYING.index(verdict))
        told.append((rank, "handled" if finding.handled else verdict, f"{finding.code} {finding.message[:160]}"))
    words = {word for _, word, _ in told}
    return (" ".join(sorted(words - {"handled"} or words)), min(told)[2]) if told else ("", "")


def _delivered(case: Case, unit: Unit, ran: Ran, path: Path, out: Path) -> tuple[str, str, tuple[float, ...]]:
    """What became of the package: no, right, wrong (with exit status 0); which findings it had, how far off it is.

    Off the file as given, and nearer to the float model than that file is, is a word of its own.
    """
    try:
        made = deploykit.package(path, target="sm8650", backend="ort-qnn", out=out)
    except DeploykitError as error:
        return "error", str(error).splitlines()[0], ()
    except Exception as error:  # a defect: the worst answer of all
        return "defect", repr(error), ()
    codes = " ".join(sorted({one.code for one in made.findings if str(one.severity) != "info" and not one.handled}))
    if made.exit_status:
        return "no", codes, ()
    model = onnx.load(out / "model" / "model.onnx", load_external_data=False)
    names = {value.name for value in model.graph.input}
    sets = [{name: value for name, value in sample.items() if name in names} for sample in unit.samples]
    wanted, got = execute_both(
        out, "model/model.onnx", "artifacts/model_ctx.onnx", sets, options={"soc_model": str(_SOC)}
    )
    of_file, of_package = ran.wanted or _by_name(wanted), _by_name(got)
    word, off = _compared(case, of_file, of_package)
    if case.kind == "fp16":
        return word, codes, (round(off, 4),)
    off_float, file_off = _off_float(case, unit, of_package), _off_float(case, unit, of_file)
    if word != "right" and off_float < file_off:
        word = f"{word}, {_NEARER}"
    return word, codes, (round(off, 4), round(off_float, 4), round(file_off, 4))


def _by_name(sets: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [one[name] for one in sets] for name in sets[0]}


def confusion(answers: Sequence[Answer]) -> Iterator[str]:
    """The table: truth against what was said, then what was delivered of what was wrong."""
    said = Counter((one.truth, one.said or "nothing") for one in answers)
    yield "truth: said"
    for (truth, word), count in sorted(said.items()):
        yield f"  {truth:10} {word:10} {count}"
    delivered = Counter((one.truth, one.delivered) for one in answers if one.delivered)
    yield "truth: delivered"
    for (truth, word), count in sorted(delivered.items()):
        yield f"  {truth:10} {word:10} {count}"


if __name__ == "__main__":
    main()
