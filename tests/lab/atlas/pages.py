"""The pages of the atlas: an index with coverage and every wrong family, and a page per operator with a heat map.

Written from measurements and rows, never by hand; it draws no conclusion of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from atlas.folding import Measured
from atlas.holding_out import HeldOut, held_out
from deploykit_qualcomm.atlas.rows import KernelVerdict, MeasuredPlace, Row, atlas_rows, costs, places, where_it_holds

__all__ = ["write_pages"]

_TYPES = ("u8", "u16", "float")
_MARKS = {KernelVerdict.RIGHT: "·", KernelVerdict.NARROWED: "n", KernelVerdict.WRONG: "W", KernelVerdict.REFUSED: "-"}
_ORDER = (KernelVerdict.WRONG, KernelVerdict.NARROWED, KernelVerdict.REFUSED, KernelVerdict.RIGHT)
_LEGEND = "`·` right, `n` narrowed, `W` wrong, `-` refused or not finalized, empty: not measured"


def write_pages(measured: Sequence[Measured], file: Path, folder: Path, *, sdk: str) -> None:
    """The index and one page per operator; pages of operators that are gone are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    by_operator: dict[str, list[Measured]] = {}
    for one in measured:
        by_operator.setdefault(one.op, []).append(one)
    rows = [row for row in atlas_rows() if row.sdk == sdk]
    pages = {f"{op}.md": _page(op, found, rows) for op, found in by_operator.items()}
    pages["README.md"] = _index(by_operator, rows, measured, file, sdk)
    for path in folder.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, lines in pages.items():
        (folder / name).write_text("\n".join(lines) + "\n", "utf-8")


def _index(
    by_operator: Mapping[str, Sequence[Measured]],
    rows: Sequence[Row],
    measured: Sequence[Measured],
    file: Path,
    sdk: str,
) -> list[str]:
    verdicts = Counter(str(one.verdict) for one in measured)
    digest = sha256(file.read_bytes()).hexdigest()
    told = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in _ORDER)
    return [
        "# The atlas of kernels",
        "",
        "Written by `python -m atlas fold FILE --pages DIR`; how it is measured: docs/audit.md.",
        "",
        f"* QAIRT {sdk} (its emulator, Linux x86-64), soc_model 57 (SM8650, HTP v75): {len(measured)} cases of "
        f"{len(by_operator)} operators: {told}.",
        f"* Measurements: an artifact outside of the repository, SHA-256 `{digest}`.",
        *_held_out(measured),
        "",
        "## What is wrong or narrowed, and when",
        "",
        *_families(rows, ("wrong", "narrowed")),
        "",
        "## On other chips and in other releases",
        "",
        *_places(rows),
        "",
        "## Cases that no condition covers yet",
        "",
        *_uncovered(measured, rows),
        "",
        "## What is refused, and when",
        "",
        *_families(rows, ("refused",)),
        "",
        "## Operators",
        "",
        "| operator | cases | wrong | narrowed | refused |",
        "|---|---|---|---|---|",
        *(_operator(op, found) for op, found in sorted(by_operator.items())),
    ]


def _held_out(measured: Sequence[Measured]) -> Iterator[str]:
    """How far the rows of half of the cases tell the other half."""
    for words, by_form in (("cases", False), ("forms, with all their variations,", True)):
        found: HeldOut = held_out(measured, by_form=by_form)
        yield (
            f"* Drawn from half of the {words} and asked about the other half, both ways: {found.wrong_told} of "
            f"{found.wrong} wrong or narrowed told; {found.alarms} false alarms on {found.right} right ones; "
            f"{found.refused_told} of {found.refused} refused told, {found.refused_said} said."
        )


def _families(rows: Iterable[Row], verdicts: Sequence[str]) -> Iterator[str]:
    yield "| operator | types | verdict | when | cases | off by, of the range | `python -m atlas probe …` |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        if row.verdict in verdicts:
            off = f"{100 * min(row.most / row.span, 1):.3g} %" if row.span else ""
            shown = row.id.replace("|", "\\|")
            yield (
                f"| [{row.op}]({row.op}.md) | {' '.join(row.types)} | {row.verdict} | {_escaped(row.condition)} | "
                f"{row.cases} | {off} | `{shown}` |"
            )


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|")


def _places(rows: Sequence[Row]) -> Iterator[str]:
    """What became of each row's case there, and which rows it tells apart."""
    yield "The case of every row was run for other chips and by other releases. Drawn cases are all that are wrong"
    yield "or narrowed, as many right ones of the same operators, and 400 refused ones: whole conditions ran there."
    yield ""
    yield "| QAIRT | soc_model | rows | as the row says | otherwise | drawn cases | the same there | otherwise |"
    yield "|---|---|---|---|---|---|---|---|"
    for place in places():
        counts = Counter(place.otherwise.values())
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        same = place.asked - len(place.otherwise)
        yield f"| {place.sdk} | {place.soc} | {place.asked} | {same} | {told} | {' | '.join(_of_drawn(place))} |"
    yield ""
    for row in rows:
        if any(row.id in place.otherwise for place in places()):
            yield f"* `{row.id}` ({row.verdict}): {where_it_holds(row)}"


def _of_drawn(place: MeasuredPlace) -> tuple[str, str, str]:
    if not place.drawn:
        return "", "", ""
    counts = Counter(f"{case.partition(':')[0]} {turned}" for case, turned in place.turned.items())
    told = "; ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    return str(place.drawn), str(place.drawn - len(place.turned)), told


def _uncovered(measured: Sequence[Measured], rows: Sequence[Row]) -> Iterator[str]:
    """One line per form: too few cases for a condition, or patterns of several operators."""
    open_ = [
        one
        for one in measured
        if one.verdict in (KernelVerdict.WRONG, KernelVerdict.NARROWED)
        and not any(
            row.op == one.op and one.type in row.types and row.verdict == one.verdict and row.holds(one.traits)
            for row in rows
        )
    ]
    for form in dict.fromkeys(one.case.form.id for one in open_):
        some = [one for one in open_ if one.case.form.id == form]
        worst = max(some, key=lambda one: one.point.deviation.share if one.point.deviation else 0.0)
        found = worst.point.deviation
        numbers = "" if found is None else f", up to {100 * min(found.most / max(found.span, 1.0), 1):.3g} % off"
        kinds = " ".join(sorted({one.type for one in some}))
        yield f"* `{form}` in {kinds}: {worst.verdict}{numbers}"


def _operator(op: str, found: Sequence[Measured]) -> str:
    counts = Counter(one.verdict for one in found)
    numbers = (counts[KernelVerdict.WRONG], counts[KernelVerdict.NARROWED], counts[KernelVerdict.REFUSED])
    return f"| [{op}]({op}.md) | {len(found)} | {' | '.join(str(number or '') for number in numbers)} |"


def _page(op: str, found: Sequence[Measured], rows: Sequence[Row]) -> list[str]:
    own = [row for row in rows if row.op == op]
    lines = [f"# {op}", "", f"{len(found)} cases. {_LEGEND}.", ""]
    known = {kind: cost for (name, kind), cost in costs().items() if name == op}
    if known:
        lines += ["What it costs (steps of its grid, the middle of its forms): ", ""]
        lines += [
            f"* {kind}: {cost.usual:g} in 99 of 100 values, {cost.most:g} at most" for kind, cost in known.items()
        ]
        lines.append("")
    if own:
        lines += ["## Conditions", "", *_families(own, ("wrong", "narrowed", "refused")), ""]
    return [*lines, "## Measured", "", "| form | " + " | ".join(_TYPES) + " |", "|---|---|---|---|", *_heat_map(found)]


def _heat_map(found: Sequence[Measured]) -> Iterator[str]:
    """A line per form; in a cell one mark for each case: as it is first, then its variations."""
    for form in sorted({one.case.form.name for one in found}):
        some = sorted((one for one in found if one.case.form.name == form), key=lambda one: one.case.id)
        cells = ["".join(_MARKS.get(one.verdict, "") for one in some if one.type == kind) for kind in _TYPES]
        yield f"| {_escaped(form)} | {' | '.join(f'`{cell}`' if cell else '' for cell in cells)} |"
