"""Draws the atlas's rows and costs from measurements: verdicts, then conditions, then text for the data files.

It measures nothing; ``measuring`` does.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from atlas.cases import Case, case_of, case_unit
from atlas.learning import Example, learn
from atlas.measuring import Point
from atlas.sketch import AS_IT_IS, Variation
from deploykit.model.collect import collect_facts
from deploykit.model.load import wrap_proto
from deploykit_ort_qnn.bench.kernels import RUNNING
from deploykit_qualcomm.atlas.rows import KernelCost, KernelVerdict, Row, verdict_of
from deploykit_qualcomm.atlas.traits import Trait, traits_of
from deploykit_qualcomm.rules.views import SmallGraph

__all__ = ["Measured", "costs_of", "counted", "is_about", "measured_cases", "rows_of", "traits_of_case"]

_TYPES = {"fp16": "float", "w8a8": "u8", "w4a8": "u8", "w8a16": "u16", "w4a16": "u16"}
_FLOAT_WRONG = 0.02
_LEAST_FORMS = 3
_IN_GRID = Variation(wide=3.0)
"""How a running sum is drawn so that it stays within its grid."""
_PREDICTED = ((KernelVerdict.REFUSED,), (KernelVerdict.WRONG, KernelVerdict.NARROWED))
"""What conditions are drawn for: refusals first, as what is refused is not run; how far off is a matter of size."""
_ALWAYS = {KernelVerdict.WRONG: 3, KernelVerdict.REFUSED: 2}
"""Cases of an operator that it takes to say it of all: what is not taken twice was not taken by chance once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A case with its type in the words of the rows, its verdict, and its traits (empty for patterns of operators)."""

    case: Case
    type: str
    verdict: KernelVerdict
    point: Point
    traits: Mapping[str, Trait]

    @property
    def op(self) -> str:
        """The operator that it is about."""
        return self.case.form.op


def type_of_case(case: Case) -> str:
    """u8, u16 or float."""
    return _TYPES[case.kind]


def costs_of(points: Iterable[Point]) -> tuple[KernelCost, ...]:
    """The middle deviation of each operator and type, of forms alone and as they are; of three forms at least.

    Of sums that run on with a wider result: as they are these leave their grid, and go on from where they were cut off.
    """
    found: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if point.deviation is None or point.deviation.odd:
            continue
        case = case_of(point.case)
        if case.variation != (_IN_GRID if case.form.op in RUNNING else AS_IT_IS):
            continue
        if point.deviation.span and point.deviation.usual <= _FLOAT_WRONG * point.deviation.span:
            found.setdefault((case.form.op, type_of_case(case)), []).append(point)
    return tuple(
        KernelCost(
            op=op,
            type=kind,
            usual=_middle(one.deviation.usual for one in some if one.deviation),
            most=_middle(one.deviation.most for one in some if one.deviation),
            forms=len(some),
        )
        for (op, kind), some in sorted(found.items())
        if len(some) >= _LEAST_FORMS
    )


def _middle(values: Iterable[float]) -> float:
    return float(f"{statistics.median(values):.3g}")


def measured_cases(points: Iterable[Point]) -> Iterator[Measured]:
    """Every point that has a verdict, with the traits of the node that it is about."""
    for number, point in enumerate(points):
        verdict = verdict_of_point(point)
        if verdict is KernelVerdict.UNJUDGED:
            continue
        case = case_of(point.case)
        yield Measured(
            case=case, type=type_of_case(case), verdict=verdict, point=point, traits=traits_of_case(case, number)
        )


def verdict_of_point(point: Point) -> KernelVerdict:
    """Right, narrowed or wrong where it ran; refused where it was not taken or not finalized."""
    if point.answer in ("refused", "failed"):
        return KernelVerdict.REFUSED
    found = point.deviation
    if found is None:
        return KernelVerdict.UNJUDGED
    case = case_of(point.case)
    verdict = verdict_of(
        _operators(case),
        type_of_case(case),
        most=found.most,
        usual=found.usual,
        span=found.span,
        share=found.share,
        odd=found.odd,
    )
    # Behind other layers it is open whose bits are missing.
    around = case.variation.behind or case.variation.before
    return KernelVerdict.UNJUDGED if verdict is KernelVerdict.NARROWED and around else verdict


def _operators(case: Case) -> tuple[str, ...]:
    """The operator, and the layers that a variation puts around it."""
    return (
        case.form.op,
        *(("MatMul",) if case.variation.behind else ()),
        *(("MatMul",) if case.variation.before else ()),
    )


def traits_of_case(case: Case, number: int) -> dict[str, Trait]:
    """Of the first node of the operator that a case is about; none where the case is a pattern of others."""
    model = wrap_proto(case_unit(case, number).model, path=Path("case.onnx"))
    graph = SmallGraph(model=model, facts=collect_facts(model))
    node = next((node for node in graph.facts.nodes if node.op_type == case.form.op), None)
    return {} if node is None else traits_of(graph, node)


def rows_of(measured: Sequence[Measured], *, sdk: str, soc: int) -> Iterator[Row]:
    """Rows by operator and verdict; each holds for cases of its verdict only, in the types in which it was seen."""
    groups: dict[str, list[Measured]] = {}
    for one in measured:
        if one.traits:
            groups.setdefault(one.op, []).append(one)
    for op, group in sorted(groups.items()):
        by_case = {one.case.id: one for one in group}
        for verdicts in _PREDICTED:
            examples = [
                Example(
                    case=one.case.id,
                    traits={**_kind(one), **one.traits},
                    positive=one.verdict in verdicts,
                    form=one.case.form.id,
                )
                for one in group
                if one.verdict in verdicts or KernelVerdict.REFUSED in verdicts or one.verdict is KernelVerdict.RIGHT
            ]
            for found in learn(examples, always=_ALWAYS[verdicts[0]]):
                hit = [by_case[one.case] for one in found.hit]
                when = {name: value for name, value in found.when.items() if name not in _kind(hit[0])}
                verdict = max(verdicts, key=[one.verdict for one in hit].count)
                yield _row(op, verdict, hit, when, sdk=sdk, soc=soc)


def is_about(row: Row, one: Measured) -> bool:
    """Whether a row's condition holds for a measured case."""
    return row.op == one.op and one.type in row.types and bool(one.traits) and row.holds(one.traits)


def counted(row: Row, measured: Sequence[Measured]) -> Row:
    """A stated row with the numbers of the cases that it holds for; as it is where its own case is not among them."""
    held = [one for one in measured if is_about(row, one)]
    found = next((one.point.deviation for one in held if one.case.id == row.example), None)
    if found is None:
        return row
    hit = sum(one.verdict == row.verdict for one in held)
    return replace(row, hit=hit, spared=len(held) - hit, most=found.most, span=found.span, share=found.share)


def _kind(one: Measured) -> dict[str, Trait]:
    """Traits of the type, which a row states beside its condition."""
    return {"type": one.type, "integers": float(one.type != "float")}


def _clarity(one: Measured) -> tuple[float, bool, str]:
    """How plainly a case shows what is wrong: the largest share of wrong values, and nothing around the operator."""
    found = one.point.deviation
    return (0.0 if found is None else found.share, one.case.id.count("|") == 1, one.case.id)


def _row(
    op: str, verdict: KernelVerdict, hit: Sequence[Measured], when: Mapping[str, str | float], *, sdk: str, soc: int
) -> Row:
    shown = max((one for one in hit if one.verdict is verdict), key=_clarity)
    found = shown.point.deviation
    return Row(
        op=op,
        types=tuple(sorted({one.type for one in hit})),
        verdict=str(verdict),
        sdk=sdk,
        soc=soc,
        hit=len(hit),
        example=shown.case.id,
        most=0.0 if found is None else found.most,
        span=0.0 if found is None else found.span,
        share=0.0 if found is None else found.share,
        why=shown.point.why[:120],
        when=when,
    )
