"""Logs that tell of no failure, failures that others follow from, and those that no row has words for.

Each log is a question in a ``.told`` file, with ``⏎`` for the end of a line, and its whole answer below it.
"""

import io
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
from msgspec.structs import replace

from deploykit.answers.diagnosis import Diagnosis, diagnose
from deploykit.answers.diagnosis.trouble import FAILURES, LEVELS, trouble_of
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit.findings import Confidence, Severity
from deploykit.tables.known_errors import Catalog, CodeMeaning, FailureKind, KnownError, Tool
from sums import flat
from told import check_file

WORDS = {"source": ("s",), "confidence": Confidence.INFERRED}
SAYS = {"speaks": ("mill/", "[MILL]"), "done": ("all is milled",), "advice": "grind less"}
MILL = Tool(id="mill", name="the mill", **SAYS, **WORDS)  # type: ignore[arg-type]
STONE = Tool(id="stone", name="the stone", speaks=("mill/stone",), advice="turn it", **WORDS)  # type: ignore[arg-type]


def kind(name: str, *patterns: str, says: str, way_out: str = "read it", **more: Any) -> FailureKind:
    return FailureKind(id=name, patterns=patterns, cause=says, workaround=way_out, **WORDS, **more)  # type: ignore[arg-type]


LOOKUP = kind(
    "lookup",
    "key not found",
    "KeyError: (?P<name>.+)",
    says="{speaker} misses {name}",
    way_out="look for {name}",
    late=True,
)
STOPPED = kind("stopped", "RuntimeError: (?P<name>.+)", says="{speaker} stopped: {name}", root="symptom")
NUMBER = kind("number", "error -7", says="{speaker} says seven", speakers=("stone",))
EVERY = catalog_of(load_backends())
CODED = kind("coded", "fell with (?P<code>.+)", says="{speaker} fell: {code}")
BURST = kind("burst", "it burst", says="{speaker} burst {name}", unnamed="somewhere", alone=True)
KNOWN = kind("known", "it rusts", says="it rusts", row="rust")
CHAIN = kind("chain", "came down", says="{speaker} came down", root="symptom", chain=True)
RUST = KnownError(id="rust", cause="rust", workaround="oil", symptom="it is red", **WORDS)  # type: ignore[arg-type]
GONE = CodeMeaning(code=-19, last=-19, meaning="no device", area="kit", words="No such device", **WORDS)  # type: ignore[arg-type]
KINDS = (LOOKUP, STOPPED, NUMBER, CODED, BURST, KNOWN, CHAIN)
BOTH = Catalog(errors=(RUST,), codes=(GONE,), forms=EVERY.forms, tools=(MILL, STONE), kinds=KINDS)


SAID: Any = {"source": ("s",), "confidence": Confidence.REPORTED}
NOTED = KnownError(id="x", cause="c", workaround="w", match=("note this",), severity=Severity.WARNING, **SAID)
LIMIT = KnownError(
    id="x",
    cause="{size} KB of {limit} KB",
    workaround="cut it into {parts}",
    match=("needs {size:n} KB, has {limit:n} KB",),
    **SAID,
)
PRESS = Catalog(
    errors=(NOTED,),
    tools=(
        Tool(id="press", marks=("press 1.0",), done=("pressed, all of it",)),
        Tool(id="loader", marks=("loader 2.0",)),
    ),
)
VAGUE, PLAIN = (
    KnownError(id=name, cause="c", workaround="w", general=(words,), **SAID)
    for name, words in (("vague", "it broke"), ("plain", "it broke in two"))
)
CATALOGS = {
    "vague": Catalog(errors=(VAGUE, PLAIN, replace(LIMIT, id="limit"))),
    "mill": BOTH,
    "foreign": Catalog(forms=EVERY.forms, tools=(replace(MILL, foreign=True),), kinds=(LOOKUP,)),
    "press": PRESS,
    "levels": Catalog(errors=(replace(NOTED, severity=Severity.ERROR),), forms=EVERY.forms),
    "sizes": Catalog(errors=(LIMIT,)),
    "causes": EVERY,
}


def of(log: str, catalog: Catalog = BOTH) -> Diagnosis:
    return diagnose(io.BytesIO(log.encode()), catalog)


def answer(catalog: Catalog, question: str) -> list[str]:
    found = of(question.replace("⏎", "\n"), catalog)
    lines = []
    for cause in found.causes:
        row, because = cause.error, f" ({cause.because})" if cause.because else ""
        follows = f"; follows: {', '.join(one.error.id for one in cause.follow_ups)}" if cause.follow_ups else ""
        lines.append(f"{row.severity} {row.id}{because}, {cause.count} from line {cause.first_line}{follows}")
        if catalog is not EVERY:  # whose words may be mended any day
            lines += [f"  {row.cause}", f"  {row.workaround}", f"  {cause.fields}"]
    lines += [f"said: {flat(one.to_json())}" for one in found.events if catalog is not EVERY]
    for name in ("unknown", "doubts", "finished"):
        lines += [f"{name}: line {one.line}" for one in getattr(found, name)]
    lines += [f"{name}: {' of '.join(f'{value:g}' for value in values)}" for name, values in found.numbers.items()]
    unfinished = f", without an end: {', '.join(found.unfinished)}" if found.unfinished else ""
    return [*lines, f"{found.conclusion}{'' if found.understood else ', not understood'}{unfinished}"]


@pytest.mark.parametrize("name", CATALOGS)
def test_logs_are_answered(name: str) -> None:
    check_file(Path(__file__).with_name(f"{name}.told"), partial(answer, CATALOGS[name]))


def test_lines_of_trouble() -> None:
    def said(line: str) -> list[str]:
        found = trouble_of(line)
        hinted = LEVELS.search(line.encode()) or any(fragment in line.lower() for fragment in FAILURES)
        assert hinted or found != "failure"
        return [found or "harmless"]

    check_file(Path(__file__).with_name("trouble.told"), said)


def test_a_known_wording_behind_a_flood_of_trouble_is_found_and_counted() -> None:
    """Past so many lines words of trouble are not sought any more; the wordings of causes and marks of tools are."""
    flood = "".join(f"layer {a}{b}{c} failed\n" for a in ascii_lowercase for b in ascii_lowercase for c in "abcdefghij")
    log = flood.encode() * 12 + b"note this\n" * 30 + b"loader 2.0\n"
    assert len(log) > 1 << 20
    diagnosis = diagnose(io.BytesIO(log), PRESS)
    assert [cause.count for cause in diagnosis.causes if cause.error.id == "x"] == [30]
    assert (diagnosis.overlooked, diagnosis.tools) == (True, ("loader",))


def test_each_word_of_success_is_evidence_and_none_outweighs_a_failure() -> None:
    for mark in (mark for row in EVERY.tools for mark in row.done):
        assert of(f"starting\n{mark}\n", EVERY).conclusion == "finished", mark
        assert of(f"[ERROR] the last tensor failed\n{mark}\n", EVERY).conclusion != "finished", mark
