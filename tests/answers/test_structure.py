"""A failure that no row has words for is answered by whose code fails and how, and never where a row speaks."""

import dataclasses
import io
from typing import Any

from deploykit.answers.diagnosis import Diagnosis, diagnose
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit.cli.diagnose import diagnosis_text
from deploykit.findings import Confidence
from deploykit.tables.known_errors import Catalog, FailureKind, KnownError, Tool
from tables import each_row

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
BOTH = Catalog(forms=EVERY.forms, tools=(MILL, STONE), kinds=(LOOKUP, STOPPED, NUMBER))
ALONE = dataclasses.replace(EVERY, errors=())


def of(log: str, catalog: Catalog = BOTH) -> Diagnosis:
    return diagnose(io.BytesIO(log.encode()), catalog)


def first(log: str, catalog: Catalog = BOTH) -> KnownError | None:
    causes = of(log, catalog).causes
    return causes[0].error if causes else None


STACK = '  File "mill/grind.py", line 3\n  File "mill/stone/turn.py", line 9\nKeyError: 3'
STOOD = '  File "mill/grind.py", line 3\n    grind()\nRuntimeError: it stands'
TURNED = '  File "mill/stone/turn.py", line 9\n    turn()\nKeyError: 3'
TORN_DOWN = "error: mill/grind.c:9 ~Grinder] KeyError: flour"


@each_row(
    ("log", "found"),
    # Who speaks and what it says are both needed.
    ("[MILL] KeyError: 'flour'", "mill/lookup"),
    ("[SHOP] KeyError: 'flour'", None),
    ("[MILL] KeyError: 'flour'\nall is milled", "mill/lookup"),
    ("[MILL] error: no flour", None),
    # The nearest frame of a stack speaks, and nothing above it.
    (STACK, "stone/lookup"),
    (STACK.replace("/", "\\"), "stone/lookup"),
    ('[MILL] done\nTraceback (most recent call last):\n  File "app.py", line 3\nKeyError: 3', None),
    # A kind that says why comes before one that does not; what a destructor misses is not the reason.
    ("[MILL] RuntimeError: it stands\n[MILL] KeyError: 'flour'", "mill/lookup"),
    (f"error: mill/grind.c: RuntimeError: the corn is wet\n{TORN_DOWN}", "mill/stopped"),
    (TORN_DOWN, "mill/lookup"),
    # A number counts for its speakers only.
    ("[MILL] error -7", None),
    ("mill/stone: error -7", "stone/number"),
    # A line of a mild level is none of a failure.
    ("[W:mill:x] [MILL] KeyError: 'flour'", None),
    ("WARNING [MILL] key not found", None),
    ("<V> [MILL] key not found", None),
    ("[V:mill:x, mill.cc:3 Log] <E> [MILL] key not found", "mill/lookup"),
    # The code that a stack shows says what might be raised.
    ('  File "mill/grind.py", line 3\n    raise KeyError: corn\nRuntimeError: it stands', "mill/stopped"),
    # What a step that failed should have made is missing after it, unless one exception came of the other.
    (f"{STOOD}\n{TURNED}", "mill/stopped"),
    (f"{STOOD}\n\nDuring handling of the above exception, another exception occurred:\n{TURNED}", "stone/lookup"),
)
def test_who_fails_and_how(log: str, found: str | None) -> None:
    row = first(log)
    assert (row and row.id) == found


def test_the_answer_names_who_what_and_a_way_out() -> None:
    row = first("[MILL] key not found: KeyError: 'flour'")
    assert row is not None
    assert (row.id, row.cause) == ("mill/lookup", "the mill misses 'flour'"), "of two patterns the one that names it"
    assert row.workaround == "look for 'flour'; grind less"
    assert row.confidence is Confidence.INFERRED
    assert "no row has these words" in diagnosis_text(of("[MILL] KeyError: 'flour'"))


@each_row(
    ("log", "code"), ("Could not initialize backend due to error = 4000", 4000), ("[XRT] map: No such device", -19)
)
def test_a_code_is_spelled_out(log: str, code: int) -> None:
    row, known = first(log, ALONE), EVERY.code(code)
    assert row and known and known.meaning in row.cause


def test_a_warning_alone_is_answered_as_one() -> None:
    causes = of("WARNING - Device 'npu' requested but no compatible EP found.", ALONE).causes
    assert [cause.error.severity.value for cause in causes] == ["warning"]
    assert not of("WARNING - no compatible EP found.\nerror: it stands", ALONE).causes


def test_a_failure_beside_the_chain_is_named_as_its_own() -> None:
    foreign = dataclasses.replace(MILL, foreign=True)
    catalog = Catalog(tools=(foreign,), kinds=(LOOKUP,))
    (cause,) = of("[MILL] KeyError: 'flour'", catalog).causes
    assert cause.error.id == "foreign/mill"
    assert "not of the way of a model onto the NPU: its first error is \"[MILL] KeyError: 'flour'" in cause.error.cause
    stack = "File \"/x/site-packages/barn/a.py\", line 3\n    f()\nAttributeError: 'Hay' object has no attribute 'fork'"
    for log in ("tar: Child returned status 1", "rabbit.errors.ChannelError: shut", stack):
        assert "and nothing here speaks of the NPU" in of(log, EVERY).causes[0].error.cause
    assert of("[MILL] KeyError: 'flour'", catalog).conclusion == "failed"
    for name, found in (("amdgpu", "foreign/kernel"), ("fastrpc", "fastrpc/kernel-crashed")):
        assert of(f"[ 1.5]  kthread+0x1/0x2\n[ 1.5]  put+0xb/0x12 [{name}]", EVERY).causes[0].error.id == found


def test_what_the_wording_keeps_is_said() -> None:
    words: Any = {"cause": "{size} KB of {limit} KB", "workaround": "cut it into {parts}", "source": ("s",)}
    row = KnownError(id="x", confidence=Confidence.REPORTED, match=("needs {size:n} KB, has {limit:n} KB",), **words)
    (cause,) = of("error: needs 5,000 KB, has 2000 KB", Catalog(errors=(row,))).causes
    assert (cause.error.cause, cause.error.workaround) == ("5,000 KB of 2000 KB", "cut it into 3")
    assert cause.fields == {"size": "5,000", "limit": "2000"}
    (cause,) = of("error: needs 5,000 KB, has 0 KB", Catalog(errors=(row,))).causes
    assert cause.error.workaround == "cut it into several"
