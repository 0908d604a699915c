"""The tables of known errors, walked once per property; each test names the rows that are wrong."""

import io
import json
import re
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

import deploykit.tables.known_errors
import deploykit_qualcomm
import deploykit_vitis_ai
from deploykit.answers.diagnosis import Diagnosis, diagnose
from deploykit.tables.known_errors import Catalog, CatalogFile, KnownError, general_errors, merge_catalogs
from deploykit.tables.reading import schema_of
from deploykit_qualcomm.known_errors import known_errors as qualcomm_errors
from deploykit_vitis_ai.tables import known_errors as vitis_errors

LOGS = Path(__file__).parents[1] / "data" / "logs"
ROOMS = (deploykit.tables.known_errors, deploykit_qualcomm, deploykit_vitis_ai)
FILES = [path for room in ROOMS for path in (Path(str(room.__file__)).parent / "data/known_errors").glob("*.toml")]
OWN = {"general": general_errors(), "qualcomm": qualcomm_errors(), "vitis": vitis_errors()}
EVERY = merge_catalogs(OWN.values())


def answer(text: str, catalog: Catalog = EVERY) -> Diagnosis:
    return diagnose(io.BytesIO(text.encode()), catalog)


def ids(diagnosis: Diagnosis) -> set[str]:
    follow_ups = {follow_up.error.id for cause in diagnosis.causes for follow_up in cause.follow_ups}
    return follow_ups | {cause.error.id for cause in diagnosis.causes}


def spoken(pattern: str) -> str:
    """A log that holds a pattern: its gaps filled, its parts on lines of their own."""
    return re.sub(r"\{\w+\}|…", " x ", re.sub(r"\{\w+:n\}", "12", pattern)).replace(" && ", "\n")


def pairs(name: str) -> list[tuple[str, str]]:
    """Lines of a file of the form ``id, tabulator, line of a log``."""
    rows = (line.split("\t", 1) for line in (LOGS / name).read_text("utf-8").splitlines())
    return [(row, text) for row, text in rows]


@dataclass(frozen=True)
class Block:
    """Error lines of a public issue, the causes that it has to get, and those that are true of it but general."""

    url: str
    right: frozenset[str]
    general: frozenset[str]
    text: str


def issues() -> list[Block]:
    blocks = []
    for part in re.split(r"(?m)^=== (?=\S+/)", (LOGS / "issues.txt").read_text("utf-8"))[1:]:
        head, text = part.split("\n", 1)
        url, _, named = head.partition(" ")
        right, _, general = named.partition("~")
        blocks.append(Block(url, frozenset(right.split()), frozenset(general.split()), text))
    return blocks


ISSUES = issues()
STRENGTHS = ("match", "weak", "general", "follows", "mild")
NEAR: dict[str, list[str]] = defaultdict(list)
for name, line in pairs("near.txt"):
    NEAR[name].append(line)
KINDS = pairs("kinds.txt")


def judged(block: Block, catalog: Catalog = EVERY) -> str:
    diagnosis = answer(block.text, catalog)
    if diagnosis.conclusion == "finished":
        return "all-clear"
    if not diagnosis.causes:
        return "unknown"
    first = diagnosis.causes[0].error
    if first.id in block.right:
        return "right"
    return "general" if first.id in block.general or first.root != "cause" else "wrong"


def test_there_are_few_files_causes_and_lines() -> None:
    assert len(FILES) <= 24
    assert len(EVERY.errors) + len(EVERY.kinds) <= 700
    assert sum(path.read_text("utf-8").count("\n") for path in FILES) <= 12_000


def test_each_file_fits_the_schema() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(json.dumps(schema_of(CatalogFile))))
    wrong = [(p.name, e.message) for p in FILES for e in validator.iter_errors(tomllib.loads(p.read_text("utf-8")))]
    assert wrong == []


def test_no_name_stands_for_two_things() -> None:
    for rows in ("errors", "kinds", "tools"):
        names = Counter(row.id for catalog in OWN.values() for row in getattr(catalog, rows))
        assert [name for name, count in names.items() if count > 1] == []


def test_each_cause_says_what_to_do_and_who_says_so() -> None:
    def lacks(row: KnownError) -> bool:
        return not all((row.cause, row.workaround, row.source, row.stage, row.tools, row.read))

    assert [row.id for row in EVERY.errors if lacks(row)] == []


THIRDS = pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.heavy) for n in (1, 2))])
"""Of what takes seconds every third row while a person waits, the others with the heavy tests."""


@THIRDS
def test_each_cause_is_found_by_each_of_its_own_wordings(part: int) -> None:
    """All of them in one log, far from each other: each counts once."""
    missed = {}
    for row in EVERY.errors[part::3]:
        log = ("\n" * 40).join(map(spoken, row.patterns))
        causes = diagnose(io.BytesIO(log.encode()), EVERY, tools=row.tools).causes
        found = [one for cause in causes for one in (cause, *cause.follow_ups) if one.error.id == row.id]
        if row.patterns and [one.count for one in found] != [len(row.patterns)]:
            missed[row.id] = found
    assert missed == {}


def test_no_wording_stands_in_two_causes() -> None:
    owners = defaultdict(set)
    for row in EVERY.errors:
        for text in row.patterns:
            owners[text.lower()].add(row.id)
    assert {text: rows for text, rows in owners.items() if len(rows) > 1} == {}


def test_what_a_cause_says_uses_only_what_its_wordings_keep() -> None:
    def asked(*texts: str) -> set[str]:
        return {name for text in texts for name in re.findall(r"\{([a-z_]+)\}", text)}

    def kept(row: KnownError) -> set[str]:
        return {name for text in row.patterns for name in re.findall(r"\{(\w+)(?::n)?\}", text)} | {"parts", "code"}

    assert [row.id for row in EVERY.errors if not asked(row.cause, row.workaround) <= kept(row)] == []


@THIRDS
def test_a_line_of_like_words_is_not_claimed(part: int) -> None:
    rows, near = {row.id: row for row in EVERY.errors}, list(NEAR.items())[part::3]
    apart = "\n" * 40
    claimed = {name: answer(apart.join(texts), Catalog(errors=(rows[name],))).causes for name, texts in near}
    assert {name: row.hits[0].text for name, found in claimed.items() for row in found if row.error.id == name} == {}


def test_no_vendor_claims_the_others_words() -> None:
    for vendor, other in (("qualcomm", "vitis"), ("vitis", "qualcomm")):
        rows = [row for row in OWN[other].errors if row.root == "cause"]
        text = "\n".join(spoken(text) for row in rows for text in row.match if " && " not in text)
        catalog = replace(OWN[vendor], kinds=())
        claimed = {row.id for row in OWN[vendor].errors} & ids(answer(text, catalog))
        assert len(claimed) <= 12, sorted(claimed)


@THIRDS
def test_a_line_that_says_enough_by_its_form_gets_its_kind(part: int) -> None:
    alone = replace(EVERY, errors=())
    found = {
        (kind, text): [cause.error.id for cause in answer(f"qnn-net-run pid:3\n{text}", alone).causes][:1]
        for kind, text in KINDS[part::3]
    }
    assert {key: got for key, got in found.items() if not got or got[0].partition("/")[2] != key[0]} == {}


def test_a_program_that_fails_at_a_part_of_the_chain_is_named_as_a_symptom() -> None:
    (cause,) = answer("/usr/bin/ld: cannot find -lQnnHtp: No such file or directory").causes
    assert (cause.error.id, cause.error.root) == ("foreign/linker", "symptom")
    assert "not of the way of a model" not in cause.error.cause


def test_an_event_is_a_kind_of_failure_and_its_cause_needs_no_part_of_the_line() -> None:
    def wrong(row: KnownError, text: str) -> bool:
        told = row.cause + row.workaround + row.way_out
        return text.partition(" ")[0] not in kinds or not re.compile(text) or "{" in told

    kinds = {kind.id for kind in EVERY.kinds}
    assert [(row.id, text) for row in EVERY.errors for text in row.events if wrong(row, text)] == []


def test_words_that_no_row_has_get_the_cause_by_what_failed_on_what() -> None:
    bare = tuple(replace(row, **dict.fromkeys(STRENGTHS, ()), symptom=" ") for row in EVERY.errors)
    found = {(row, text): ids(answer(text, replace(EVERY, errors=bare))) for row, text in pairs("events.txt")}
    assert {key: got for key, got in found.items() if key[0] not in got} == {}


def test_each_kind_can_be_put_into_words() -> None:
    for kind in EVERY.kinds:
        for text in (kind.cause, kind.workaround):
            assert text.format_map(defaultdict(lambda: "a name")), kind.id
        assert set(kind.speakers) <= {tool.id for tool in EVERY.tools}, kind.id


def test_a_mark_belongs_to_one_tool() -> None:
    owners = defaultdict(set)
    for tool in EVERY.tools:
        for mark in tool.speaks:
            owners[mark].add(tool.id)
    assert {mark: tools for mark, tools in owners.items() if len(tools) > 1 or len(mark) < 3} == {}


@THIRDS
def test_issues_are_answered(part: int) -> None:
    """No all-clear, one wrong answer in thirty at most; what is none of the chain's failures is named as such."""
    verdicts = {block: judged(block) for block in ISSUES[part::3]}
    inside = Counter(verdict for block, verdict in verdicts.items() if not is_foreign(block))
    outside = Counter(verdict for block, verdict in verdicts.items() if is_foreign(block))
    assert "all-clear" not in verdicts.values()
    assert inside["wrong"] <= inside.total() / 30 and inside["right"] >= 0.85 * inside.total()
    assert outside["right"] >= 0.9 * outside.total()


def is_foreign(block: Block) -> bool:
    return any(name.startswith("foreign/") for name in block.right)


def test_a_vendors_witnesses_stand_beside_the_cores_own_sources() -> None:
    merged = {row.id: row for row in EVERY.errors}
    for catalog in OWN.values():
        told = [*catalog.witnesses, *((row.id, row.source) for row in catalog.errors)]
        assert [name for name, source in told if not set(source) <= set(merged[name].source)] == []
