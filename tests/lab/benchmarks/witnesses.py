"""Compares what others say of the QNN NPU with the sweep, operator by operator, and writes the differences down.

    PYTHONPATH=tests/lab python tests/lab/benchmarks/witnesses.py --wheel WHEEL --points POINTS [--write]

WHEEL is winml_cli-0.4.0-py3-none-any.whl, POINTS the file of ``python -m atlas run``. Without --write it prints;
with it, the data file and the tables of
tests/lab/evidence/witnesses.md are made again. It runs no kernel.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.cases import case_of
from atlas.folding import traits_of_case, verdict_of_point
from atlas.measuring import Point, points_of
from deploykit.errors import DeploykitError
from deploykit_qualcomm.atlas.rows import KernelVerdict, Row
from deploykit_qualcomm.atlas.traits import Trait
from witness_page import write_page
from witness_wheel import NO_LIMIT, Counts, measured_of, rows_in, tables_of

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests/lab/evidence/witnesses.toml"
PAGE = ROOT / "tests/lab/evidence/witnesses.md"
STATED = Path(__file__).with_name("provider_tests.toml")
WHEEL, TABLES, TESTS = "winml-cli 0.4.0", "80-63442-10 in winml-cli 0.4.0", "onnxruntime-qnn 2.0.0"
HISTORY = "op_history.toml"
_SWEEP = {"sdk": "2.51.0", "soc": 57}
_PLAIN_RANK = 4
_OUTCOMES = ("agree", "open", "differ", "not measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A case of the sweep that the compiler answered, without other layers around it."""

    op: str
    kind: str
    is_taken: bool
    is_off: bool
    traits: Mapping[str, Trait]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One comparison: what a witness says of some cases, and what of as many of the sweep's was taken."""

    witness: str
    op: str
    kind: str
    about: str
    says: str
    measured: str
    cases: int
    outcome: str


def asked_of(points: Sequence[Point]) -> Iterator[Asked]:
    """Those about a node of their operator; taken are those that ran as well."""
    for number, point in enumerate(points):
        case = case_of(point.case)
        answered = point.answer in ("refused", "failed") or (point.answer == "taken" and point.deviation is not None)
        if not answered or case.variation.behind or case.variation.before:
            continue
        try:
            traits = traits_of_case(case, number)
        except DeploykitError:
            continue
        if traits:
            off = verdict_of_point(point) in (KernelVerdict.WRONG, KernelVerdict.NARROWED)
            taken = point.answer == "taken"
            yield Asked(op=case.form.op, kind=case.kind, is_taken=taken, is_off=off, traits=traits)


def share(taken: int, cases: int) -> str:
    """all, some or none."""
    return "none" if not taken else "all" if taken == cases else "some"


def outcome_of(says: str, measured: str, *, is_one_graph: bool = False) -> str:
    """They differ where one takes none and the other takes any; of a single graph, where it is not among all cases."""
    if says == measured and says != "some":
        return "agree"
    both = {says, measured}
    return "differ" if both == {"none", "all"} or (both == {"none", "some"} and not is_one_graph) else "open"


def by_rows(counts: Counts, sweep: Sequence[Asked]) -> Iterator[Told]:
    """Per operator, type and rank of the first input, where both have cases."""
    measured = Counter(((one.op, one.kind, int(one.traits.get("rank", -1))), one.is_taken) for one in sweep)
    cells = {cell for cell, _ in counts} & {cell for cell, _ in measured}
    for cell in sorted(cells):
        theirs, ours = (_share_of(found, cell) for found in (counts, measured))
        count = measured[cell, True] + measured[cell, False]
        told = f"{counts[cell, True]} of {counts[cell, True] + counts[cell, False]}"
        yield Told(
            witness=WHEEL, op=cell[0], kind=cell[1], about=f"rank {cell[2]}", says=told,
            measured=f"{measured[cell, True]} of {count}", cases=count, outcome=outcome_of(theirs, ours),
        )  # fmt: skip


def _share_of(found: Mapping[Any, int], cell: Any) -> str:
    return share(found[cell, True], found[cell, True] + found[cell, False])


def by_tables(tables: Mapping[tuple[str, str], int], sweep: Sequence[Asked]) -> Iterator[Told]:
    """Per operator, type and rank: whether the tables have the type, and the rank of its first input.

    Where they name no rank, only up to 4: sides more than two have operators of their own there.
    """
    measured = Counter(((one.op, one.kind, int(one.traits.get("rank", -1))), one.is_taken) for one in sweep)
    for cell in sorted({cell for cell, _ in measured}):
        op, kind, rank = cell
        if (op, kind) in tables and (0 <= rank <= _PLAIN_RANK or 0 < tables[op, kind] < NO_LIMIT):
            most = tables[op, kind]
            words = "not this type" if not most else f"up to rank {most}" if most < rank else "taken"
            count = measured[cell, True] + measured[cell, False]
            says = "all" if rank <= most else "none"
            yield Told(
                witness=TABLES, op=op, kind=kind, about=f"rank {rank}", says=words,
                measured=f"{measured[cell, True]} of {count}", cases=count,
                outcome=outcome_of(says, _share_of(measured, cell)),
            )  # fmt: skip


def by_facts(witness: str, facts: Sequence[Mapping[str, Any]], sweep: Sequence[Asked]) -> Iterator[Told]:
    """One by one: what became of the sweep's cases that fulfil the same condition."""
    for fact in facts:
        held = [one for one in sweep if one.op == fact["op"] and one.kind == fact["kind"] and _holds(fact, one)]
        off = fact["says"] == "inaccurate"
        hit = sum(one.is_off if off else one.is_taken for one in held)
        found = share(hit, len(held))
        said = "none" if fact["says"] == "refused" else "all"
        told = f"{hit} of {len(held)}" + (" off" if off else "")
        outcome = outcome_of(said, found, is_one_graph=True) if held else "not measured"
        yield Told(
            witness=witness, op=fact["op"], kind=fact["kind"], about=fact["name"], says=fact["says"],
            measured=told, cases=len(held), outcome=outcome,
        )  # fmt: skip


def _holds(fact: Mapping[str, Any], one: Asked) -> bool:
    row = Row(op=one.op, types=(), verdict="", sdk="", soc=0, hit=0, example="", when=fact["when"])
    return row.holds(one.traits)


def compared(wheel: Path, sweep: Sequence[Asked]) -> Iterator[tuple[Mapping[str, str], list[Told]]]:
    """Each witness with its comparisons."""
    stated = tomllib.loads(STATED.read_text("utf-8"))
    counts = measured_of(wheel)
    what = f"{rows_in(wheel)} rows of what compiled for the QNN NPU, {counts.total()} of them like the sweep's cases"
    yield {"name": WHEEL, "licence": "MIT", "what": what}, list(by_rows(counts, sweep))
    yield (
        {
            "name": TABLES,
            "licence": "MIT (the wheel)",
            "what": "Qualcomm's tables of types and ranks, as it has them",
        },
        list(by_tables(tables_of(wheel), sweep)),
    )
    yield (
        {"name": TESTS, "licence": "MIT", "what": f"{len(stated['test'])} facts from its tests of the HTP"},
        list(by_facts(TESTS, stated["test"], sweep)),
    )
    yield (
        {"name": HISTORY, "licence": "cited", "what": "what Qualcomm's histories say 2.44 to 2.49 brought"},
        list(by_facts(HISTORY, stated["history"], sweep)),
    )


def text_of(found: Sequence[tuple[Mapping[str, str], Sequence[Told]]]) -> str:
    """The data file: counts of each witness, and every difference."""
    lines = [
        "# Written by tests/lab/benchmarks/witnesses.py: what others say, counted, and where the sweep says otherwise."
    ]
    lines += [f"sweep = {{ sdk = {json.dumps(_SWEEP['sdk'])}, soc = {_SWEEP['soc']} }}", ""]
    for about, told in found:
        outcomes = Counter(one.outcome for one in told)
        lines += ["[[witness]]", *(f"{key} = {json.dumps(value)}" for key, value in about.items())]
        lines += [f"compared = {sum(one.outcome != 'not measured' for one in told)}"]
        lines += [
            f"{name.replace(' ', '_')} = {outcomes[name]}" for name in ("agree", "open", "differ", "not measured")
        ]
        refused = sum(one.outcome == "agree" and one.measured.startswith("0 of") for one in told)
        lines += [f"both_refuse = {refused}", ""]
    for _, told in found:
        for one in told:
            if one.outcome == "differ":
                words = {name: getattr(one, name) for name in ("witness", "op", "kind", "about", "says", "measured")}
                lines += ["[[differ]]", *(f"{key} = {json.dumps(value)}" for key, value in words.items())]
                lines += [f"cases = {one.cases}", ""]
    return "\n".join(lines).rstrip() + "\n"


def main(words: Sequence[str] | None = None) -> None:
    """Compare, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--points", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args(words)
    text = text_of(list(compared(asked.wheel, list(asked_of(points_of(asked.points))))))
    if asked.write:
        DATA.write_text(text, "utf-8")
        write_page(PAGE, tomllib.loads(text))
    else:
        print(text)


if __name__ == "__main__":
    main()
