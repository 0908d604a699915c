"""The sweep: cases through a compiler and an emulator, one line of JSON per case, taken up again where it stopped.

Lines hold what was measured and no verdict; that is drawn from them by ``verdicts``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from atlas.cases import Case, case_unit, in_turn
from atlas.units import Unit
from deploykit.errors import DeploykitError, InputError
from deploykit_ort_qnn.bench.together import Deviation, Ran, deviation, run_together
from deploykit_ort_qnn.compiler.hosts import Host

__all__ = ["Point", "measure", "point_of", "points_of", "sweep_cases"]

_CHUNK = 320
_FAR = 0.005
_TOGETHER = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What was measured of a case: the compiler's ``answer`` and its words, and how far the outputs are."""

    case: str
    answer: str
    why: str = ""
    deviation: Deviation | None = None

    def to_json(self) -> dict[str, Any]:
        """A line of the file."""
        told: dict[str, Any] = {"case": self.case, "answer": self.answer}
        if self.why:
            told["why"] = self.why
        return told if self.deviation is None else {**told, "deviation": asdict(self.deviation)}


def points_of(path: Path) -> tuple[Point, ...]:
    """Every line of a file of measurements; InputError for a line that is none."""
    lines = path.read_text("utf-8").splitlines()
    return tuple(point_of(line, where=f"{path.name}: line {number}") for number, line in enumerate(lines, 1))


def point_of(line: str, *, where: str = "this line") -> Point:
    """A line of the file; InputError where it is none."""
    try:
        value = json.loads(line)
        deviated = value.get("deviation")
        return Point(
            case=value["case"],
            answer=value["answer"],
            why=value.get("why", ""),
            deviation=None if deviated is None else Deviation(**deviated),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where} is no measurement", why=repr(error)) from None


def sweep_cases(
    cases: Iterable[Case],
    path: Path,
    *,
    measured: Callable[[Sequence[Case]], Iterable[Point]],
    progress: Callable[[str], None],
    at_once: int = _CHUNK,
    most: int | None = None,
) -> None:
    """Measure what the file does not have yet, at most so many, and add it there chunk by chunk.

    ``measured`` measures a chunk of ``at_once``. What was found wrong so far decides what is asked next.
    """
    done = {point.case: point for point in points_of(path)} if path.exists() else {}
    left, asked = [case for case in cases if case.id not in done], 0
    while left and (most is None or asked < most):
        turn = in_turn(left, {_about(point) for point in done.values() if _is_suspect(point)})
        # Forms of one operator side by side: those that are not finalized are then found with fewer trials.
        chunk = sorted(turn[: at_once if most is None else min(at_once, most - asked)], key=lambda case: case.id)
        with path.open("a", encoding="utf-8") as file:
            for point in measured(chunk):
                done[point.case] = point
                file.write(json.dumps(point.to_json()) + "\n")
                file.flush()
        asked += len(chunk)
        left = [case for case in left if case.id not in done]
        progress(f"{asked} cases measured, {len(left)} are left")


def _about(point: Point) -> tuple[str, str]:
    form, kind = point.case.split(" | ")[:2]
    return form.partition(":")[0], kind


def _is_suspect(point: Point) -> bool:
    """Far off in a way that no rounding explains; what exactly is wrong is decided by what reads the file."""
    found = point.deviation
    return found is not None and bool(found.odd or found.share > _FAR)


def measure(
    cases: Sequence[Case], *, host: Host | None, soc_model: int, options: Mapping[str, str] | None = None
) -> Iterator[Point]:
    """One point per case, in any order; ``invalid`` are those that make no graph in ONNX or do not run on the CPU."""
    kinds: dict[str, list[tuple[Case, Unit]]] = {}
    for number, case in enumerate(cases):
        try:
            kinds.setdefault(case.kind, []).append((case, case_unit(case, number)))
        except DeploykitError as error:
            yield Point(case=case.id, answer="invalid", why=str(error).splitlines()[0][:200])
        except Exception as error:  # what shape inference makes of a form that does not fit its variation
            yield Point(case=case.id, answer="invalid", why=f"{type(error).__name__}: {str(error).strip()[:120]}")
    for made in kinds.values():
        by_prefix = {one.prefix: (case, one) for case, one in made}
        units = [one for _, one in made]
        for ran in run_together(
            units, host=host, soc_model=soc_model, progress=_quiet, together=_TOGETHER, options=options
        ):
            case, one = by_prefix[ran.probe.prefix]
            yield _measured(case, one, ran)


def _measured(case: Case, one: Unit, ran: Ran) -> Point:
    found = deviation(ran.wanted, ran.got, one.steps) if ran.ran else None
    return Point(case=case.id, answer=ran.answer, why=ran.why[:300], deviation=found)


def _quiet(line: str) -> None:
    del line
